//! Whose a process can be.
//!
//! What a process is called, and what it says on its command line, it chooses itself, also in a pod. Its
//! user, its rights, its namespaces and its control group others have given it.

use super::proc::Proc;
use std::{fs, os::unix::fs::MetadataExt};

/// `CAP_SYS_ADMIN` (include/uapi/linux/capability.h). Kubelet mounts; no container has it that is not
/// given the node with it.
const SYS_ADMIN: u32 = 21;

/// Whose a process is, where no pod of a tenant can have one that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Root's, with the rights over the whole node and in none of its pods; perhaps in a container of its own.
    Node,
    /// Of a pod whose manifest lies on the node, as kubeadm runs the control plane.
    StaticPod,
}

/// Where this process is, with which others are compared.
#[derive(Debug)]
pub struct Here {
    user_namespace: Option<(u64, u64)>,
    /// The control groups of the first process.
    first: String,
}

impl Here {
    pub fn look() -> Here {
        let first = Proc::open(1).and_then(|first| first.read("cgroup"));
        Here {
            user_namespace: Proc::own().and_then(|own| user_namespace(&own)),
            first: first.unwrap_or_default(),
        }
    }

    /// The standing of a process; `None` for one that a tenant can have, and for one of which that cannot be seen.
    /// Nothing of its memory is read: who has it could let a reader wait.
    pub fn standing(&self, process: &Proc) -> Option<Standing> {
        // Who has a user namespace of his own is root in there.
        let namespace = user_namespace(process)?;
        if self.user_namespace != Some(namespace) {
            return None;
        }
        match place(&process.read("cgroup")?, &self.first)? {
            Place::StaticPod => Some(Standing::StaticPod),
            Place::Node => is_roots(&process.read("status")?)?.then_some(Standing::Node),
        }
    }
}

