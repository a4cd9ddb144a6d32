//! The controller: takes every volume that changed one step after the other.

pub(crate) mod apply;
mod fast_expand;
mod handlers;
pub(crate) mod manifests;
mod node_health;
mod node_state;
mod placement;
mod reschedule;
#[cfg(test)]
mod tests;

use crate::{
    api::{
        drivers::Ours,
        labels::{CONTROLLER, RESIZE_FAILED},
    },
    cache::{
        news::{Own, Seen},
        nodes::{Asker, NoNode, Nodes},
        volumes::Index,
    },
    client::{is_conflict, is_refused, words},
    decide::{Step, decide},
    events::{Events, Tone},
    k8s::{claim, volume},
    observe::{self, Live},
    reconcile::{
        stateful_set::Sets,
        volume::{
            apply::Act, fast_expand::Classes, handlers::WATCHES, node_health::away,
            reschedule::Asked,
        },
    },
    runtime::{
        backoff::Backoff,
        work_queue::{Outcome, Queue},
        workers::Workers,
    },
    support::{log, metrics::Metrics},
};
use anyhow::Result;
use flexvol_sdk::ErrorClass;
use kube::Client;
use prometheus_client::metrics::gauge::Gauge;
use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

const WORKERS: Workers = Workers {
    kind: "volume",
    count: 10,
    long: 0,
};

/// How soon what cannot be had, or is stuck, is looked at again, if nothing says that it has changed.
const STUCK: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// The same where somebody else has to act: news may get lost, and then a claim would wait for ever.
pub(crate) const OTHERS: Backoff = Backoff {
    first: Duration::from_secs(300),
    longest: Duration::from_secs(3600),
};

/// How often what is not as it shall be is counted.
const COUNTED: Duration = Duration::from_secs(10);

/// No volume needs more steps without anything happening in between.
pub(crate) const STEPS: usize = 16;

/// What the controller has in common for all volumes.
pub struct Controller {
    pub(crate) client: Client,
    pub(crate) ours: Ours,
    pub(crate) index: Index,
    pub(crate) classes: Classes,
    pub(crate) queue: Arc<Queue>,
    pub(crate) nodes: Nodes,
    /// Volumes that no node can have: more is offered, and they are looked at.
    pub(crate) nodeless: Mutex<HashSet<String>>,
    /// A node offers more than before.
    pub(crate) offered: AtomicBool,
    /// For which volumes the scheduler was asked for another node.
    asked: Asked,
    events: Arc<Events>,
    metrics: Metrics,
    /// The claims of volumes that are not settled.
    pub(crate) claims: Mutex<HashMap<String, Seen>>,
    /// What this process wrote lately.
    pub(crate) own: Mutex<Own>,
    /// How many of the watches have seen everything once.
    pub(crate) synced: AtomicU8,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller of these drivers' volumes, on nodes whose agents count as away after `silence`.
    #[must_use]
    pub fn new(client: Client, ours: Ours, silence: Duration, metrics: Metrics) -> Arc<Self> {
        Arc::new(Controller {
            events: Arc::new(Events::start(client.clone(), CONTROLLER)),
            client,
            ours,
            index: Index::default(),
            classes: Classes::default(),
            queue: Arc::new(Queue::new(Backoff::FAILURES)),
            nodes: Nodes::new(silence),
            nodeless: Mutex::default(),
            offered: AtomicBool::new(false),
            asked: Asked::default(),
            metrics,
            claims: Mutex::default(),
            own: Mutex::default(),
            synced: AtomicU8::new(0),
        })
    }

