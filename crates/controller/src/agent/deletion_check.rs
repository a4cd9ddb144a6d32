//! Why storage is not deleted though a NodeVolume says so: what is in use, or shall stay, is not ours to take.

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

/// Why storage must not be deleted, whatever the NodeVolume says.
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
    // One that is another claim's since may be used by pods of both.
    if live.volume.as_ref().and_then(handed_on).is_some() {
        let claim = observe::read_claim(client, claim_uid(name), &place).await?;
        let mut live = live;
        live.put_claim(claim);
        moments.push(live.observed(name, ours));
    }
    // After the volume: one that says Retain goes when its NodeVolume has gone, so a volume that is not there
    // says nothing about its storage unless the NodeVolume is there afterwards.
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

/// One that somebody deleted waits for its storage to be deleted, so it still wants that.
fn still_wants(now: &NodeVolume, node_volume: &NodeVolume) -> bool {
    now.metadata.uid == node_volume.metadata.uid && now.spec.state == StorageState::Absent
}

/// Why the storage of a volume must not be deleted.
fn in_use(observed: &Observed) -> Option<&'static str> {
    // It was never a volume's: that of its name was made on another node, and is in use there.
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
