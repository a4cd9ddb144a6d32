//! Answers to NodeVolumes, and how they are written.

use super::{bounds, callout::Callout, exec::Failure};
use crate::{
    api::v1alpha1::{NodeVolume, NodeVolumeStatus, StorageState, VolumeError, VolumeSource},
    client::{Refusal, refusal},
};
use anyhow::{Context, Result};
use flexvol_sdk::{DriverStatus, ErrorClass};
use kube::{Api, ResourceExt, api::PostParams};

/// Maximum number of attempts to write an answer to a NodeVolume that keeps changing.
const ATTEMPTS: usize = 5;

/// Writes the answer to a NodeVolume. Returns whether the NodeVolume's generation is unchanged. If it has changed
/// during the call, a success is written all the same, because only this agent knows what the driver made. The
/// observed generation marks it as an answer to the former request.
///
/// # Errors
/// When the write fails; a conflict, when the NodeVolume was replaced or the call failed, so that a retry starts from
/// the new state.
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
        // They were read in part, and the API server keeps them if they are not sent.
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

/// Builds the answer after a successful call.
pub(super) fn after_success(
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
            // A success without a size, or with a smaller one than requested, is no growth.
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

/// Builds the answer for a driver without `expandvolume`. `hopeless` says that growth was requested and kubelet cannot
/// grow the volume either.
pub(super) fn after_missing_expand(
    before: &NodeVolumeStatus,
    driver: &str,
    hopeless: bool,
) -> NodeVolumeStatus {
    if hopeless {
        let message = format!(
            "driver {driver} cannot grow its volumes: it has no expandvolume; make a claim of the size you need"
        );
        return after_failure(before, Failure::new(ErrorClass::Infeasible, message));
    }
    NodeVolumeStatus {
        state: Some(StorageState::Present),
        // The growth of the file system, if any, changes the size. Otherwise it is the initial one.
        size: None,
        error: None,
        failures: 0,
        ..before.clone()
    }
}

/// Removes the findings from an answer.
pub(super) fn without_findings(before: &NodeVolumeStatus) -> NodeVolumeStatus {
    NodeVolumeStatus {
        state: None,
        size: None,
        file_system_size: None,
        ..before.clone()
    }
}

/// Builds the answer after a failed call.
pub(super) fn after_failure(before: &NodeVolumeStatus, failure: Failure) -> NodeVolumeStatus {
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
        let hopeless = after_missing_expand(&before, "a/b", true);
        assert_eq!(hopeless.size, Some(10), "it has what it had");
        let problem = hopeless.error.unwrap();
        assert_eq!(problem.class, "infeasible");
        assert!(
            problem
                .message
                .contains("driver a/b cannot grow its volumes")
        );
        let later = after_missing_expand(&before, "a/b", false);
        assert_eq!(
            (later.state, later.size),
            (Some(StorageState::Present), None)
        );
        assert_eq!((later.error, later.failures), (None, 0));
    }
}
