//! Reconciling one volume: it takes one step after the other until it rests.

use super::{
    apply::StepWriter,
    context::{Context, OTHERS, STEPS},
    node_health::away,
    recent_nodes, report,
    view::View,
};
use crate::{
    claims::{Step, decide},
    client::{Refusal, error_message, is_conflict, is_refused, refusal},
    k8s::{claim, meta::uid},
    observe::VolumeObjects,
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
    context.claims.looks_at(name);
    let done = steps(context, name).await;
    context.claims.looked_at(name);
    if let Err(error) = &done {
        let changed = is_conflict(error);
        let word = if changed { "changed" } else { "failed" };
        context.metrics.operated("step", word);
    }
    done
}

async fn steps(context: &Context, name: &str) -> Result<Outcome> {
    let act = StepWriter { context, name };
    // Of what nobody knows anything nothing is to be done: whoever tells of it again is heard.
    if !context.index.knows(name) && !context.claims.has(name) {
        return Ok(Outcome::Done);
    }
    let mut view = match View::cached(context, name).await? {
        Some(view) => view,
        None => View::live(context, name).await?,
    };
    for _ in 0..STEPS {
        let Some(step) = next(context, name, &mut view).await? else {
            view = View::live(context, name).await?;
            continue;
        };
        match &step {
            Step::NoOp | Step::RecordEvent(_) => {
                if let Step::RecordEvent(why) = &step {
                    report::waits(context, &view.live, why);
                }
                let claim = view.live.claim.as_ref();
                if let Some(claim) = claim.filter(|claim| claim::is_expanding(claim)) {
                    // So that the answer of the node is a reason to look again.
                    context.claims.add(name, claim);
                    return Ok(Outcome::RequeueWithBackoff(OTHERS));
                }
                // The scheduler was asked for another node. Where the claim's pod has gone it looks for none.
                let asked = context.reschedules.lasts(name);
                let seeks = asked.filter(|_| claim.is_some() && view.node().is_none());
                return Ok(match seeks {
                    Some(rest) => {
                        context.claims.wait_for_node(name);
                        Outcome::RequeueAfter(rest)
                    }
                    None => {
                        context.claims.waits_for_no_node(name);
                        Outcome::Done
                    }
                });
            }
            Step::Refuse(why) | Step::Blocked(why) => {
                let live = &view.live;
                report::waits(context, live, why);
                if live.node_volume.is_none() && live.away.is_some() {
                    context.claims.wait_for_node(name);
                } else {
                    context.claims.waits_for_no_node(name);
                }
                return Ok(Outcome::RequeueWithBackoff(STUCK));
            }
            // Also if it cannot be written.
            Step::SetResizeFailure(why) => report::waits(context, &view.live, why),
            Step::RequestDeletion => {
                let live = &view.live;
                if let Some(why) = live.unbindable().or(live.stalled.as_deref()) {
                    report::waits(context, live, why);
                }
            }
            _ => {}
        }
        if step == Step::Reschedule {
            context.claims.wait_for_node(name);
            if let Some(pause) = context.reschedules.pause(name) {
                return Ok(Outcome::RequeueAfter(pause));
            }
        }
        let volume_before = view.volume_meta(name).unwrap_or_default();
        let node_volume_before = view.node_volume_meta(name).unwrap_or_default();
        let done = act.step(&step, &mut view).await;
        if let Err(error) = &done {
            // Whoever is told of a refusal is told of the objects too.
            if view.is_cached() && (is_stale(error) || is_refused(error)) {
                view = View::live(context, name).await?;
                continue;
            }
            let makes = matches!(
                step,
                Step::CreateNodeVolume { .. } | Step::CreatePersistentVolume
            );
            // Others' admission may let nobody write what has to be written.
            if !is_conflict(error) && (makes || is_refused(error)) {
                report::waits(context, &view.live, &error_message(error));
            }
            if makes && error.is::<NoNode>() {
                context.claims.wait_for_node(name);
                return Ok(Outcome::RequeueAfter(context.claims.pause(name)));
            }
        }
        done?;
        let live = &view.live;
        if let Some(volume) = &live.volume {
            context
                .index
                .volume_written(&volume_before, volume, &context.ours);
        }
        if let Some(node_volume) = &live.node_volume {
            let (from, ours) = (&node_volume_before, &context.ours);
            match step {
                Step::CreateNodeVolume { .. } => {
                    context.claims.waits_for_no_node(name);
                    context.index.node_volume_created(node_volume, ours);
                }
                _ => context.index.node_volume_written(from, node_volume, ours),
            }
        }
        report::done(context, name, &step, live);
        note_room(context, name, &step, live);
        if step == Step::Reschedule {
            context.reschedules.asked(name);
        }
        if step == Step::DeleteNodeVolume {
            let deleted = &node_volume_before;
            context.own_writes.add_deletion(deleted);
            context.index.node_volume_deleted(name, uid(deleted));
            if live.volume.is_some() {
                // From what its NodeVolume is made anew nobody has read.
                return Ok(Outcome::RequeueAfter(Duration::ZERO));
            }
            // Another node has to act, if the scheduler has chosen one already.
            view.live.away = away(context, &view.live).await?;
        }
    }
    anyhow::bail!("the volume needs more than {STEPS} steps")
}

/// Whether a write was refused because its object is not as was told of it.
fn is_stale(error: &anyhow::Error) -> bool {
    let request = error.downcast_ref::<kube::Error>().map(refusal);
    matches!(request, Some(Refusal::Changed | Refusal::Missing))
}

/// The next step; none, if everything has to be read before that. Before a volume is made, and before its
/// NodeVolume says that, it is looked whether it can be bound to the node that has its storage.
async fn next(context: &Context, name: &str, view: &mut View) -> Result<Option<Step>> {
    let known = |view: &View| {
        let observed = view.observed(name, &context.ours);
        let step = decide(&observed);
        view.is_enough_for(&step, &observed).then_some(step)
    };
    let step = known(view);
    let makes = matches!(
        step,
        Some(Step::MarkPublishing | Step::CreatePersistentVolume)
    );
    let node = view
        .node()
        .filter(|_| makes && view.live.hostname.is_none());
    let Some(node) = node.map(str::to_owned) else {
        return Ok(step);
    };
    let found = recent_nodes::hostname_of(&context.client, &node).await;
    if let Err(error) = &found {
        report::waits(context, &view.live, &error_message(error));
    }
    view.live.hostname = Some(found?);
    Ok(known(view))
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
