//! Reconciling one volume: it is read as it is now, and takes one step after the other until it rests.

use super::{
    apply::StepWriter,
    candidate,
    context::{Context, OTHERS, STEPS},
    expand_from_cache,
    node_health::away,
    report,
};
use crate::{
    claims::{Step, decide},
    client::{error_message, is_conflict, is_refused},
    k8s::claim,
    observe::{self, VolumeObjects},
    placement::{NoNode, VolumeRequest},
    runtime::{backoff::Backoff, work_queue::Outcome},
};
use anyhow::Result;
use flexvol_sdk::ErrorClass;
use std::time::Duration;

/// How soon what cannot be had, or is stuck, is looked at again, if nothing says that it has changed.
const STUCK: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// Looks at one volume, and does what is to be done for it.
///
/// # Errors
/// When a step is not done; a conflict, when something has changed meanwhile.
pub(super) async fn reconcile(context: &Context, name: &str) -> Result<Outcome> {
    let done = steps(context, name).await;
    if let Err(error) = &done {
        let changed = is_conflict(error);
        let word = if changed { "changed" } else { "failed" };
        context.metrics.operated("step", word);
    }
    done
}

async fn steps(context: &Context, name: &str) -> Result<Outcome> {
    let act = StepWriter {
        client: &context.client,
        nodes: &context.nodes,
        ours: &context.ours,
        name,
    };
    let place = context.claims.place(name);
    if let Some(place) = &place
        && let Some(outcome) = expand_from_cache::expand(context, &act, place).await?
    {
        return Ok(outcome);
    }
    let mut live = observe::read(&context.client, name, place, &context.ours).await?;
    live.away = away(&context.client, &context.nodes, &live, &context.ours).await?;
    let node_volume = live.node_volume.as_ref();
    live.stalled = node_volume.and_then(|node_volume| context.nodes.stalls(node_volume));
    live.late = node_volume.and_then(|node_volume| context.nodes.why_late(node_volume));
    if let Some(claim) = live
        .claim
        .as_ref()
        .filter(|claim| claim::is_expanding(claim))
    {
        // So that the answer of the node is a reason to look again.
        context.claims.add(name, claim);
    }
    for _ in 0..STEPS {
        let step = next(context, name, &mut live).await?;
        match &step {
            Step::NoOp | Step::RecordEvent(_) => {
                if let Step::RecordEvent(why) = &step {
                    report::waits(context, &live, why);
                }
                let grows = live.claim.as_ref().is_some_and(claim::is_expanding);
                return Ok(if grows {
                    Outcome::RequeueWithBackoff(OTHERS)
                } else {
                    Outcome::Done
                });
            }
            Step::Refuse(why) | Step::Blocked(why) => {
                report::waits(context, &live, why);
                if live.node_volume.is_none() && live.away.is_some() {
                    context.claims.wait_for_node(name);
                }
                return Ok(Outcome::RequeueWithBackoff(STUCK));
            }
            // Also if it cannot be written.
            Step::SetResizeFailure(why) => report::waits(context, &live, why),
            Step::RequestDeletion => {
                if let Some(why) = live.unbindable().or(live.stalled.as_deref()) {
                    report::waits(context, &live, why);
                }
            }
            _ => {}
        }
        if step == Step::Reschedule
            && let Some(pause) = context.reschedules.pause(name)
        {
            return Ok(Outcome::RequeueAfter(pause));
        }
        let done = act.step(&step, &mut live).await;
        if let Err(error) = &done
            && !is_conflict(error)
        {
            let makes = matches!(
                step,
                Step::CreateNodeVolume { .. } | Step::CreatePersistentVolume
            );
            // Others' admission may let nobody write what has to be written.
            if makes || is_refused(error) {
                report::waits(context, &live, &error_message(error));
            }
            if makes && error.is::<NoNode>() {
                context.claims.wait_for_node(name);
                return Ok(Outcome::RequeueWithBackoff(STUCK));
            }
        }
        done?;
        report::done(context, name, &step, &live);
        note_room(context, name, &step, &live);
        if step == Step::Reschedule {
            context.reschedules.asked(name);
        }
        if step == Step::DeleteNodeVolume {
            if live.volume.is_some() {
                // From what its NodeVolume is made anew nobody has read.
                return Ok(Outcome::RequeueAfter(Duration::ZERO));
            }
            // Another node has to act, if the scheduler has chosen one already.
            live.away = away(&context.client, &context.nodes, &live, &context.ours).await?;
        }
    }
    anyhow::bail!("the volume needs more than {STEPS} steps")
}

/// The next step. Before a volume is made, and before its NodeVolume says that, it is looked whether it can be
/// bound to the node that has its storage.
async fn next(context: &Context, name: &str, live: &mut VolumeObjects) -> Result<Step> {
    let step = decide(&live.observed(name, &context.ours));
    let makes = matches!(step, Step::MarkPublishing | Step::CreatePersistentVolume);
    let Some(node_volume) = live
        .node_volume
        .as_ref()
        .filter(|_| makes && live.hostname.is_none())
    else {
        return Ok(step);
    };
    let found = candidate::hostname_of(&context.client, &node_volume.spec.node).await;
    if let Err(error) = &found {
        report::waits(context, live, &error_message(error));
    }
    live.hostname = Some(found?);
    Ok(decide(&live.observed(name, &context.ours)))
}

/// Remembers what was ordered of a node, and whether it had room for that. Where the scheduler is asked for
/// another node, the NodeVolume is taken back after that, and that alone counts.
fn note_room(context: &Context, name: &str, step: &Step, live: &VolumeObjects) {
    let Some((node, class, size)) = live.ordered() else {
        return;
    };
    match step {
        Step::CreateNodeVolume { .. } => context.nodes.ordered(node, name, size),
        Step::RequestDeletion if live.had_no_room() => context.nodes.had_no_room(node, class, size),
        Step::RequestDeletion => {
            let failed = live.kept_failing();
            let failed = failed.map(|problem| (problem.class(), &*problem.message));
            // Its hostname may be its own again when the next node is chosen, and another's after that.
            let own = live.unbindable().or(live.stalled.as_deref());
            let own = own.map(|why| (ErrorClass::Retryable, why));
            if let (Some(node_volume), Some((error, words))) = (&live.node_volume, own.or(failed)) {
                let asker = VolumeRequest {
                    volume: name,
                    namespace: &node_volume.spec.claim.namespace,
                };
                context.nodes.failed(node, class, asker, error, words);
                if live.unbindable().is_some() {
                    context.nodes.unbindable(node);
                }
            }
        }
        Step::CreatePersistentVolume => {
            context.nodes.made(node, name);
            context.nodes.had_room(node, class, size);
        }
        _ => {}
    }
}
