//! Nodes: whether a pod could start on one.

use super::pod::Toleration;
use crate::client::Read;
use k8s_openapi::api::core::v1::{Node, Taint};

/// The taint by which Kubernetes marks a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Whether the node's `Ready` condition is not true.
pub(crate) fn is_unready(node: &Node) -> bool {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status != "True")
}

/// The reason for a node that was read in part: taints may be among the unread part.
pub(crate) const TOO_LARGE: &str = "is too large to be understood; take labels and taints from it";

/// Whether the node is cordoned.
pub(crate) fn is_cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.is_some_and(|spec| spec.unschedulable == Some(true))
}

/// Taints that keep out pods without a toleration.
pub(crate) fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let all = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
    all.filter(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"))
}

/// Returns why a pod with these tolerations could not start on the node.
pub(crate) fn keeps_out(node: Option<&Read<Node>>, tolerated: &[Toleration]) -> Option<String> {
    let Some(Read {
        object: node,
        is_truncated,
    }) = node
    else {
        return Some("is not in the cluster any more".to_owned());
    };
    if *is_truncated {
        return Some(TOO_LARGE.to_owned());
    }
    if is_unready(node) {
        return Some("is not ready".to_owned());
    }
    let tolerates = |taint: &Taint| tolerated.iter().any(|each| each.covers(taint));
    // The taint may be added later than the field (the scheduler's plugin `NodeUnschedulable` does the same).
    let cordon = Taint {
        key: UNSCHEDULABLE.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if is_cordoned(node) && !tolerates(&cordon) {
        return Some("is cordoned".to_owned());
    }
    let untolerated = taints(node).find(|taint| !tolerates(taint))?;
    Some(format!(
        "has the taint {}, which the pod does not tolerate",
        untolerated.key
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    #[test]
    fn a_pod_starts_where_nothing_keeps_it_out_that_it_does_not_tolerate() {
        let on = |spec: Value, ready: &str, tolerated: Value| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let node = json!({"metadata": {}, "spec": spec, "status": {"conditions": conditions}});
            let node: Read<Node> = from_value(node).unwrap();
            let tolerated: Vec<Toleration> = from_value(tolerated).unwrap();
            keeps_out(Some(&node), &tolerated)
        };
        let none = || json!([]);
        assert_eq!(on(json!({}), "True", none()), None);
        assert_eq!(on(json!({}), "False", none()).unwrap(), "is not ready");
        let cordoned = || json!({"unschedulable": true});
        assert_eq!(on(cordoned(), "True", none()).unwrap(), "is cordoned");
        let anything = || json!([{"operator": "Exists"}]);
        assert_eq!(on(cordoned(), "True", anything()), None);
        let tainted =
            |effect: &str| json!({"taints": [{"key": "own", "value": "a", "effect": effect}]});
        assert_eq!(on(tainted("PreferNoSchedule"), "True", none()), None);
        for effect in ["NoSchedule", "NoExecute"] {
            let of = |tolerated: Value| on(tainted(effect), "True", tolerated);
            assert!(of(none()).unwrap().starts_with("has the taint own,"));
            assert_eq!(of(anything()), None);
            let own = |value: &str| json!([{"key": "own", "value": value}]);
            assert_eq!(of(own("a")), None);
            assert!(of(own("b")).is_some());
            let by_key = json!([{"key": "own", "operator": "Exists", "effect": effect}]);
            assert_eq!(of(by_key), None);
            let of_others = json!([
                {"key": "other", "operator": "Exists"},
                {"key": "own", "operator": "Exists", "effect": "PreferNoSchedule"},
            ]);
            assert!(of(of_others).is_some());
        }
        assert!(keeps_out(None, &[]).is_some());
        let cut = json!({"metadata": {}, "cut": true});
        let cut: Read<Node> = from_value(cut).unwrap();
        assert!(keeps_out(Some(&cut), &[]).is_some());
    }
}
