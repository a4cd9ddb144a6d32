//! Check before a deletion: storage that is in use, or has to stay, is never deleted, whatever a NodeVolume requests.

use crate::{
    api::{
        v1alpha1::{ClaimReference, NodeVolume, StorageState},
        well_known::claim_uid,
    },
    claims::{Observed, Published},
    drivers::ServedDrivers,
    k8s::volume::handed_on,
    observe,
};
use anyhow::{Context, Result};
use kube::{Api, Client};

/// Returns why storage must not be deleted, whatever the NodeVolume requests.
pub(super) async fn deletion_forbidden(
    client: &Client,
    ours: &ServedDrivers,
    name: &str,
    node_volume: &NodeVolume,
) -> Result<Option<&'static str>> {
    let ClaimReference {
        namespace,
        name: claim,
        ..
    } = &node_volume.spec.claim;
    let place = (namespace.clone(), claim.clone());
    let ours = &ours.only(&node_volume.spec.driver);
    let (read, known) = (node_volume.clone(), Some(place.clone()));
    let live = observe::read_with(client, name, Some(read), known, ours).await?;
    let mut moments = vec![live.observed(name, ours)];
    // The volume was handed on to another claim, and pods of both may use it.
    if live.volume.as_ref().and_then(handed_on).is_some() {
        let claim = observe::read_claim(client, claim_uid(name), &place).await?;
        let mut live = live;
        live.put_claim(claim);
        moments.push(live.observed(name, ours));
    }
    // Read after the volume. A retained volume goes after its NodeVolume, so the absence of a volume proves nothing
    // unless the NodeVolume still exists afterwards.
    let node_volumes: Api<NodeVolume> = Api::all(client.clone());
    let now = node_volumes
        .get_opt(name)
        .await
        .context("read the NodeVolume again")?;
    if !now.is_some_and(|now| still_wants(&now, node_volume)) {
        return Ok(Some(
            "the NodeVolume has changed, so the storage is not deleted",
        ));
    }
    Ok(moments.iter().find_map(in_use))
}

/// Whether a NodeVolume still requests the deletion. If it is being deleted itself, it still waits for that.
fn still_wants(now: &NodeVolume, node_volume: &NodeVolume) -> bool {
    now.metadata.uid == node_volume.metadata.uid && now.spec.state == StorageState::Absent
}

/// Returns why the storage of a volume must not be deleted.
fn in_use(observed: &Observed) -> Option<&'static str> {
    // The storage never was a volume's: the volume of its name was made, and is used, on another node.
    if let (Some(volume), Some(node_volume)) = (&observed.volume, &observed.node_volume)
        && volume.is_elsewhere(node_volume)
        && volume.ours
        && node_volume.published != Published::Seen
    {
        return None;
    }
    if observed.is_claimed() {
        return Some("a claim has the volume, whose storage is therefore not deleted");
    }
    let volume = observed.volume.as_ref()?;
    if !volume.ours {
        return Some("the persistent volume is somebody else's, so its storage is not deleted");
    }
    if volume.reclaim != crate::claims::Reclaim::Delete {
        return Some("the persistent volume says Retain, so its storage is not deleted");
    }
    (!volume.released && !volume.deleting)
        .then_some("the persistent volume is not released, so its storage is not deleted")
}
