//! Ownership checks of plugin directories, whose programs run as root.

use anyhow::{Context, Result, anyhow};
use flexvol_storage::{host::fs::rooted::Root, sdk::is_pod_uid};
use std::{
    ffi::OsStr,
    fs::Metadata,
    io,
    os::unix::fs::MetadataExt,
    path::{Component, Path},
};

/// Kubelet's default directory for pods.
const PODS: &str = "/var/lib/kubelet/pods";

/// Checks that only root and this process's own user control what is at a path. They must own every directory on
/// the resolved path and alone have write permission, and none may belong to a pod. A missing path is checked as
/// far as it exists, because whoever can write the last directory can create the rest.
pub fn expect_owned(path: &Path) -> Result<()> {
    let root = Root::at(Path::new("/")).context("open the root directory")?;
    let own = nix::unistd::geteuid().as_raw();
    let mut last = None;
    let walked = root.walk(path, &mut |place, metadata| {
        let on_the_way = foreign_control(place, metadata, own, true);
        last = foreign_control(place, metadata, own, false);
        on_the_way.map_or(Ok(()), |why| Err(io::Error::other(why)))
    });
    match (walked, last) {
        (Ok(_), Some(why)) => Err(anyhow!(why)),
        (Ok(_), None) => Ok(()),
        (Err(error), last) if error.kind() == io::ErrorKind::NotFound => {
            last.map_or(Ok(()), |why| Err(anyhow!(why)))
        }
        (Err(error), _) => Err(error).with_context(|| format!("look at {}", path.display())),
    }
}

/// Returns why others control this directory or file. A sticky directory (/tmp) may be open to all if the path only
/// passes through it: only the owner of a name can replace it, and that owner is checked next.
fn foreign_control(place: &Path, metadata: &Metadata, own: u32, passed: bool) -> Option<String> {
    const SO: &str = "and what is in there is run as root";
    let shown = place.display();
    if ![0, own].contains(&metadata.uid()) {
        return Some(format!("{shown} belongs to another user than root, {SO}"));
    }
    let is_sticky = metadata.is_dir() && metadata.mode() & 0o1000 != 0;
    if metadata.mode() & 0o022 != 0 && !metadata.is_symlink() && !(passed && is_sticky) {
        return Some(format!("others than root can write {shown}, {SO}"));
    }
    is_of_a_pod(place).then(|| format!("{shown} belongs to a pod, {SO}"))
}

/// Whether a path belongs to a pod. Root in a container owns the files that it makes, and their mode does not tell
/// that root from the node's.
fn is_of_a_pod(place: &Path) -> bool {
    if place.starts_with(PODS) {
        return true;
    }
    let names: Vec<&OsStr> = place
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    names
        .windows(2)
        .any(|pair| pair[0] == "pods" && is_pod_uid(pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn whoever_can_write_on_the_way_decides() {
        let dir = tempfile::tempdir().unwrap();
        let [way, end] = ["way", "way/end"].map(|name| dir.path().join(name));
        fs::create_dir_all(&end).unwrap();
        expect_owned(&end).unwrap();
        expect_owned(&end.join("missing/too")).unwrap();
        let link = dir.path().join("link");
        symlink(&end, &link).unwrap();
        for (place, bits) in [(&way, 0o777), (&way, 0o775), (&end, 0o777), (&end, 0o1777)] {
            mode(place, bits);
            for path in [&end, &link, &way.join("../way/end")] {
                let why = expect_owned(path).unwrap_err();
                assert!(
                    format!("{why:#}").contains("others than root can write"),
                    "{why:#}"
                );
            }
            mode(place, 0o755);
        }
        mode(&way, 0o1777);
        expect_owned(&end).unwrap();
    }

    #[test]
    fn another_users_directory_decides() {
        let dir = tempfile::tempdir().unwrap();
        let way = dir.path().join("way");
        fs::create_dir(&way).unwrap();
        if std::os::unix::fs::chown(&way, Some(65534), None).is_err() {
            return;
        }
        let why = expect_owned(&way.join("missing")).unwrap_err();
        assert!(
            format!("{why:#}").contains("belongs to another user"),
            "{why:#}"
        );
    }

    #[test]
    fn what_was_given_to_a_pod_is_told_by_where_it_lies() {
        let uid = "0b1e55ed-0000-4000-8000-0000000000aa";
        let volume = format!("/k/pods/{uid}/volumes/kubernetes.io~empty-dir/x");
        assert!(is_of_a_pod(Path::new(&volume)));
        assert!(is_of_a_pod(Path::new(
            "/pods/0123456789abcdef0123456789abcdef/x"
        )));
        assert!(is_of_a_pod(Path::new("/var/lib/kubelet/pods")));
        for path in [
            "/var/lib/kubelet/volumeplugins",
            "/pods/exec",
            "/srv/pods",
            "/",
            uid,
        ] {
            assert!(!is_of_a_pod(Path::new(path)), "{path}");
        }
    }
}
