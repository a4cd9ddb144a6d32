//! Whether a process is the node's or a tenant's.
//!
//! A process chooses its name and command line itself, even in a pod. Its user, capabilities, namespaces and
//! control group are given to it.

use super::proc::Proc;
use std::{fs, os::unix::fs::MetadataExt};

/// `CAP_SYS_ADMIN` (include/uapi/linux/capability.h). Kubelet needs it to mount; a container with it controls the
/// node anyway.
const SYS_ADMIN: u32 = 21;

/// The origin of a trusted process, which no tenant's pod can imitate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedOrigin {
    /// Root on the node, with all rights and in no pod; perhaps in a container of its own.
    Node,
    /// In a static pod, whose manifest is a file on the node, as kubeadm runs the control plane.
    StaticPod,
}

/// The properties of this process with which others are compared.
#[derive(Debug)]
pub struct OwnProcess {
    user_namespace: Option<(u64, u64)>,
    /// The control groups of process 1.
    first: String,
}

impl OwnProcess {
    pub fn read() -> OwnProcess {
        let first = Proc::open(1).and_then(|first| first.read("cgroup"));
        OwnProcess {
            user_namespace: Proc::own().and_then(|own| user_namespace(&own)),
            first: first.unwrap_or_default(),
        }
    }

    /// Returns the origin of a process; `None` if a tenant may have started it or that is unknown. Reads none of
    /// its memory, since the owner of the memory could block the reader.
    pub fn trusted_origin(&self, process: &Proc) -> Option<TrustedOrigin> {
        // A process in another user namespace may be root only there.
        let namespace = user_namespace(process)?;
        if self.user_namespace != Some(namespace) {
            return None;
        }
        match cgroup_origin(&process.read("cgroup")?, &self.first)? {
            CgroupOrigin::StaticPod => Some(TrustedOrigin::StaticPod),
            CgroupOrigin::Node => {
                is_roots(&process.read("status")?)?.then_some(TrustedOrigin::Node)
            }
        }
    }
}

fn user_namespace(process: &Proc) -> Option<(u64, u64)> {
    let namespace = fs::metadata(process.path("ns/user")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

/// Whether a `status` (fs/proc/array.c, `task_state` and `task_cap`) is that of a process with CAP_SYS_ADMIN whose
/// user ids are all root's, which excludes set-user-id programs that others started.
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
enum CgroupOrigin {
    Node,
    StaticPod,
}

/// Determines the origin from `/proc/PID/cgroup`, which has a path for each hierarchy, relative to the root of
/// this process's cgroup namespace. `first` is the same file of process 1. Returns `None` if the process is, or may
/// be, in a tenant's pod.
///
/// Kubelet puts its pods below `kubepods` (pkg/kubelet/cm/node_container_manager_linux.go), or a slice whose name
/// ends so.
fn cgroup_origin(groups: &str, first: &str) -> Option<CgroupOrigin> {
    let mut origin = CgroupOrigin::Node;
    let mut hierarchies = 0;
    for (hierarchy, path) in groups.lines().filter_map(hierarchy_of) {
        hierarchies += 1;
        let mut names = path
            .split('/')
            .skip_while(|name| !name.contains("kubepods"));
        if names.clone().next().is_some() {
            let pod = names.find_map(pod_of)?;
            is_static(pod).then_some(())?;
            origin = CgroupOrigin::StaticPod;
            continue;
        }
        // In a container, the names above its namespace's root are not visible. Process 1 is in no pod. So a
        // process whose path goes up less far than that of process 1 may be in the same pod as this process.
        let first = first.lines().filter_map(hierarchy_of);
        let first = first.clone().find(|(other, _)| *other == hierarchy);
        (ups(path) >= ups(first?.1)).then_some(())?;
    }
    (hierarchies > 0).then_some(origin)
}

/// Splits one line into the hierarchy's number and path.
fn hierarchy_of(line: &str) -> Option<(&str, &str)> {
    let (hierarchy, rest) = line.split_once(':')?;
    Some((hierarchy, rest.split_once(':')?.1))
}

fn ups(path: &str) -> usize {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.take_while(|name| *name == "..").count()
}

/// Returns the uid in the name of a pod's control group: `pod<uid>`, or with systemd
/// `kubepods-burstable-pod<uid>.slice`, in which the uid has other dashes.
fn pod_of(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    match name.strip_prefix("pod") {
        Some(uid) => Some(uid),
        None => name.rsplit('-').next()?.strip_prefix("pod"),
    }
}

/// Whether a uid is a static pod's: a digest (pkg/kubelet/config/common.go, `applyDefaults`). The API server always
/// gives pods a UUID, whatever their creator requests.
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
        // The capabilities that Docker gives a container.
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
        let node = Some(CgroupOrigin::Node);
        let fixed = Some(CgroupOrigin::StaticPod);
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
            // A pod can make control groups of its own below its own.
            (format!("/kubepods/pod0b1e55ed-0000-4000-8000-0000000000aa/4c01/kubepods/pod{STATIC}"), None),
        ] {
            assert_eq!(cgroup_origin(&format!("0::{path}\n"), FIRST), found, "{path}");
        }
        assert_eq!(cgroup_origin("", FIRST), None);
        let older = |pod: &str| format!("2:cpu,cpuacct:{pod}\n1:name=systemd:/\n0::/\n");
        let first = "2:cpu,cpuacct:/\n1:name=systemd:/init.scope\n0::/init.scope\n";
        assert_eq!(cgroup_origin(&older("/"), first), node);
        assert_eq!(
            cgroup_origin(
                &older("/kubepods/besteffort/pod0b1e55ed-0000-4000-8000-0000000000aa/x"),
                first
            ),
            None
        );
        assert_eq!(
            cgroup_origin(&older("/"), "0::/\n"),
            None,
            "a hierarchy that the first has not"
        );
    }

    #[test]
    fn from_a_pod_its_own_processes_and_those_beside_it_are_none_of_the_node() {
        const FIRST: &str = "0::/../../../../init.scope";
        let found = |path: &str| cgroup_origin(&format!("0::{path}\n"), FIRST);
        assert_eq!(
            found("/../../../../system.slice/kubelet.service"),
            Some(CgroupOrigin::Node)
        );
        assert_eq!(found("/"), None);
        assert_eq!(
            found("/../../pod0b1e55ed-0000-4000-8000-0000000000aa/4c01"),
            None
        );
        assert_eq!(found(&format!("/../../pod{STATIC}/4c01")), None);
    }
}
