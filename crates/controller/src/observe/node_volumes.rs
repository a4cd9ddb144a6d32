//! NodeVolumes, reduced to what decisions need.

use crate::{
    api::{
        v1alpha1::{NodeVolume, StorageState},
        well_known::is_reserved_option,
    },
    claims::{self, Answer, Problem, Published},
    drivers::ServedDrivers,
};
use flexvol_sdk::Bytes;

/// Consecutive failures, half a minute of the agent's backoff, after which another node may do better.
pub(super) const PERSISTENT_AFTER: u32 = 5;

pub(crate) fn node_volume_of(node_volume: &NodeVolume, ours: &ServedDrivers) -> claims::NodeVolume {
    let status = node_volume.status.clone().unwrap_or_default();
    // An answer to an earlier generation tells the storage's state, but not why the current request fails.
    let current = Some(status.observed_generation) == node_volume.metadata.generation;
    claims::NodeVolume {
        ours: ours.has(&node_volume.spec.driver),
        node: node_volume.spec.node.clone(),
        desired: node_volume.spec.state,
        size: Bytes(node_volume.spec.size),
        max_requested_size: node_volume.spec.max_requested_size(),
        published: match (node_volume.spec.publishing, node_volume.spec.published) {
            (_, true) => Published::Seen,
            (true, false) => Published::Soon,
            (false, false) => Published::No,
        },
        answer: match status.state {
            None => Answer::None,
            Some(StorageState::Present) => Answer::Present(status.size.map(Bytes)),
            Some(StorageState::Absent) => Answer::Absent,
        },
        rejected: rejected(node_volume),
        answered: current,
        // Set by the caller if it has read the class.
        outdated: false,
        problem: status.error.filter(|_| current).map(|problem| Problem {
            class: problem.class(),
            message: problem.message,
            is_persistent: status.failures >= PERSISTENT_AFTER,
        }),
        node_expansion_required: status.node_expansion_required,
        file_system_size: status.file_system_size.map(Bytes),
    }
}

/// Returns why no persistent volume can have the answer about existing storage. Agents refuse such an answer of their
/// driver, but an agent may be old, or lie.
pub(super) fn rejected(node_volume: &NodeVolume) -> Option<String> {
    let (spec, status) = (&node_volume.spec, node_volume.status.as_ref()?);
    let made = status.source.as_ref();
    let made = made.filter(|_| status.state == Some(StorageState::Present))?;
    let mut names = made.options.keys();
    let name = names.find(|name| is_reserved_option(name))?;
    Some(format!(
        "driver {} on node {} answered option {name:?}, whose name Kubernetes keeps for itself, so no volume can have it",
        spec.driver, spec.node
    ))
}
