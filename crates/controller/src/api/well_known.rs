//! Well-known names in a cluster. Stored objects contain them, so they never change.

pub use flexvol_claims::PROVISIONED_BY;

use std::collections::BTreeMap;

/// The API group of our objects, and the domain of our annotations, labels and finalizers.
pub const DOMAIN: &str = "flexvol.dev";

/// The API version of our objects.
pub const VERSION: &str = "v1alpha1";

/// The name under which the controller reports, for example in events.
pub const CONTROLLER: &str = "flexvol-controller";

/// Finalizer of a claim while storage is made for it.
pub const CLAIM_FINALIZER: &str = "flexvol.dev/provisioning";

/// Finalizer of a persistent volume: its storage has to be handled before it goes.
pub const VOLUME_FINALIZER: &str = "flexvol.dev/storage";

/// Finalizer of a NodeVolume until the controller has finished with it.
pub const NODE_VOLUME_FINALIZER: &str = "flexvol.dev/node-volume";

/// Label of a NodeVolume: its node, as [`node_label`] writes it, so that an agent watches only its own.
pub const NODE_LABEL: &str = "flexvol.dev/node";

/// Label of persistent volumes and CSIStorageCapacities that the controller manages.
pub const MANAGED: &str = "flexvol.dev/managed";

/// Annotation of a persistent volume: the node that has its storage.
pub const NODE_ANNOTATION: &str = "flexvol.dev/node";

/// Annotation of a claim: its provisioner. The second name was used before 1.23.
pub const PROVISIONER: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

/// Annotation of a claim: its class, which takes precedence over the field of its spec
/// (`GetPersistentVolumeClaimClass` in `pkg/apis/core/v1/helper`).
pub const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Annotation of a claim: the node that the scheduler selected.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Label of a stateful set's pod: the revision of the template from which the pod was created
/// (`StatefulSetRevisionLabel`).
pub const REVISION: &str = "controller-revision-hash";

/// Annotation of a stateful set, followed by the name of a claim template: the size that its claims shall have.
pub const GROW: &str = "grow.flexvol.dev/";

/// Suffix of [`GROW`] in an annotation of a stateful set: what may be done to its pods for volumes that grow only
/// while no pod uses them.
pub const OFFLINE: &str = "offline";

/// Annotation of a persistent volume: the state of a recovery that recreates its claim.
pub const RECOVERY: &str = "flexvol.dev/recovery";

/// Annotation of a storage class: the largest size of its claims, also after growth.
pub const LARGEST: &str = "flexvol.dev/largest";

/// Annotation of a storage class: the namespaces, separated by commas, whose claims get volumes of it.
pub const NAMESPACES: &str = "flexvol.dev/namespaces";

/// Condition of a claim: kubelet has to grow the file system.
pub const FILE_SYSTEM_RESIZE_PENDING: &str = "FileSystemResizePending";

/// Resize status of a claim: its storage grows, and then its file system.
pub const CONTROLLER_RESIZE_IN_PROGRESS: &str = "ControllerResizeInProgress";

/// Condition of a claim: its storage did not grow. Kubernetes has used this name since 1.31.
pub const FAILED: &str = "ControllerResizeError";

/// Reason of events about a claim's growth that failed.
pub const RESIZE_FAILED: &str = "VolumeResizeFailed";

/// Label of a node: the hostname to which volumes are bound.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// The hostname to which a node's volumes are bound and by which pods are scheduled there: usually the node's name.
#[must_use]
pub fn hostname(labels: Option<&BTreeMap<String, String>>) -> Option<&str> {
    labels?.get(HOSTNAME).map(String::as_str)
}

/// Whether an object may have this name (`IsDNS1123Subdomain` in apimachinery). Untrusted names must not become paths.
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

/// Whether Kubernetes keeps the name of an option for itself, so that no persistent volume may have it
/// (`validateFlexPersistentVolumeSource` in pkg/apis/core/validation).
#[must_use]
pub fn is_reserved_option(name: &str) -> bool {
    let namespace = name
        .split_once('/')
        .map_or(name, |(namespace, _)| namespace);
    // One character for each, as Go does: `İ` is an `i` there.
    let lower = namespace
        .chars()
        .filter_map(|one| one.to_lowercase().next());
    let lower: String = ".".chars().chain(lower).collect();
    [".kubernetes.io", ".k8s.io"]
        .iter()
        .any(|reserved| lower.ends_with(reserved))
}

/// Returns the name of the persistent volume and of the NodeVolume of a claim.
#[must_use]
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// Returns the UID of the claim after which a persistent volume and a NodeVolume are named.
#[must_use]
pub fn claim_uid(volume: &str) -> &str {
    volume.strip_prefix("pvc-").unwrap_or_default()
}

/// Returns a node's name as a label's value. Names may have 253 characters and values 63
/// (`validation.LabelValueMaxLength` in apimachinery), so a long name is truncated and ends in its checksum.
#[must_use]
pub fn node_label(node: &str) -> String {
    if node.len() <= 63 {
        return node.to_owned();
    }
    let head: String = node.chars().take(46).collect();
    format!("{head}-{:016x}", checksum(node))
}

/// FNV-1a checksum: stable over versions and machines, unlike the standard library's hash.
#[must_use]
pub fn checksum(text: &str) -> u64 {
    text.bytes().fold(NO_BYTES, checksum_with)
}

/// The checksum of an empty text.
pub(crate) const NO_BYTES: u64 = 0xcbf2_9ce4_8422_2325;

/// The checksum of a text with this checksum and one more byte.
pub(crate) fn checksum_with(sum: u64, byte: u8) -> u64 {
    (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
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
    fn an_option_that_no_volume_may_have_is_known_by_its_namespace_as_kubernetes_knows_it() {
        for name in [
            "kubernetes.io/x",
            "kubernetes.io",
            "k8s.io/",
            "a.b.k8s.io/c/d",
            "Storage.Kubernetes.IO/x",
            "\u{212a}ubernetes.\u{130}o/x",
        ] {
            assert!(is_reserved_option(name), "{name}");
        }
        for name in [
            "",
            "pool",
            "mykubernetes.io/x",
            "x/kubernetes.io",
            "k8s.io.example.com/x",
        ] {
            assert!(!is_reserved_option(name), "{name}");
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
