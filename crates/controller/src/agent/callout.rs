//! The callout that a NodeVolume demands: a pure function of the NodeVolume and of the last answer.

use crate::{
    api::v1alpha1::{NodeVolumeSpec, NodeVolumeStatus, StorageState, VolumeSource},
    claims::believed,
};
use flexvol_sdk::Bytes;

/// A call to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callout {
    /// No call: the storage is as requested.
    Nothing,
    /// `provision`, which is idempotent: it finds existing storage.
    Provision,
    /// `expandvolume` from the old to the new size. Equal sizes only measure.
    Expand {
        /// In bytes.
        new: u64,
        /// In bytes.
        old: u64,
    },
    /// `delete`.
    Delete,
}

/// Returns the next callout.
#[must_use]
pub fn next_callout(node_volume: &NodeVolumeSpec, answer: &NodeVolumeStatus) -> Callout {
    match (node_volume.state, answer.state) {
        (StorageState::Absent, Some(StorageState::Absent)) => Callout::Nothing,
        (StorageState::Absent, _) => Callout::Delete,
        // Data may have been there, and an empty volume in their place would hide the loss.
        (StorageState::Present, None | Some(StorageState::Absent))
            if node_volume.publishing || node_volume.published =>
        {
            Callout::Expand {
                new: node_volume.size,
                old: node_volume.size,
            }
        }
        (StorageState::Present, None | Some(StorageState::Absent)) => Callout::Provision,
        (StorageState::Present, Some(StorageState::Present)) => match answer.size {
            Some(has) if has < node_volume.size => Callout::Expand {
                new: node_volume.size,
                old: has,
            },
            _ => Callout::Nothing,
        },
    }
}

/// Like [`next_callout`], if it is known whether the answer is for the current generation. Some sizes are measured again,
/// once after each change of the NodeVolume, or again if that failed: an implausible one, which must not prevent growth,
/// and one below the largest that was ever ordered, which a former call may have reached since.
#[must_use]
pub fn due_callout(
    node_volume: &NodeVolumeSpec,
    answer: &NodeVolumeStatus,
    is_answered: bool,
) -> Callout {
    let most = node_volume.max_requested_size();
    let is_due = || match answer.size.map(Bytes) {
        Some(said) => {
            (!is_answered || answer.error.is_some())
                && (said < most || believed(said, Bytes(node_volume.size), most) != said)
        }
        // A newer version of the driver may tell sizes.
        None => node_volume.published && !is_answered,
    };
    match next_callout(node_volume, answer) {
        Callout::Nothing if node_volume.state == StorageState::Present && is_due() => {
            Callout::Expand {
                new: node_volume.size,
                old: node_volume.size,
            }
        }
        callout => callout,
    }
}

/// Returns the size that counts of storage that has just grown for a published volume. Its file system has to follow.
#[must_use]
pub fn expanded_size(
    callout: &Callout,
    node_volume: &NodeVolumeSpec,
    answer: &NodeVolumeStatus,
) -> Option<Bytes> {
    let grew = matches!(callout, Callout::Expand { .. }) && answer.error.is_none();
    let said = answer.size.filter(|_| grew && node_volume.published)?;
    let (ordered, most) = (Bytes(node_volume.size), node_volume.max_requested_size());
    Some(believed(Bytes(said), ordered, most))
}

/// What identifies the storage, as far as it is known.
#[must_use]
pub fn made<'a>(
    node_volume: &'a NodeVolumeSpec,
    answer: &'a NodeVolumeStatus,
) -> Option<&'a VolumeSource> {
    answer.source.as_ref().or(node_volume.source.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::VolumeError;
    use serde_json::{from_value, json};

    fn node_volume(wanted: StorageState, size: u64, published: bool) -> NodeVolumeSpec {
        from_value(json!({
            "driver": "a/b", "node": "n", "state": wanted, "size": size, "published": published,
            "claim": {"namespace": "default", "name": "data", "uid": "1"},
        }))
        .unwrap()
    }

    fn answer(state: Option<StorageState>, size: Option<u64>) -> NodeVolumeStatus {
        NodeVolumeStatus {
            state,
            size,
            ..NodeVolumeStatus::default()
        }
    }

    #[test]
    fn storage_is_made_once_grown_only_upwards_and_deleted_only_on_order() {
        let present = Some(StorageState::Present);
        let wanted = |size| node_volume(StorageState::Present, size, false);
        assert_eq!(
            next_callout(&wanted(2), &answer(None, None)),
            Callout::Provision
        );
        assert_eq!(
            next_callout(&wanted(2), &answer(present, Some(2))),
            Callout::Nothing
        );
        assert_eq!(
            next_callout(&wanted(1), &answer(present, Some(2))),
            Callout::Nothing
        );
        let grow = Callout::Expand { new: 3, old: 2 };
        assert_eq!(next_callout(&wanted(3), &answer(present, Some(2))), grow);
        // The driver reports no sizes: the growth of the file system has to grow the storage.
        assert_eq!(
            next_callout(&wanted(3), &answer(present, None)),
            Callout::Nothing
        );
        let gone = node_volume(StorageState::Absent, 2, true);
        assert_eq!(
            next_callout(&gone, &answer(present, Some(2))),
            Callout::Delete
        );
        assert_eq!(next_callout(&gone, &answer(None, None)), Callout::Delete);
        assert_eq!(
            next_callout(&gone, &answer(Some(StorageState::Absent), None)),
            Callout::Nothing
        );
    }

    #[test]
    fn storage_that_may_have_had_data_is_looked_for_and_not_made_again() {
        let measure = Callout::Expand { new: 2, old: 2 };
        let node_volume = node_volume(StorageState::Present, 2, true);
        assert_eq!(next_callout(&node_volume, &answer(None, None)), measure);
        assert_eq!(
            next_callout(&node_volume, &answer(Some(StorageState::Absent), None)),
            measure
        );
    }

    #[test]
    fn a_size_that_nothing_explains_is_measured_once_after_each_change() {
        let node_volume = node_volume(StorageState::Present, 20, true);
        let of = |size: u64, is_answered: bool| {
            due_callout(
                &node_volume,
                &answer(Some(StorageState::Present), Some(size)),
                is_answered,
            )
        };
        let measure = Callout::Expand { new: 20, old: 20 };
        assert_eq!(of(u64::MAX / 2, false), measure);
        assert_eq!(of(u64::MAX / 2, true), Callout::Nothing);
        assert_eq!(of(25, false), Callout::Nothing, "drivers round up");
        assert_eq!(of(10, false), Callout::Expand { new: 20, old: 10 });
    }

    #[test]
    fn what_a_former_larger_order_may_have_reached_is_measured_until_that_succeeds() {
        let mut node_volume = node_volume(StorageState::Present, 20, true);
        let present = |size: u64| answer(Some(StorageState::Present), Some(size));
        let measure = Callout::Expand { new: 20, old: 20 };
        node_volume.max_requested_size = Some(100);
        assert_eq!(due_callout(&node_volume, &present(20), false), measure);
        assert_eq!(
            due_callout(&node_volume, &present(20), true),
            Callout::Nothing
        );
        assert_eq!(
            due_callout(&node_volume, &present(100), false),
            Callout::Nothing
        );
        let mut failed = present(20);
        failed.error = Some(VolumeError {
            class: "retryable".to_owned(),
            message: "busy".to_owned(),
        });
        assert_eq!(due_callout(&node_volume, &failed, true), measure);
    }
}
