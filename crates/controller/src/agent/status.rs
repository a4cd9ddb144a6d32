//! What a node answers to a NodeVolume, and how its answer gets there.

use super::{bounds, callout::Callout, exec::Failure};
use crate::{
    api::v1alpha1::{NodeVolume, NodeVolumeStatus, StorageState, VolumeError, VolumeSource},
    client::{Refusal, refusal},
};
use anyhow::{Context, Result};
use flexvol_sdk::{DriverStatus, ErrorClass};
use kube::{Api, ResourceExt, api::PostParams};

/// How often an answer is written to a NodeVolume that changes again and again.
const ATTEMPTS: usize = 5;

/// Writes the answer to a NodeVolume, and says whether the NodeVolume is still the one that was read. Of one that
/// has changed while the driver worked, what the driver did is told all the same: nobody else could say
/// what was made, and the generation in the answer says that it is one to the former request.
///
/// # Errors
/// When it is not written; a conflict, when the NodeVolume is another one or the call failed, so that whoever
/// tries again finds the rest out.
pub(super) async fn record(
    node_volumes: &Api<NodeVolume>,
    read: &NodeVolume,
    answer: &NodeVolumeStatus,
) -> Result<bool> {
    let (name, write) = (read.name_any(), PostParams::default());
    let mut node_volume = read.clone();
    let mut attempts = 1;
    loop {
        node_volume.status = Some(answer.clone());
        // Little of them is read, and the API server keeps those that nobody sends.
        node_volume.metadata.managed_fields = None;
        let written = node_volumes
            .replace_status(&name, &write, &node_volume)
            .await;
        let error = match written {
            Ok(_) => return Ok(node_volume.metadata.generation == read.metadata.generation),
            Err(error) => error,
        };
        let is_told_anyway = answer.error.is_none() && attempts < ATTEMPTS;
        if refusal(&error) != Refusal::Changed || !is_told_anyway {
            return Err(error).context("answer in the NodeVolume");
        }
        let live = node_volumes.get_opt(&name).await;
        match live.context("read the NodeVolume that has changed")? {
            Some(live) if live.metadata.uid == read.metadata.uid => node_volume = live,
            _ => return Err(error).context("answer in the NodeVolume"),
        }
        attempts += 1;
    }
}

/// The answer after a call that succeeded.
pub(super) fn succeeded(
    callout: &Callout,
    before: &NodeVolumeStatus,
    reply: DriverStatus,
) -> NodeVolumeStatus {
    let mut after = NodeVolumeStatus {
        error: None,
        failures: 0,
        ..before.clone()
    };
    match callout {
        Callout::Nothing => {}
        Callout::Provision => {
            after.state = Some(StorageState::Present);
            after.file_system_size = None;
            after.size = reply.capacity.map(bounds::size);
            after.source = Some(VolumeSource {
                options: reply.options,
                fs_type: reply.fs_type,
            });
        }
        Callout::Expand { new, .. } => {
            after.state = Some(StorageState::Present);
            let reached = reply.volume_new_size.map(bounds::size);
            // Success without a size, and with less than was asked for, is no growth.
            after.size = reached.or(before.size);
            if after.size.is_some_and(|size| size < *new) {
                let problem = VolumeError {
                    class: ErrorClass::Retryable.as_str().to_owned(),
                    message: format!(
                        "the driver says that it grew the volume, and not that it reached {new} bytes"
                    ),
                };
                after.error = Some(problem);
                after.failures = before.failures.saturating_add(1);
            }
        }
        Callout::Delete => {
            after.state = Some(StorageState::Absent);
            (after.size, after.file_system_size) = (None, None);
        }
    }
    after
}

/// The answer of a driver that has no `expandvolume`, and whether growth was asked of it that nobody else
/// does either.
pub(super) fn ungrown(before: &NodeVolumeStatus, driver: &str, hopeless: bool) -> NodeVolumeStatus {
    if hopeless {
        let message = format!(
            "driver {driver} cannot grow its volumes: it has no expandvolume; make a claim of the size you need"
        );
        return failed(before, Failure::new(ErrorClass::Infeasible, message));
    }
    NodeVolumeStatus {
        state: Some(StorageState::Present),
        // Its file system grows it, or nobody does; then it is what it was when it was made.
        size: None,
        error: None,
        failures: 0,
        ..before.clone()
    }
}

/// The same answer, without what was found.
pub(super) fn unknown(before: &NodeVolumeStatus) -> NodeVolumeStatus {
    NodeVolumeStatus {
        state: None,
        size: None,
        file_system_size: None,
        ..before.clone()
    }
}

/// The answer after a call that failed.
pub(super) fn failed(before: &NodeVolumeStatus, failure: Failure) -> NodeVolumeStatus {
    NodeVolumeStatus {
        error: Some(VolumeError {
            class: failure.class.as_str().to_owned(),
            message: bounds::message(&failure.message),
        }),
        failures: before.failures.saturating_add(1),
        ..before.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_cannot_grow_volumes_says_so_only_where_nobody_else_does() {
        let before = NodeVolumeStatus {
            state: Some(StorageState::Present),
            size: Some(10),
            ..NodeVolumeStatus::default()
        };
        let hopeless = ungrown(&before, "a/b", true);
        assert_eq!(hopeless.size, Some(10), "it has what it had");
        let problem = hopeless.error.unwrap();
        assert_eq!(problem.class, "infeasible");
        assert!(
            problem
                .message
                .contains("driver a/b cannot grow its volumes")
        );
        let later = ungrown(&before, "a/b", false);
        assert_eq!(
            (later.state, later.size),
            (Some(StorageState::Present), None)
        );
        assert_eq!((later.error, later.failures), (None, 0));
    }
}
