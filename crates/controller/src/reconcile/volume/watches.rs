//! Watches of the controller, and the events that enqueue a volume.

#[cfg(test)]
mod tests;

use super::context::Context;
use crate::{
    agent::callout::{Callout, next_callout},
    api::{
        v1alpha1::{NodeVolume, StorageNode, StorageState},
        well_known::{CLAIM_FINALIZER, volume_name},
    },
    cache::event_filter::ClaimSummary,
    claims::{Answer, Reclaim},
    client::{MaybePartial, PartialObject},
    k8s::{
        claim,
        meta::{has_finalizer, uid},
        volume::{self, handed_on, is_ours, lost_its_claim},
    },
    observe::volume_of,
    runtime::reflector::{Event, Presence, reflect},
};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Api, Resource, ResourceExt, api::ObjectMeta, runtime::watcher};
use serde::de::DeserializeOwned;
use std::{
    collections::HashSet,
    fmt::Debug,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Pause after a claim was bound, because Kubernetes writes it several times.
const BINDING: Duration = Duration::from_millis(500);

/// Pause after a claim has requested more, in which Kubernetes' own expander, where it runs, allocates the size.
const EXPANDER: Duration = Duration::from_millis(200);

/// Watches all kinds on which volumes depend.
pub(super) fn watch_all(context: &Arc<Context>) {
    context.nodes.listen();
    watch(context, claim_seen, None, |context, listed| {
        context.expansions.keep(listed);
        context.claims.keep(listed)
    });
    watch(
        context,
        volume_seen,
        Some(volume_in_part),
        |context, listed| context.index.keep_volumes(listed),
    );
    watch(
        context,
        node_volume_seen,
        Some(node_volume_in_part),
        |context, listed| {
            let gone = context.index.keep_node_volumes(listed);
            context
                .nodes
                .node_volumes_gone(gone.iter().map(String::as_str));
            gone
        },
    );
    watch(context, class_seen, None, |context, listed| {
        context.classes.keep(listed);
        Vec::new()
    });
    // A node that is gone falls silent, and then its existence is checked.
    watch(context, node_seen, None, |_, _| Vec::new());
}

/// Watches all objects of a kind. After a repeated list, `keep` drops all objects except those with these UIDs, and
/// returns the volumes of the dropped ones. Objects of which not all is known go to `in_part`, where there is one.
fn watch<K>(
    context: &Arc<Context>,
    seen: fn(&Context, &K, Presence),
    in_part: Option<fn(&Context, &PartialObject<K>, Presence)>,
    keep: fn(&Context, &HashSet<String>) -> Vec<String>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    context.watches.fetch_add(1, Ordering::Relaxed);
    let api: Api<MaybePartial<K>> = Api::all(context.client.clone());
    let context = Arc::clone(context);
    tokio::spawn(async move {
        let mut first = true;
        let handle = |event| match event {
            Event::ListBegins => {}
            Event::Object(object, presence) => seen(&context, &object, presence),
            Event::Part(part, presence) => match (in_part, &part.object) {
                (Some(in_part), _) => in_part(&context, &part, presence),
                (None, Some(object)) => seen(&context, object, presence),
                (None, None) => {}
            },
            Event::Listed(listed) => {
                // Known objects that the list lacks were deleted without an event.
                let gone = listed.map(|listed| keep(&context, &listed));
                for name in gone.into_iter().flatten() {
                    context.enqueue(&name);
                }
                if std::mem::take(&mut first) {
                    context.synced.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let config = watcher::Config::default();
        reflect(api, config, &context.metrics, handle).await;
    });
}

/// Applies a watch's report of a volume of which not all is known: it is read live.
fn volume_in_part(context: &Context, part: &PartialObject<PersistentVolume>, presence: Presence) {
    context.index.volume_in_part(&part.metadata, presence);
    enqueue_part(context, &part.metadata);
}

/// Like [`volume_in_part`], for a NodeVolume.
fn node_volume_in_part(context: &Context, part: &PartialObject<NodeVolume>, presence: Presence) {
    context.index.node_volume_in_part(&part.metadata, presence);
    enqueue_part(context, &part.metadata);
}

fn enqueue_part(context: &Context, meta: &ObjectMeta) {
    if !context.own_writes.has(meta) {
        context.enqueue(meta.name.as_deref().unwrap_or_default());
    }
}

fn claim_seen(context: &Context, claim: &PersistentVolumeClaim, presence: Presence) {
    let claims = &context.claims;
    let held = has_finalizer(&claim.metadata, CLAIM_FINALIZER);
    let seen = ClaimSummary::of(claim);
    let name = volume_name(uid(&claim.metadata));
    // The volume was made for another claim, which is gone.
    let other = seen
        .bound_to()
        .filter(|volume| *volume != name && context.index.has_volume(volume))
        .map(str::to_owned);
    if !held && other.is_none() && !is_claim_of_ours(context, claim, &seen, &name) {
        return;
    }
    observe_expansion(context, claim, presence);
    let Some(other) = other else {
        return apply_claim(context, claim, seen, name, presence, held);
    };
    // Whatever finalizers its author has given it, that volume is the claim's.
    apply_claim(context, claim, seen.clone(), other, presence, false);
    if held {
        apply_claim(context, claim, seen, name, presence, held);
    } else {
        claims.forget(&name);
        context.nodes.forget_volume(&name);
    }
}

/// Whether the claim's volume is, or will be, of our driver.
fn is_claim_of_ours(
    context: &Context,
    claim: &PersistentVolumeClaim,
    seen: &ClaimSummary,
    name: &str,
) -> bool {
    let ours = match claim::provisioner(claim) {
        Some(provisioner) => context.ours.driver_of(provisioner).is_some(),
        // A claim that is recreated by hand may lack the annotation. Its volume may not have been listed yet.
        None => seen.bound_to() == Some(name),
    };
    // The author may have removed the provisioner's annotation before a watch reported the NodeVolume.
    ours || context.claims.has(name) || context.index.has_node_volume(name)
}

/// Measures how long expansions take.
fn observe_expansion(context: &Context, claim: &PersistentVolumeClaim, presence: Presence) {
    match presence {
        Presence::Gone => context.expansions.forget(claim),
        Presence::There => {
            if let Some(took) = context.expansions.seen(claim) {
                context.metrics.growth.observe(took.as_secs_f64());
            }
        }
    }
}

/// Applies a watch's report of a claim to one volume, which the claim has or after which the volume is named.
fn apply_claim(
    context: &Context,
    claim: &PersistentVolumeClaim,
    seen: ClaimSummary,
    name: String,
    presence: Presence,
    held: bool,
) {
    let (claims, there) = (&context.claims, presence == Presence::There);
    let namespace = seen.namespace.clone();
    let fails = claim::failure(claim).is_some();
    let is_bound = seen.bound_to().is_some();
    if there && !held && is_bound && !claim::is_resizing(claim) && !fails {
        claims.forget(&name);
        context.nodes.forget_volume(&name);
    } else if !there || seen.volume.is_some() && seen.deleting && !held {
        claims.forget(&name);
        context.nodes.forget_volume(&name);
        // Kubernetes releases the volume of a bound claim, which causes an event of its own.
        if !is_bound {
            context.queue.push(&namespace, &name);
        }
    } else {
        let written = context.own_writes.has(&claim.metadata);
        // Only our finalizer has to be removed, after Kubernetes has finished its writes of the bound claim.
        let only_needs_release = held
            && !seen.deleting
            && seen.volume.as_ref() == Some(&name)
            && context.index.is_published(&name);
        let may_be_allocated = claim::is_expanding(claim)
            && claim::allocated(claim) < claim::asked(claim)
            && !context.drops_allocated();
        let pause = if only_needs_release {
            BINDING
        } else if may_be_allocated {
            EXPANDER
        } else {
            Duration::ZERO
        };
        if let Some(at) = claims.put(name.clone(), seen, written) {
            context.queue.push_by(&namespace, &name, at + pause);
        }
    }
}

fn node_seen(context: &Context, node: &StorageNode, presence: Presence) {
    match presence {
        Presence::Gone => context.nodes.remove(&node.name_any()),
        Presence::There => {
            if context.nodes.put(node.clone()) {
                context.claims.node_offers_more();
            }
        }
    }
}

fn node_volume_seen(context: &Context, node_volume: &NodeVolume, presence: Presence) {
    let name = node_volume.name_any();
    // Events between its deletion and its end are irrelevant.
    let deleted = context.own_writes.has_deleted(&node_volume.metadata);
    let presence = if deleted { Presence::Gone } else { presence };
    let changed = context
        .index
        .node_volume(node_volume, presence, &context.ours);
    match presence {
        Presence::There => context.nodes.node_volume_seen(node_volume),
        Presence::Gone => context.nodes.node_volumes_gone([&*name].into_iter()),
    }
    let is_left = || context.index.is_held(&name) || context.claims.has(&name);
    // The node acts next, and its answer causes an event. A node with nothing to do does not answer.
    let status = node_volume.status.clone().unwrap_or_default();
    let is_awaited = context.index.awaits_node(&name)
        && next_callout(&node_volume.spec, &status) != Callout::Nothing
        && context.nodes.silence(&node_volume.spec.node).is_none();
    let news = presence == Presence::Gone && is_left()
        || changed
            && !is_awaited
            && context.is_ready()
            && !context.own_writes.has(&node_volume.metadata)
            && (!context.index.is_settled(&name) || context.claims.place(&name).is_some());
    if news {
        context.queue.push(&node_volume.spec.claim.namespace, &name);
    }
}

fn volume_seen(context: &Context, volume: &PersistentVolume, presence: Presence) {
    let name = volume.name_any();
    let was_ours = context.index.has_volume(&name);
    let changed = context.index.volume(volume, presence, &context.ours);
    let deleting = volume.metadata.deletion_timestamp.is_some();
    // Before its claim is gone, the claim's events count. While its storage is deleted, the NodeVolume's do, unless the
    // volume is retained.
    let ends = (lost_its_claim(volume) || deleting)
        && match context.index.get(&name).node_volume.map(|known| known.what) {
            Some(known) if known.desired == StorageState::Absent => {
                let is_retained = volume_of(volume, &context.ours).reclaim == Reclaim::Retain;
                let goes = presence == Presence::There && deleting;
                is_retained || known.answer == Answer::Absent && !goes
            }
            Some(_) => true,
            None => context.index.is_held(&name),
        };
    // Only the volume's own event tells that another claim has it.
    let told = (changed && ends || handed_on(volume).is_some()) && is_ours(volume, &context.ours);
    // A foreign volume may have blocked the name, and is gone or ours now.
    let becomes_ours = context.is_ready() && !was_ours && is_ours(volume, &context.ours);
    let makes_way =
        (presence == Presence::Gone || becomes_ours) && context.claims.place(&name).is_some();
    // The volume was removed by force, which no event would tell any more once its claim is gone too.
    let vanished = presence == Presence::Gone && was_ours && context.index.wants_storage(&name);
    if vanished || (told || makes_way) && !context.own_writes.has(&volume.metadata) {
        let claim = volume::holder(volume);
        let namespace = claim.and_then(|claim| claim.namespace.as_deref());
        context.queue.push(namespace.unwrap_or_default(), &name);
    }
}

/// Applies a watch's report of a class, and enqueues its claims: a changed class may allow what it did not.
fn class_seen(context: &Context, class: &StorageClass, presence: Presence) {
    let name = class.name_any();
    match presence {
        Presence::There => context.nodes.class_seen(&name, uid(&class.metadata)),
        Presence::Gone => context.nodes.class_gone(&name),
    }
    context.classes.put(class, presence);
    for (namespace, volume) in context.claims.of_class(&name) {
        context.queue.push(&namespace, &volume);
    }
}
