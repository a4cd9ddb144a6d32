//! Arguments of driver calls, as kubelet passes them.

use super::callout::{Callout, made};
use crate::api::v1alpha1::{NodeVolumeSpec, NodeVolumeStatus};
use flexvol_sdk::Bytes;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Returns the arguments of a callout for the volume of this name, or `None` for no callout.
#[must_use]
pub fn arguments(
    callout: &Callout,
    name: &str,
    node_volume: &NodeVolumeSpec,
    answer: &NodeVolumeStatus,
) -> Option<Vec<String>> {
    let mut json = Map::new();
    let known = made(node_volume, answer);
    let options = match callout {
        Callout::Nothing => return None,
        Callout::Provision => Some(&node_volume.parameters),
        Callout::Expand { .. } => known.map(|made| &made.options),
        // Storage that the driver may have made is where the parameters said.
        Callout::Delete => Some(known.map_or(&node_volume.parameters, |made| &made.options)),
    };
    for (key, value) in options.into_iter().flatten() {
        json.insert(key.clone(), json!(value));
    }
    let fs_type = known.and_then(|made| made.fs_type.as_deref());
    let mut put =
        |key: &str, value: String| json.insert(format!("kubernetes.io/{key}"), json!(value));
    put("pvOrVolumeName", name.to_owned());
    // Their presence also tells a driver that its options are parameters.
    if *callout == Callout::Provision || (*callout == Callout::Delete && known.is_none()) {
        put("pvc.namespace", node_volume.claim.namespace.clone());
        put("pvc.name", node_volume.claim.name.clone());
        put("pvc.uid", node_volume.claim.uid.clone());
    }
    Some(match callout {
        Callout::Nothing => return None,
        Callout::Provision => {
            let size = node_volume.size;
            json.insert("requestBytes".to_owned(), json!(size.to_string()));
            for (key, unit) in [("requestMiB", Bytes::MIB), ("requestGiB", Bytes::GIB)] {
                json.insert(key.to_owned(), json!(size.div_ceil(unit.0).to_string()));
            }
            vec!["provision".to_owned(), Value::Object(json).to_string()]
        }
        Callout::Delete => vec!["delete".to_owned(), Value::Object(json).to_string()],
        Callout::Expand { new, old } => {
            put("readwrite", "rw".to_owned());
            put("fsType", fs_type.unwrap_or_default().to_owned());
            let dir = Path::new("/var/lib/kubelet/plugins/kubernetes.io/flexvolume")
                .join(&node_volume.driver)
                .join("mounts")
                .join(name);
            vec![
                "expandvolume".to_owned(),
                Value::Object(json).to_string(),
                dir.display().to_string(),
                new.to_string(),
                old.to_string(),
            ]
        }
    })
}

/// Returns the arguments of `expandfs`, as kubelet passes them. They follow from those of the `expandvolume` that
/// reached this size. `dir` is the mount point in the pod's directory.
#[must_use]
pub fn of_file_system(of_storage: &[String], dir: &Path, new: Bytes) -> Option<Vec<String>> {
    let [_, options, _, _, old] = of_storage else {
        return None;
    };
    let (dir, device) = (dir.to_str()?.to_owned(), String::new());
    let (options, old) = (options.clone(), old.clone());
    Some(vec![
        "expandfs".to_owned(),
        options,
        device,
        dir,
        new.0.to_string(),
        old,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_volume(wanted: &str, size: u64, parameters: Value) -> NodeVolumeSpec {
        let node_volume = json!({
            "driver": "a/b", "node": "n", "state": wanted, "size": size,
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
            "parameters": parameters,
        });
        serde_json::from_value(node_volume).unwrap()
    }

    #[test]
    fn what_is_deleted_is_named_as_when_it_was_made_whoever_claims_it_since() {
        let mut node_volume = node_volume("Absent", 1, json!({"pool": "default", "fsType": "xfs"}));
        node_volume.source =
            Some(serde_json::from_value(json!({"options": {"handle": "old"}})).unwrap());
        let json = |answer: &NodeVolumeStatus| {
            let arguments = arguments(&Callout::Delete, "pvc-0", &node_volume, answer).unwrap();
            serde_json::from_str::<Value>(&arguments[1]).unwrap()
        };
        let name = "kubernetes.io/pvOrVolumeName";
        let nothing = NodeVolumeStatus::default();
        assert_eq!(json(&nothing), json!({"handle": "old", name: "pvc-0"}));
        let answer = serde_json::from_value(json!({"source": {"options": {"handle": "new"}}}));
        assert_eq!(
            json(&answer.unwrap()),
            json!({"handle": "new", name: "pvc-0"})
        );
    }

    #[test]
    fn what_may_have_been_made_is_deleted_where_it_would_have_been_made() {
        let node_volume = node_volume("Absent", 1, json!({"pool": "fast", "fsType": "xfs"}));
        let unknown = NodeVolumeStatus::default();
        let arguments = arguments(&Callout::Delete, "pvc-1", &node_volume, &unknown).unwrap();
        let told: Value = serde_json::from_str(&arguments[1]).unwrap();
        let expected = json!({
            "pool": "fast",
            "fsType": "xfs",
            "kubernetes.io/pvOrVolumeName": "pvc-1",
            "kubernetes.io/pvc.namespace": "ns",
            "kubernetes.io/pvc.name": "data",
            "kubernetes.io/pvc.uid": "1",
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn a_size_is_asked_for_in_three_units() {
        let node_volume = node_volume("Present", (1 << 30) + 1, json!({"pool": "default"}));
        let arguments = arguments(
            &Callout::Provision,
            "pvc-1",
            &node_volume,
            &NodeVolumeStatus::default(),
        );
        let arguments = arguments.unwrap();
        let json: Value = serde_json::from_str(&arguments[1]).unwrap();
        assert_eq!(json["requestBytes"], "1073741825");
        assert_eq!(json["requestMiB"], "1025");
        assert_eq!(json["requestGiB"], "2");
        assert_eq!(json["pool"], "default");
        assert_eq!(json["kubernetes.io/pvc.namespace"], "ns");
    }
}