fn user_namespace(process: &Proc) -> Option<(u64, u64)> {
    let namespace = fs::metadata(process.path("ns/user")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

/// Whether a `status` (fs/proc/array.c, `task_state` and `task_cap`) is that of a process which root
/// started, as no set-user-id program of another user is, and which may do everything.
fn is_roots(status: &str) -> Option<bool> {
    let value = |wanted: &str| {
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        Some(lines.find(|(name, _)| *name == wanted)?.1.trim())
    };
    let mut users = value("Uid")?.split_whitespace();
    let rights = u64::from_str_radix(value("CapEff")?, 16).ok()?;
    Some(users.all(|user| user == "0") && rights & (1 << SYS_ADMIN) != 0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Node,
    StaticPod,
}

/// Where control groups are (`/proc/PID/cgroup`) is told in each hierarchy by a path from the root of this
/// process's namespace; `first` says the same of the first process. `None` for those of a pod, or of what may be one.
///
/// Kubelet puts its pods below `kubepods` (pkg/kubelet/cm/node_container_manager_linux.go), or a slice of a name
/// that ends so.
fn place(groups: &str, first: &str) -> Option<Place> {
    let mut place = Place::Node;
    let mut hierarchies = 0;
    for (hierarchy, path) in groups.lines().filter_map(hierarchy_of) {
        hierarchies += 1;
        let mut names = path
            .split('/')
            .skip_while(|name| !name.contains("kubepods"));
        if names.clone().next().is_some() {
            let pod = names.find_map(pod_of)?;
            is_static(pod).then_some(())?;
            place = Place::StaticPod;
            continue;
        }
        // From a container's namespace the names above are not seen. The first process is in no pod, so
        // whoever shares more of the way with this process than it does may be in this one's.
        let first = first.lines().filter_map(hierarchy_of);
        let first = first.clone().find(|(other, _)| *other == hierarchy);
        (ups(path) >= ups(first?.1)).then_some(())?;
    }
    (hierarchies > 0).then_some(place)
}

/// The number of a hierarchy and the path there, of one line.
fn hierarchy_of(line: &str) -> Option<(&str, &str)> {
    let (hierarchy, rest) = line.split_once(':')?;
    Some((hierarchy, rest.split_once(':')?.1))
}

fn ups(path: &str) -> usize {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.take_while(|name| *name == "..").count()
}

/// The uid in the name of a pod's control group: `pod<uid>`, or for systemd `kubepods-burstable-pod<uid>.slice`
/// with other dashes in the uid.
fn pod_of(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    match name.strip_prefix("pod") {
        Some(uid) => Some(uid),
        None => name.rsplit('-').next()?.strip_prefix("pod"),
    }
}

/// The uid of a pod that a file describes is a digest (pkg/kubelet/config/common.go, `applyDefaults`); one that
/// comes from the API server is a UUID, whatever its creator wanted.
fn is_static(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_who_started_as_root_and_may_do_everything() {
        let status = |users: &str, rights: &str| {
            format!("Name:\tkubelet\nUid:\t{users}\nCapPrm:\t{rights}\nCapEff:\t{rights}\n")
        };
        let everything = "000001ffffffffff";
        let roots = |users, rights| is_roots(&status(users, rights)).unwrap();
        assert!(roots("0\t0\t0\t0", everything));
        // What Docker gives a container.
        assert!(!roots("0\t0\t0\t0", "00000000a80425fb"));
        assert!(!roots("65534\t65534\t65534\t65534", everything));
        // A set-user-id program.
        assert!(!roots("1000\t0\t0\t0", everything));
        assert_eq!(is_roots("Name:\tkubelet\n"), None);
    }

    const STATIC: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_pods_process_is_told_by_its_control_group() {
        const FIRST: &str = "0::/init.scope";
        let node = Some(Place::Node);
        let fixed = Some(Place::StaticPod);
        for (path, found) in [
            ("/".to_owned(), node),
            ("/system.slice/kubelet.service".to_owned(), node),
            ("/docker/4c01db0b339c".to_owned(), node),
            ("/system.slice/docker-4c01db0b339c.scope/kubelet.slice/kubelet.service".to_owned(), node),
            ("/kubepods".to_owned(), None),
            ("/kubepods/besteffort/pod0b1e55ed-0000-4000-8000-0000000000aa/4c01".to_owned(), None),
            ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0b1e55ed_0000_4000_8000_0000000000aa.slice/cri-containerd-4c01.scope".to_owned(), None),
            ("/docker/4c01/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0b1e55ed_0000_4000_8000_0000000000aa.slice/x".to_owned(), None),
            (format!("/kubepods/burstable/pod{STATIC}/4c01"), fixed),
            (format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-4c01.scope"), fixed),
            // A pod's own groups below its own.
            (format!("/kubepods/pod0b1e55ed-0000-4000-8000-0000000000aa/4c01/kubepods/pod{STATIC}"), None),
        ] {
            assert_eq!(place(&format!("0::{path}\n"), FIRST), found, "{path}");
        }
        assert_eq!(place("", FIRST), None);
        let older = |pod: &str| format!("2:cpu,cpuacct:{pod}\n1:name=systemd:/\n0::/\n");
        let first = "2:cpu,cpuacct:/\n1:name=systemd:/init.scope\n0::/init.scope\n";
        assert_eq!(place(&older("/"), first), node);
        assert_eq!(
            place(
                &older("/kubepods/besteffort/pod0b1e55ed-0000-4000-8000-0000000000aa/x"),
                first
            ),
            None
        );
        assert_eq!(
            place(&older("/"), "0::/\n"),
            None,
            "a hierarchy that the first has not"
        );
    }

    #[test]
    fn from_a_pod_its_own_processes_and_those_beside_it_are_none_of_the_node() {
        const FIRST: &str = "0::/../../../../init.scope";
        let found = |path: &str| place(&format!("0::{path}\n"), FIRST);
        assert_eq!(
            found("/../../../../system.slice/kubelet.service"),
            Some(Place::Node)
        );
        assert_eq!(found("/"), None);
        assert_eq!(
            found("/../../pod0b1e55ed-0000-4000-8000-0000000000aa/4c01"),
            None
        );
        assert_eq!(found(&format!("/../../pod{STATIC}/4c01")), None);
    }
}
