//! The growth of a volume that is settled, with as few requests as possible: the claim is read live, and
//! of volume and NodeVolume what watches have told. What is written to these is written on the condition of
//! the version that was told of, so a decision from old news is refused, and everything is read.

use super::{
    apply::StepWriter,
    context::{Context, OTHERS, STEPS},
    report,
};
use crate::{
    api::well_known::claim_uid,
    claims::{Observed, Step, decide},
    client::{error_message, is_conflict, is_refused},
    k8s::claim,
    observe::{self, VolumeObjects},
    runtime::work_queue::Outcome,
};
use anyhow::Result;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

/// Takes the next steps of a growth; none if this is no usual one, and everything has to be read.
pub(super) async fn expand(
    context: &Context,
    act: &StepWriter<'_>,
    place: &(String, String),
) -> Result<Option<Outcome>> {
    if !context.index.has_both(act.name) || is_silent(context, act.name) {
        return Ok(None);
    }
    let Some(claim) = observe::read_claim(&context.client, claim_uid(act.name), place).await?
    else {
        return Ok(None);
    };
    // What is not understood is told.
    if claim.cut {
        return Ok(None);
    }
    match expand_claim(context, act, claim.object).await {
        Err(error) if is_conflict(&error) => Ok(None),
        done => done,
    }
}

/// Whether nothing is heard of the node that has the storage: then there is more to be read.
fn is_silent(context: &Context, name: &str) -> bool {
    let node_volume = context.index.get(name).node_volume;
    node_volume.is_some_and(|node_volume| context.nodes.silence(&node_volume.what.node).is_some())
}

async fn expand_claim(
    context: &Context,
    act: &StepWriter<'_>,
    claim: PersistentVolumeClaim,
) -> Result<Option<Outcome>> {
    let class = match claim::class_name(&claim) {
        Some(name) => context.classes.get(&context.client, name).await?,
        None => None,
    };
    let mut live = VolumeObjects {
        claim: Some(claim),
        class,
        ..VolumeObjects::default()
    };
    for _ in 0..STEPS {
        let known = context.index.get(act.name);
        let (Some(volume), Some(node_volume)) = (known.volume, known.node_volume) else {
            return Ok(None);
        };
        let most = node_volume.what.max_requested_size;
        let observed = Observed {
            volume: Some(volume.what),
            node_volume: Some(node_volume.what),
            ..live.observed(act.name, &context.ours)
        };
        let step = decide(&observed);
        match step {
            Step::NoOp if live.claim.as_ref().is_some_and(claim::is_expanding) => {
                return Ok(Some(Outcome::RequeueWithBackoff(OTHERS)));
            }
            Step::NoOp => return Ok(Some(Outcome::Done)),
            Step::RequestSize(size) => {
                let resized = act.request_size(&node_volume.version, size, most).await?;
                context
                    .index
                    .node_volume_written(&node_volume.version, &resized, &context.ours);
                live.node_volume = Some(resized);
            }
            Step::SetPersistentVolumeCapacity(size) => {
                let sized = act.set_volume_capacity(&volume.version, size).await?;
                context
                    .index
                    .volume_written(&volume.version, &sized, &context.ours);
                live.volume = Some(sized);
            }
            Step::SetClaimCapacity(_) | Step::SetFileSystemResizePending(_) => {
                let done = act.step(&step, &mut live).await;
                if let Err(error) = &done
                    && is_refused(error)
                {
                    report::waits(context, &live, &error_message(error));
                }
                done?;
            }
            _ => return Ok(None),
        }
        report::done(context, act.name, &step, &live);
    }
    Ok(None)
}