    /// Whether all there is was seen once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.synced.load(Ordering::Relaxed) >= WATCHES
    }

    /// Works for ever.
    pub async fn run(self: Arc<Self>) {
        self.watch_all();
        let sets = Sets::new(
            self.client.clone(),
            self.ours.clone(),
            Arc::clone(&self.events),
        );
        tokio::spawn(sets.run());
        while !self.is_ready() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Before all was seen nobody could tell what of it belongs together.
        for name in self.index.unsettled() {
            self.look_at(&name);
        }
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.watch_nodes().await });
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.forget_nodes().await });
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.count().await });
        let reconcile = |name: String| {
            let waiting = i64::try_from(self.queue.waiting()).unwrap_or(i64::MAX);
            self.metrics.waiting.set(waiting);
            let this = Arc::clone(&self);
            async move { this.reconcile(&name).await }
        };
        WORKERS.run(Arc::clone(&self.queue), reconcile).await;
    }

    /// Counts now and then what is not as it shall be: of a hundred thousand, in milliseconds.
    async fn count(&self) {
        let gauge = |gauge: &Gauge, count: usize| {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        loop {
            gauge(&self.metrics.claims_waiting, self.claims_waiting());
            let (unsettled, failing) = self.index.count();
            gauge(&self.metrics.volumes_unsettled, unsettled);
            gauge(&self.metrics.volumes_failing, failing);
            tokio::time::sleep(COUNTED).await;
        }
    }

    async fn reconcile(&self, name: &str) -> Result<Outcome> {
        let done = self.steps(name).await;
        if let Err(error) = &done {
            let changed = is_conflict(error);
            let word = if changed { "changed" } else { "failed" };
            self.metrics.operated("step", word);
        }
        done
    }

    async fn steps(&self, name: &str) -> Result<Outcome> {
        let act = Act {
            client: &self.client,
            nodes: &self.nodes,
            ours: &self.ours,
            name,
        };
        let place = self.claim_place(name);
        if let Some(place) = &place
            && let Some(outcome) = self.grow(&act, place).await?
        {
            return Ok(outcome);
        }
        let mut live = observe::read(&self.client, name, place, &self.ours).await?;
        live.away = away(&self.client, &self.nodes, &live, &self.ours).await?;
        let order = live.order.as_ref();
        live.stalled = order.and_then(|order| self.nodes.stalls(order));
        if let Some(claim) = live.claim.as_ref().filter(|claim| claim::grows(claim)) {
            // So that the answer of the node is a reason to look again.
            self.claim_grows(name, claim);
        }
        for _ in 0..STEPS {
            let step = self.next(name, &mut live).await?;
            match &step {
                Step::Rest | Step::Tell(_) => {
                    if let Step::Tell(why) = &step {
                        self.tell(&live, why);
                    }
                    let grows = live.claim.as_ref().is_some_and(claim::grows);
                    return Ok(if grows {
                        Outcome::InVain(OTHERS)
                    } else {
                        Outcome::Settled
                    });
                }
                Step::Refuse(why) | Step::Stuck(why) => {
                    self.tell(&live, why);
                    if live.order.is_none() && live.away.is_some() {
                        self.wait_for_node(name);
                    }
                    return Ok(Outcome::InVain(STUCK));
                }
                // Also if it cannot be written.
                Step::SayFailure(why) => self.tell(&live, why),
                Step::Revoke => {
                    if let Some(why) = live.unbindable().or(live.stalled.as_deref()) {
                        self.tell(&live, why);
                    }
                }
                _ => {}
            }
            if step == Step::Reschedule
                && let Some(pause) = self.asked.pause(name)
            {
                return Ok(Outcome::After(pause));
            }
            let done = act.step(&step, &mut live).await;
            if let Err(error) = &done
                && !is_conflict(error)
            {
                let makes = matches!(step, Step::Order { .. } | Step::Publish);
                // Others' admission may let nobody write what has to be written.
                if makes || is_refused(error) {
                    self.tell(&live, &words(error));
                }
                if makes && error.is::<NoNode>() {
                    self.wait_for_node(name);
                    return Ok(Outcome::InVain(STUCK));
                }
            }
            done?;
            self.done(name, &step, &live);
            self.note_room(name, &step, &live);
            if step == Step::Reschedule {
                self.asked.asked(name);
            }
            if step == Step::Forget {
                if live.volume.is_some() {
                    // From what its order is made anew nobody has read.
                    return Ok(Outcome::After(Duration::ZERO));
                }
                // Another node has to act, if the scheduler has chosen one already.
                live.away = away(&self.client, &self.nodes, &live, &self.ours).await?;
            }
        }
        anyhow::bail!("the volume needs more than {STEPS} steps")
    }

    /// The next step. Before a volume is made, and before its order says that, it is looked whether it can be
    /// bound to the node that has its storage.
    async fn next(&self, name: &str, live: &mut Live) -> Result<Step> {
        let step = decide(&live.observed(name, &self.ours));
        let makes = matches!(step, Step::NotePublishing | Step::Publish);
        let Some(order) = live
            .order
            .as_ref()
            .filter(|_| makes && live.hostname.is_none())
        else {
            return Ok(step);
        };
        let found = placement::hostname_of(&self.client, &order.spec.node).await;
        if let Err(error) = &found {
            self.tell(live, &words(error));
        }
        live.hostname = Some(found?);
        Ok(decide(&live.observed(name, &self.ours)))
    }

    /// Remembers what was ordered of a node, and whether it had room for that. Where the scheduler is asked for
    /// another node, the order is taken back after that, and that alone counts.
    fn note_room(&self, name: &str, step: &Step, live: &Live) {
        let Some((node, class, size)) = live.ordered() else {
            return;
        };
        match step {
            Step::Order { .. } => self.nodes.ordered(node, name, size),
            Step::Revoke if live.had_no_room() => self.nodes.had_no_room(node, class, size),
            Step::Revoke => {
                let failed = live.kept_failing();
                let failed = failed.map(|problem| (problem.class(), &*problem.message));
                // Its hostname may be its own again when the next node is chosen, and another's after that.
                let own = live.unbindable().or(live.stalled.as_deref());
                let own = own.map(|why| (ErrorClass::Retryable, why));
                if let (Some(order), Some((error, words))) = (&live.order, own.or(failed)) {
                    let asker = Asker {
                        volume: name,
                        namespace: &order.spec.claim.namespace,
                    };
                    self.nodes.failed(node, class, asker, error, words);
                    if live.unbindable().is_some() {
                        self.nodes.unbindable(node);
                    }
                }
            }
            Step::Publish => {
                self.nodes.made(node, name);
                self.nodes.had_room(node, class, size);
            }
            _ => {}
        }
    }

    /// A step was done, and these are the objects after it.
    pub(crate) fn done(&self, name: &str, step: &Step, live: &Live) {
        self.metrics.operated("step", "done");
        self.remember(live);
        let what = format!("{step:?}");
        log::info("step", &[("volume", name), ("did", &what)]);
        self.tell_done(live, step);
    }

    fn remember(&self, live: &Live) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let claim = live.claim.as_ref().map(|claim| &claim.metadata);
        let volume = live.volume.as_ref().map(|volume| &volume.metadata);
        let order = live.order.as_ref().map(|order| &order.metadata);
        for meta in [claim, volume, order].into_iter().flatten() {
            own.wrote(meta);
        }
    }

    /// Says what hinders, on the object that people look at, and where nobody can be told, as in a namespace
    /// that is being deleted, in the log.
    pub(crate) fn tell(&self, live: &Live, why: &str) {
        let (volume, claim) = live.names();
        log::warn(
            "a volume waits",
            &[("volume", &volume), ("claim", &claim), ("why", why)],
        );
        let volume = live.volume.as_ref();
        match (
            &live.claim,
            volume.filter(|found| volume::is_ours(found, &self.ours)),
        ) {
            (Some(claim), None) => {
                self.events
                    .say(claim, Tone::Warning, "ProvisioningFailed", why);
            }
            (Some(claim), Some(_)) => {
                self.events.say(claim, Tone::Warning, RESIZE_FAILED, why);
            }
            (None, Some(volume)) => {
                self.events
                    .say(volume, Tone::Warning, "VolumeFailedDelete", why);
            }
            (None, None) => {
                if let Some(order) = &live.order {
                    self.events.say(order, Tone::Warning, "StorageStays", why);
                }
            }
        }
    }

    fn tell_done(&self, live: &Live, step: &Step) {
        let Some(claim) = &live.claim else { return };
        let normal = |reason: &str, message: &str| {
            self.events.say(claim, Tone::Normal, reason, message);
        };
        match step {
            Step::Publish => normal("ProvisioningSucceeded", "storage and volume were made"),
            Step::FinishClaim(size) => {
                normal("VolumeResizeSuccessful", &format!("the volume has {size}"));
            }
            Step::Reschedule => {
                let full = "the node that the scheduler chose has no room for the volume";
                let away = live.away.as_ref().map(|away| away.why.as_str());
                let why = live.unbindable().or(live.stalled.as_deref()).or(away);
                normal("Rescheduling", why.unwrap_or(full));
            }
            _ => {}
        }
    }
}
