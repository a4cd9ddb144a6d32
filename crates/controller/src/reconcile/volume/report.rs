//! Reports about a volume: events, log and metrics.

use super::context::Context;
use crate::{
    api::well_known::RESIZE_FAILED, claims::Step, events::EventType, k8s::volume,
    observe::VolumeObjects, support::log,
};
use flexvol_sdk::Bytes;

/// Reports a step that was applied, with the objects after it.
pub(super) fn done(context: &Context, name: &str, step: &Step, live: &VolumeObjects) {
    context.metrics.operated("step", "done");
    let claim = live.claim.as_ref().map(|claim| &claim.metadata);
    let volume = live.volume.as_ref().map(|volume| &volume.metadata);
    let node_volume = live
        .node_volume
        .as_ref()
        .map(|node_volume| &node_volume.metadata);
    for meta in [claim, volume, node_volume].into_iter().flatten() {
        context.own_writes.add(meta);
    }
    let claim = live.names().1;
    let (what, node, to) = words(step);
    log::info(
        "a step was applied",
        &[
            ("volume", name),
            ("claim", &claim),
            ("step", what),
            ("node", node),
            ("to", &to.map_or_else(String::new, |size| size.to_string())),
        ],
    );
    tell_done(context, live, step);
}

/// Names a step as the log does, with its node and its size.
fn words(step: &Step) -> (&'static str, &str, Option<Bytes>) {
    let plain = |word| (word, "", None);
    match step {
        Step::NoOp => plain("none"),
        Step::RecordEvent(_) => plain("record event"),
        Step::Refuse(_) => plain("refuse"),
        Step::Blocked(_) => plain("blocked"),
        Step::AddClaimFinalizer => plain("add claim finalizer"),
        Step::CreateNodeVolume { node } => (
            "create nodevolume",
            node.as_deref().unwrap_or_default(),
            None,
        ),
        Step::RecreateNodeVolume { size, .. } => ("recreate nodevolume", "", Some(*size)),
        Step::CreatePersistentVolume => plain("create persistentvolume"),
        Step::MarkPublishing => plain("mark publishing"),
        Step::MarkPublished => plain("mark published"),
        Step::RemoveClaimFinalizer => plain("remove claim finalizer"),
        Step::Reschedule => plain("reschedule"),
        Step::RequestDeletion => plain("request deletion"),
        Step::DeleteNodeVolume => plain("delete nodevolume"),
        Step::DeletePersistentVolume => plain("delete persistentvolume"),
        Step::RemovePersistentVolumeFinalizer => plain("remove persistentvolume finalizer"),
        Step::SetAllocatedResources(size) => ("set allocated resources", "", Some(*size)),
        Step::RequestSize(size) => ("request size", "", Some(*size)),
        Step::SetPersistentVolumeCapacity(size) => {
            ("set persistentvolume capacity", "", Some(*size))
        }
        Step::SetClaimCapacity(size) => ("set claim capacity", "", Some(*size)),
        Step::SetFileSystemResizePending(size) => {
            ("set filesystem resize pending", "", Some(*size))
        }
        Step::SetResizeFailure(_) => plain("set resize failure"),
        Step::ClearResizeFailure => plain("clear resize failure"),
    }
}

/// Reports what blocks a volume, as an event on the object that users look at, and in the log, because no event can be
/// written in a namespace that is being deleted.
pub(super) fn waits(context: &Context, live: &VolumeObjects, why: &str) {
    let (volume, claim) = live.names();
    log::warn(
        "a volume waits",
        &[("volume", &volume), ("claim", &claim), ("error", why)],
    );
    let volume = live.volume.as_ref();
    match (
        &live.claim,
        volume.filter(|found| volume::is_ours(found, &context.ours)),
    ) {
        (Some(claim), None) => {
            context
                .events
                .record(claim, EventType::Warning, "ProvisioningFailed", why);
        }
        (Some(claim), Some(_)) => {
            context
                .events
                .record(claim, EventType::Warning, RESIZE_FAILED, why);
        }
        (None, Some(volume)) => {
            context
                .events
                .record(volume, EventType::Warning, "VolumeFailedDelete", why);
        }
        (None, None) => {
            if let Some(node_volume) = &live.node_volume {
                context
                    .events
                    .record(node_volume, EventType::Warning, "StorageStays", why);
            }
        }
    }
}

fn tell_done(context: &Context, live: &VolumeObjects, step: &Step) {
    let Some(claim) = &live.claim else { return };
    let normal = |reason: &str, message: &str| {
        context
            .events
            .record(claim, EventType::Normal, reason, message);
    };
    match step {
        Step::CreatePersistentVolume => {
            normal("ProvisioningSucceeded", "storage and volume were made")
        }
        Step::SetClaimCapacity(size) => {
            normal("VolumeResizeSuccessful", &format!("the volume has {size}"));
        }
        Step::Reschedule => {
            normal("Rescheduling", &why_rescheduled(live));
        }
        _ => {}
    }
}

/// Returns why the scheduler is asked for another node.
fn why_rescheduled(live: &VolumeObjects) -> String {
    let unavailable = live.unavailable.as_ref().map(|node| node.why.as_str());
    let why = live.unable().or_else(|| unavailable.map(str::to_owned));
    match (why, live.persistent_problem(), &live.node_volume) {
        (Some(why), ..) => why,
        (None, Some(problem), Some(node_volume)) => format!(
            "node {} failed again and again to make the volume: {}",
            node_volume.spec.node, problem.message
        ),
        _ => "the node that the scheduler chose has no room for the volume".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::NodeVolume;
    use serde_json::{from_value, json};

    #[test]
    fn another_node_is_asked_for_in_the_words_of_the_driver_that_failed() {
        let why = |class: &str, failures: u32| {
            let node_volume: NodeVolume = from_value(json!({
                "apiVersion": NodeVolume::api_version(), "kind": "NodeVolume",
                "metadata": {"name": "pvc-1"},
                "spec": {
                    "driver": "a/b", "node": "n", "state": "Present", "size": 1,
                    "claim": {"namespace": "ns", "name": "data", "uid": "1"},
                },
                "status": {
                    "failures": failures, "observedGeneration": 1,
                    "error": {"class": class, "message": "the array does not answer"},
                },
            }))
            .unwrap();
            why_rescheduled(&VolumeObjects {
                node_volume: Some(node_volume),
                ..VolumeObjects::default()
            })
        };
        assert_eq!(
            why("retryable", 5),
            "node n failed again and again to make the volume: the array does not answer"
        );
        assert!(why("exhausted", 1).ends_with("has no room for the volume"));
    }
}
