//! Kubelet's directories of pods.

use std::{ffi::OsStr, path::Path};

/// A pod's directory for a volume, `pods/UID/volumes/VENDOR~DRIVER/VOLUME` (Kubernetes `GetPodVolumeDir` in
/// `pkg/kubelet/kubelet_getters.go`), wherever kubelet's root directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodVolumeDir<'a> {
    /// The pod's UID. Any name: see [`is_pod_uid`].
    pub uid: &'a OsStr,
    /// The plugin's directory: `VENDOR~DRIVER` for a FlexVolume driver.
    pub plugin: &'a OsStr,
    /// The volume's name.
    pub volume: &'a OsStr,
}

impl<'a> PodVolumeDir<'a> {
    /// Reads the last components of a path. Returns `None` if it is no such directory.
    ///
    /// ```
    /// use flexvol_sdk::PodVolumeDir;
    /// use std::path::Path;
    ///
    /// let dir = Path::new("/var/lib/kubelet/pods/1/volumes/example.com~disk/data");
    /// assert_eq!(PodVolumeDir::of(dir).unwrap().plugin, "example.com~disk");
    /// assert_eq!(PodVolumeDir::of(Path::new("/mnt/volumes/example.com~disk/data")), None);
    /// ```
    #[must_use]
    pub fn of(path: &'a Path) -> Option<Self> {
        let mut parts = path.iter().rev();
        let (volume, plugin) = (parts.next()?, parts.next()?);
        let (volumes, uid, pods) = (parts.next()?, parts.next()?, parts.next()?);
        (volumes == "volumes" && pods == "pods").then_some(PodVolumeDir {
            uid,
            plugin,
            volume,
        })
    }
}

/// Whether a name is a pod's UID: a UUID, or a static pod's digest (`applyDefaults` in `pkg/kubelet/config/common.go`).
#[must_use]
pub fn is_pod_uid(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let digits = name.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
    let dashes = name.iter().filter(|byte| **byte == b'-').count();
    digits == 32 && name.len() == digits + dashes && [0, 4].contains(&dashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_directory_is_told_by_its_last_components() {
        let of = |path: &'static str| PodVolumeDir::of(Path::new(path));
        let dir = of("/data/kubelet/pods/u/volumes/a~b/pvc-1").unwrap();
        let parts = [dir.uid, dir.plugin, dir.volume];
        assert_eq!(parts, ["u", "a~b", "pvc-1"]);
        assert_eq!(of("pods/u/volumes/a~b/pvc-1/"), Some(dir));
        for other in [
            "",
            "/pods",
            "/srv/pods",
            "/pods/u/etc/a~b/pvc-1",
            "/pods/volumes/a~b/pvc-1",
            "/pods/u/volumes/a~b",
            "/pods/u/volumes/a~b/pvc-1/sub",
            "/k/plugins/kubernetes.io/flexvolume/a/b/mounts/pvc-1",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_pods_uid_is_a_uuid_or_a_digest() {
        let is_uid = |name: &str| is_pod_uid(OsStr::new(name));
        assert!(is_uid("0b1e55ed-0000-4000-8000-0000000000aa"));
        assert!(is_uid("0123456789abcdef0123456789abcdef"));
        for other in ["", "1", "exec", "0b1e55ed-0000-4000-8000-0000000000ag"] {
            assert!(!is_uid(other), "{other}");
        }
    }
}
