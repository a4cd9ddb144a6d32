//! Where the node's pods have a volume, as the host's mount table says.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The directory of a pod in which a volume of this driver and name is mounted for writing, if there is one. Kubelet
/// mounts it at `pods/UID/volumes/VENDOR~DRIVER/NAME` (`GetPodVolumeDir` in pkg/kubelet/kubelet_getters.go), below
/// a directory that it may have been told.
///
/// # Errors
/// When the table cannot be read.
pub(super) fn writable(table: &Path, driver: &str, name: &str) -> io::Result<Option<PathBuf>> {
    Ok(find(&fs::read(table)?, driver, name))
}

/// Other processes' mounts are bytes: a line that is not understood is none of a pod's.
fn find(table: &[u8], driver: &str, name: &str) -> Option<PathBuf> {
    let place = driver.replacen('/', "~", 1);
    let ending = [OsStr::new("volumes"), OsStr::new(&place), OsStr::new(name)];
    // What was mounted last lies over what was mounted there before.
    let mut lines = table.split(|byte| *byte == b'\n').rev();
    lines.find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let (dir, options) = (fields.next()?, fields.next()?);
        let whole = line.rsplit(|byte| *byte == b' ').next()?;
        let dir = PathBuf::from(unescaped(dir));
        let mut parts = dir.iter().rev();
        let is_of_volume = ending.iter().rev().all(|part| parts.next() == Some(part))
            && parts.next().is_some()
            && parts.next() == Some(OsStr::new("pods"));
        (is_of_volume && is_writable(options) && is_writable(whole)).then_some(dir)
    })
}

/// The options of the mount, or of its file system, begin with this word.
fn is_writable(options: &[u8]) -> bool {
    options
        .split(|byte| *byte == b',')
        .any(|word| word == b"rw")
}

/// The kernel writes spaces, and what else would end a field, as three octal digits (`mangle` in fs/proc_namespace.c).
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

    const POD: &str = "/var/lib/kubelet/pods/0-1/volumes/a~b/pvc-1";

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
        let elsewhere = "/data/my\\040kubelet/pods/0-1/volumes/a~b/pvc-1";
        let unescaped = elsewhere.replace("\\040", " ");
        assert_eq!(of(elsewhere), Some(unescaped));
        for other in [
            "/var/lib/kubelet/pods/0-1/volumes/a~b/pvc-10",
            "/var/lib/kubelet/pods/0-1/volumes/a~c/pvc-1",
            "/var/lib/kubelet/pods/0-1/volumes/a~b/pvc-1/pvc-1",
            "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/a/b/mounts/pvc-1",
            "/pods/volumes/a~b/pvc-1",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(found(&line(POD, "ro,relatime", "rw")), None);
        assert_eq!(found(&line(POD, "rw", "ro,norecovery")), None);
        let both = "/var/lib/kubelet/pods/0-2/volumes/a~b/pvc-1";
        let reader = line(POD, "ro", "rw");
        let table = line(both, "rw", "rw") + &reader;
        assert_eq!(found(&table).as_deref(), Some(both));
    }

    #[test]
    fn a_line_that_is_not_understood_spoils_itself_alone() {
        let mut table = b"\n36 25\n36 25 7:0 / /\xff\\9 rw - fuse \xfe rw\n".to_vec();
        table.extend(format!("36 25 7:0 / {POD} rw - xfs /dev/loop0 rw").into_bytes());
        assert_eq!(find(&table, "a/b", "pvc-1"), Some(PathBuf::from(POD)));
    }
}
