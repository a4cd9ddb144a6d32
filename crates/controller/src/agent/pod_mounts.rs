//! Mount points of a volume in pods, by the host's mount table.

use flexvol_sdk::{PodVolumeDir, is_pod_uid};
use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Returns the mount point where a pod has this volume mounted for writing, if there is one.
///
/// # Errors
/// When the mount table cannot be read.
pub(super) fn writable(table: &Path, driver: &str, name: &str) -> io::Result<Option<PathBuf>> {
    Ok(find(&fs::read(table)?, driver, name))
}

/// Searches the table, whose lines may contain arbitrary bytes. A line that cannot be parsed is no pod's mount.
fn find(table: &[u8], driver: &str, name: &str) -> Option<PathBuf> {
    let place = driver.replacen('/', "~", 1);
    let is_of_volume = |dir: &Path| {
        let of_pod = PodVolumeDir::of(dir).filter(|dir| is_pod_uid(dir.uid));
        of_pod.is_some_and(|dir| dir.plugin == place.as_str() && dir.volume == name)
    };
    let mut hidden = HashSet::new();
    // Later mounts hide earlier ones at the same mount point.
    let mut mounts = table
        .split(|byte| *byte == b'\n')
        .rev()
        .filter_map(Mount::read);
    mounts.find_map(|mount| {
        let is_pods = is_of_volume(&mount.dir) && hidden.insert(mount.dir.clone());
        (is_pods && mount.is_writable).then_some(mount.dir)
    })
}

struct Mount {
    dir: PathBuf,
    is_writable: bool,
}

impl Mount {
    fn read(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let (dir, options) = (unescaped(fields.next()?), fields.next()?);
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let (filesystem, _, whole) = (fields.next()?, fields.next()?, fields.next()?);
        // An unprivileged user may mount a FUSE file system anywhere, and answer anything.
        let is_fuse = filesystem.starts_with(b"fuse");
        Some(Mount {
            dir: dir.into(),
            is_writable: !is_fuse && is_writable(options) && is_writable(whole),
        })
    }
}

/// Whether the options of a mount, or of its superblock, contain `rw`.
fn is_writable(options: &[u8]) -> bool {
    options
        .split(|byte| *byte == b',')
        .any(|word| word == b"rw")
}

/// Decodes octal escapes, which the kernel writes for spaces and other separators (`mangle` in fs/proc_namespace.c).
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, others @ ..] = rest {
        let code = match others {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &others[3..] } else { others };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str =
        "/var/lib/kubelet/pods/0b1e55ed-0000-4000-8000-000000000001/volumes/a~b/pvc-1";

    fn found(table: &str) -> Option<String> {
        let found = find(table.as_bytes(), "a/b", "pvc-1")?;
        Some(found.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_volume_is_found_where_a_pod_may_write_to_it() {
        let line = |dir: &str, mount: &str, whole: &str| {
            format!("36 25 7:0 / {dir} {mount} shared:1 - xfs /dev/loop0 {whole}\n")
        };
        let of = |dir: &str| found(&line(dir, "rw,relatime", "rw,noquota"));
        assert_eq!(of(POD).as_deref(), Some(POD));
        let elsewhere =
            "/data/my\\040kubelet/pods/0b1e55ed-0000-4000-8000-000000000001/volumes/a~b/pvc-1";
        let unescaped = elsewhere.replace("\\040", " ");
        assert_eq!(of(elsewhere), Some(unescaped));
        for other in [
            "/var/lib/kubelet/pods/0b1e55ed-0000-4000-8000-000000000001/volumes/a~b/pvc-10",
            "/var/lib/kubelet/pods/0b1e55ed-0000-4000-8000-000000000001/volumes/a~c/pvc-1",
            "/var/lib/kubelet/pods/0b1e55ed-0000-4000-8000-000000000001/volumes/a~b/pvc-1/pvc-1",
            "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/a/b/mounts/pvc-1",
            "/pods/volumes/a~b/pvc-1",
            "/home/u/pods/mine/volumes/a~b/pvc-1",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(found(&line(POD, "ro,relatime", "rw")), None);
        assert_eq!(found(&line(POD, "rw", "ro,norecovery")), None);
        let both = "/var/lib/kubelet/pods/0123456789abcdef0123456789abcdef/volumes/a~b/pvc-1";
        let reader = line(POD, "ro", "rw");
        let table = line(both, "rw", "rw") + &reader;
        assert_eq!(found(&table).as_deref(), Some(both));
        let fuse = format!("36 25 0:50 / {POD} rw shared:1 - fuse.sshfs somewhere rw\n");
        assert_eq!(found(&fuse), None);
        let hidden = line(POD, "rw", "rw") + &reader;
        assert_eq!(found(&hidden), None, "readers see what lies above");
    }

    #[test]
    fn a_line_that_is_not_understood_spoils_itself_alone() {
        let mut table = b"\n36 25\n36 25 7:0 / /\xff\\9 rw - fuse \xfe rw\n".to_vec();
        table.extend(format!("36 25 7:0 / {POD} rw - xfs /dev/loop0 rw").into_bytes());
        assert_eq!(find(&table, "a/b", "pvc-1"), Some(PathBuf::from(POD)));
    }
}
