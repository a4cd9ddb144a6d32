//! Reconciles one volume: applies steps until none is left.

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

/// Backoff for a volume that is refused or blocked, if no event says that something has changed.
const STUCK: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// Reconciles one volume.
///
/// # Errors
/// When a step fails, with a conflict if an object has changed meanwhile.
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
    // An unknown volume needs no work. An event enqueues it again.
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
                    // Makes the node's answer a reason to reconcile.
                    context.claims.add(name, claim);
                    return Ok(Outcome::RequeueWithBackoff(OTHERS));
                }
                // The scheduler was asked for another node. It selects none if the claim's pod is gone.
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
            // Reported before the write, which may fail.
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
            // Reporting a rejection needs the live objects.
            if view.is_cached() && (is_stale(error) || is_refused(error)) {
                view = View::live(context, name).await?;
                continue;
            }
            let makes = matches!(
                step,
                Step::CreateNodeVolume { .. } | Step::CreatePersistentVolume
            );
            // Others' admission webhooks may reject a necessary write.
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
                // The NodeVolume is recreated from the persistent volume, which has to be read first.
                return Ok(Outcome::RequeueAfter(Duration::ZERO));
            }
            // Another node has to act now, if the scheduler has selected one already.
            view.live.away = away(context, &view.live).await?;
        }
    }
    anyhow::bail!("the volume needs more than {STEPS} steps")
}

/// Whether a write failed because the cached object was stale.
fn is_stale(error: &anyhow::Error) -> bool {
    let request = error.downcast_ref::<kube::Error>().map(refusal);
    matches!(request, Some(Refusal::Changed | Refusal::Missing))
}

/// Returns the next step, or `None` if a live read is needed first. Before a volume is created, and before its
/// NodeVolume announces that, the node's hostname is checked: the volume is bound to it.
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

/// Records in `nodes` what was ordered and whether the node had capacity. `Reschedule` is not counted, because the
/// deletion of the NodeVolume follows it.
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
            // The hostname may be unique again when the next node is selected, and ambiguous after that.
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
