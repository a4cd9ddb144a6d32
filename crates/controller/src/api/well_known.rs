//! What we call things in a cluster. Objects carry these names, so they do not change.

pub use flexvol_claims::PROVISIONED_BY;

use std::collections::BTreeMap;

/// The group of our objects, and the domain of our annotations, labels and finalizers.
pub const DOMAIN: &str = "flexvol.dev";

/// The version of our objects.
pub const VERSION: &str = "v1alpha1";

/// Who the controller says it is, where it tells something.
pub const CONTROLLER: &str = "flexvol-controller";

/// On a claim: storage is being made for it.
pub const CLAIM_FINALIZER: &str = "flexvol.dev/provisioning";

/// On a persistent volume: its storage has to be looked after before it goes.
pub const VOLUME_FINALIZER: &str = "flexvol.dev/storage";

/// On a NodeVolume: the controller has not forgotten it yet.
pub const NODE_VOLUME_FINALIZER: &str = "flexvol.dev/node-volume";

/// On a NodeVolume: the node, as [`node_label`] writes it, so that an agent watches its own alone.
pub const NODE_LABEL: &str = "flexvol.dev/node";

/// On a persistent volume, and on what the scheduler is told of room: we look after it.
pub const MANAGED: &str = "flexvol.dev/managed";

/// On a persistent volume: the name of the node that has its storage.
pub const NODE_ANNOTATION: &str = "flexvol.dev/node";

/// On a claim: who shall make its volume; the second is what it was called before 1.23.
pub const PROVISIONER: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

/// On a claim: its class, which goes before the field of its spec (`GetPersistentVolumeClaimClass` in
/// `pkg/apis/core/v1/helper`).
pub const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// On a claim: the node that the scheduler chose.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// On a pod of a stateful set: the revision of the set's template that it was made of
/// (`StatefulSetRevisionLabel`).
pub const REVISION: &str = "controller-revision-hash";

/// On a stateful set, followed by the name of a claim template: the size its claims shall have.
pub const GROW: &str = "grow.flexvol.dev/";

/// On a stateful set, after [`GROW`]: what may be done to its pods so that volumes grow which do not
/// while a pod uses them.
pub const OFFLINE: &str = "offline";

/// On a persistent volume: what is to be done for a claim that is made anew.
pub const RECOVERY: &str = "flexvol.dev/recovery";

/// On a storage class: no claim of it gets, or grows to, more than this size.
pub const LARGEST: &str = "flexvol.dev/largest";

/// A condition of a claim: kubelet has to grow the file system.
pub const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";

/// A condition of a claim: its storage did not grow. Kubernetes has the name since 1.31.
pub const FAILED: &str = "ControllerResizeError";

/// Why something about a claim's growth is told.
pub const RESIZE_FAILED: &str = "VolumeResizeFailed";

/// Of a node: the name that volumes are bound to.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// The name that volumes on a node are bound to, and that pods are sent there by: usually the node's own.
#[must_use]
pub fn hostname(labels: Option<&BTreeMap<String, String>>) -> Option<&str> {
    labels?.get(HOSTNAME).map(String::as_str)
}

/// Whether an object may have this name (`IsDNS1123Subdomain` in apimachinery). What strangers call
/// otherwise does not get into the path of a request.
#[must_use]
pub fn is_object_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().last()];
    name.len() <= 253
        && ends.into_iter().all(|end| end.is_some_and(is_plain))
        && name
            .bytes()
            .all(|byte| is_plain(byte) || b"-.".contains(&byte))
}

/// The name of the persistent volume and the NodeVolume of a claim.
#[must_use]
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// The UID of the claim that a persistent volume and a NodeVolume are named after.
#[must_use]
pub fn claim_uid(volume: &str) -> &str {
    volume.strip_prefix("pvc-").unwrap_or_default()
}

/// A node's name as a label's value: names may have 253 characters and values 63
/// (`validation.LabelValueMaxLength` in apimachinery), so a long one ends in its checksum.
#[must_use]
pub fn node_label(node: &str) -> String {
    if node.len() <= 63 {
        return node.to_owned();
    }
    let head: String = node.chars().take(46).collect();
    format!("{head}-{:016x}", checksum(node))
}

/// FNV-1a: stable over versions and machines, unlike the standard library's.
#[must_use]
pub fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_another_path_is_no_name() {
        for name in ["db", "pvc-1.a", "0"] {
            assert!(is_object_name(name), "{name}");
        }
        let long = "n".repeat(254);
        for name in ["", "?watch=true", "a/b", "..", "-a", "a.", "Db", &long] {
            assert!(!is_object_name(name), "{name}");
        }
    }

    #[test]
    fn a_long_node_name_becomes_a_label_of_its_own() {
        assert_eq!(node_label("node-1"), "node-1");
        let long = |last: &str| node_label(&format!("{}{last}", "n".repeat(80)));
        assert_eq!(long("a").len(), 63);
        assert_ne!(long("a"), long("b"));
    }
}
