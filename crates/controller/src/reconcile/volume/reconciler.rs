//! Reconciles one volume: applies steps until none is left.

use super::{
    apply::StepWriter,
    context::{Context, OTHERS, STEPS},
    node_health::{deletion_remedy, unavailable_node},
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
use anyhow::{Error, Result};
use flexvol_sdk::ErrorClass;
use kube::api::ObjectMeta;
use std::time::Duration;

/// Backoff for a volume that is refused or blocked, if no event says that something has changed.
const STUCK: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// Time after which a failure is reported, whatever it is. A restart of the API server takes less.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reconciles one volume.
///
/// # Errors
/// When a step fails, with a conflict if an object has changed meanwhile.
pub(super) async fn reconcile(context: &Context, name: &str) -> Result<Outcome> {
    context.claims.begin_reconcile(name);
    let done = apply_steps(context, name).await;
    context.claims.end_reconcile(name);
    if let Err(error) = &done {
        let changed = is_conflict(error);
        let word = if changed { "changed" } else { "failed" };
        context.metrics.operated("step", word);
    }
    done
}

async fn apply_steps(context: &Context, name: &str) -> Result<Outcome> {
    let act = StepWriter { context, name };
    // An unknown volume needs no work. An event enqueues it again.
    if !context.index.knows(name) && !context.claims.has(name) {
        return Ok(Outcome::Done);
    }
    let mut view = match View::from_cache(context, name).await? {
        Some(view) => view,
        None => View::read_live(context, name).await?,
    };
    for _ in 0..STEPS {
        let Some(step) = next(context, name, &mut view).await? else {
            view = View::read_live(context, name).await?;
            continue;
        };
        match &step {
            Step::NoOp => return Ok(wait(context, name, &view)),
            Step::RecordEvent(why) => {
                report::waits(context, &view.live, why);
                return Ok(wait(context, name, &view));
            }
            Step::Refuse(why) | Step::Blocked(why) => {
                return Ok(block(context, name, &view.live, why));
            }
            // Reported before the write, which may fail.
            Step::SetResizeFailure(why) => report::waits(context, &view.live, why),
            Step::RequestDeletion => {
                let live = &view.live;
                if let Some(why) = live.unable() {
                    report::waits(context, live, &why);
                }
            }
            _ => {}
        }
        if step == Step::Reschedule {
            context.claims.mark_unplaceable(name);
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
                view = View::read_live(context, name).await?;
                continue;
            }
            if let Some(outcome) = report_failure(context, name, &step, &view.live, error) {
                return Ok(outcome);
            }
        }
        done?;
        let live = &view.live;
        cache_written(
            context,
            name,
            &step,
            live,
            &volume_before,
            &node_volume_before,
        );
        report::done(context, name, &step, live);
        record_placement(context, name, &step, live);
        if step == Step::Reschedule {
            context.reschedules.record(name);
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
            view.live.unavailable = unavailable_node(context, &view.live).await?;
        }
    }
    anyhow::bail!("the volume needs more than {STEPS} steps")
}

/// Ends a reconciliation without a step: others have to act next, or nothing is left to do.
fn wait(context: &Context, name: &str, view: &View) -> Outcome {
    let claim = view.live.claim.as_ref();
    if let Some(claim) = claim.filter(|claim| claim::is_resizing(claim)) {
        // Makes the node's answer a reason to reconcile.
        context.claims.add(name, claim);
        return Outcome::RequeueWithBackoff(OTHERS);
    }
    // The scheduler was asked for another node. It selects none if the claim's pod is gone.
    let asked = context.reschedules.remaining(name);
    let seeks = asked.filter(|_| claim.is_some() && view.node().is_none());
    match seeks {
        Some(rest) => {
            context.claims.mark_unplaceable(name);
            Outcome::RequeueAfter(rest)
        }
        None => {
            context.claims.unmark_unplaceable(name);
            Outcome::Done
        }
    }
}

/// Ends a reconciliation that is refused or blocked.
fn block(context: &Context, name: &str, live: &VolumeObjects, why: &str) -> Outcome {
    match deletion_remedy(live) {
        Some(remedy) => report::waits(context, live, &format!("{why}; {remedy}")),
        None => report::waits(context, live, why),
    }
    if live.node_volume.is_none() && live.unavailable.is_some() {
        context.claims.mark_unplaceable(name);
    } else {
        context.claims.unmark_unplaceable(name);
    }
    Outcome::RequeueWithBackoff(STUCK)
}

/// Reports the failure of a step. Returns the outcome if no node fits the volume.
fn report_failure(
    context: &Context,
    name: &str,
    step: &Step,
    live: &VolumeObjects,
    error: &Error,
) -> Option<Outcome> {
    let makes = matches!(
        step,
        Step::CreateNodeVolume { .. } | Step::CreatePersistentVolume
    );
    // Others' admission webhooks may reject a necessary write, or fail it for as long as they cannot be called.
    let lasts = || context.queue.failing_for(name) >= PATIENCE;
    if !is_conflict(error) && (makes || is_refused(error) || lasts()) {
        report::waits(context, live, &error_message(error));
    }
    if makes && error.is::<NoNode>() {
        context.claims.mark_unplaceable(name);
        return Some(Outcome::RequeueAfter(context.claims.pause(name)));
    }
    None
}

/// Caches the objects as a step wrote them over these versions.
fn cache_written(
    context: &Context,
    name: &str,
    step: &Step,
    live: &VolumeObjects,
    volume_before: &ObjectMeta,
    node_volume_before: &ObjectMeta,
) {
    if let Some(volume) = &live.volume {
        context
            .index
            .volume_written(volume_before, volume, &context.ours);
    }
    if let Some(node_volume) = &live.node_volume {
        let ours = &context.ours;
        match step {
            Step::CreateNodeVolume { .. } => {
                context.claims.unmark_unplaceable(name);
                context.index.node_volume_created(node_volume, ours);
            }
            _ => context
                .index
                .node_volume_written(node_volume_before, node_volume, ours),
        }
    }
}

/// Whether a write failed because the cached object was stale.
fn is_stale(error: &Error) -> bool {
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
fn record_placement(context: &Context, name: &str, step: &Step, live: &VolumeObjects) {
    let Some((node, class, size)) = live.requested_placement() else {
        return;
    };
    let namespace = live
        .node_volume
        .as_ref()
        .map_or("", |node_volume| &node_volume.spec.claim.namespace);
    let asker = VolumeRequest {
        volume: name,
        namespace,
    };
    match step {
        Step::CreateNodeVolume { .. } => context.nodes.record_request(node, name, size),
        Step::RequestDeletion if live.is_exhausted() => {
            context.nodes.record_exhausted(node, class, size, asker)
        }
        Step::RequestDeletion => {
            let failed = live.persistent_problem();
            let failed = failed.map(|problem| (problem.class(), &*problem.message));
            // The hostname may be unique again when the next node is selected, and ambiguous after that.
            let own = live.unable();
            let own = own.as_deref().map(|why| (ErrorClass::Retryable, why));
            if let Some((error, words)) = own.or(failed) {
                context
                    .nodes
                    .record_failure(node, class, asker, error, words);
                if live.no_hostname().is_some() {
                    context.nodes.record_unbindable(node);
                }
            }
        }
        Step::CreatePersistentVolume => {
            context.nodes.complete_request(node, name);
            context.nodes.record_created(node, class, size);
        }
        _ => {}
    }
}
