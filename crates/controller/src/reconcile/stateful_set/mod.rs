//! Reconciler of stateful sets: applies a size in an annotation to all claims of a template.
//!
//! A set's templates are immutable (`pkg/apis/apps/validation`), so the size is in an annotation,
//! `grow.flexvol.dev/<template>: 20Gi`. Claims grow while their pods run: no set is scaled or recreated, and no claim
//! is created or deleted. Pods are evicted only if another annotation (`offline`) permits it. A claim that a set
//! creates later has the template's size, and grows as soon as it is bound. Each claim is compared with the
//! annotation, so an interrupted growth goes on. The only state is whose turn it is, and for which growths a pod was
//! evicted.

mod evict;
mod eviction_decision;
mod needs;
mod phases;
mod recent_evictions;
mod round;
mod snapshot;
#[cfg(test)]
mod tests;

use crate::{
    api::well_known::RESIZE_FAILED,
    client::{MaybePartial, Read, Refusal, error_message, refusal},
    drivers::ServedDrivers,
    events::{EventRecorder, EventType},
    k8s::{
        claim::{asked, capacity},
        stateful_set::{restarts, wanted},
    },
    runtime::{
        backoff::Backoff,
        reflector::{Event, Presence, reflect},
        work_queue::{Outcome, Queue},
        workers::Workers,
    },
    support::{log, metrics::Metrics},
};
use anyhow::{Context, Result};
use evict::{Evictions, Turn};
use eviction_decision::WaitReason;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use needs::{Need, WantedClaim, need, stranger, wanted_claims};
use phases::Phases;
use round::Round;
use serde_json::json;
use snapshot::read_set;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const WORKERS: Workers = Workers {
    kind: "set",
    count: 1,
    long: 0,
};

/// Interval after which a set is reconciled again if a claim was asked to grow, and minimum interval between the end of a
/// turn and the next one if the set was edited meanwhile, so that frequent edits of one set do not delay others.
const SOON: Duration = Duration::from_secs(5);

/// Backoff for a set with waiting claims, if it does not change.
const WAITS: Backoff = Backoff {
    first: SOON,
    longest: Duration::from_secs(300),
};

/// Backoff if all claims have their size. The set may have created others meanwhile.
const DONE: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// Number of claims, or of pods that may be evicted, after which the next set has its turn, so that a set with thousands
/// does not delay others.
const TURN: usize = 20;

/// Reconciler of stateful sets.
struct Reconciler {
    client: Client,
    /// Drivers whose claims are asked to grow.
    ours: ServedDrivers,
    queue: Arc<Queue>,
    events: Arc<EventRecorder>,
    /// Rounds in progress, by set.
    rounds: Mutex<HashMap<String, Round>>,
    /// The last turns of sets.
    looks: Mutex<HashMap<String, Look>>,
    evictions: Evictions,
    phases: Phases,
    metrics: Metrics,
}

/// A turn of a set.
#[derive(Debug, Default)]
struct Look {
    ended: Option<Instant>,
    /// Whether the set had an event since its beginning.
    again: bool,
}

/// Runs the reconciler for ever.
pub(crate) fn run(
    client: Client,
    ours: ServedDrivers,
    events: Arc<EventRecorder>,
    metrics: &Metrics,
) -> impl Future<Output = ()> + use<> {
    Reconciler::new(client, ours, events, metrics).run()
}

impl Reconciler {
    fn new(
        client: Client,
        ours: ServedDrivers,
        events: Arc<EventRecorder>,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let evictions = Evictions::new(client.clone(), ours.clone(), Arc::clone(&events));
        Arc::new(Reconciler {
            client,
            ours,
            queue: Arc::new(Queue::new(
                Backoff::FAILURES,
                metrics.of_queue(WORKERS.kind),
            )),
            events,
            rounds: Mutex::default(),
            looks: Mutex::default(),
            evictions,
            phases: Phases::new(metrics.clone()),
            metrics: metrics.clone(),
        })
    }

    async fn run(self: Arc<Self>) {
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.watch().await });
        let reconcile = |key: String| {
            self.begin_turn(&key);
            let this = Arc::clone(&self);
            async move {
                let outcome = this.reconcile(&key).await;
                this.end_turn(&key);
                outcome
            }
        };
        WORKERS.run(Arc::clone(&self.queue), reconcile).await;
    }

    async fn watch(&self) {
        let sets: Api<MaybePartial<StatefulSet>> = Api::all(self.client.clone());
        let handle = |event: Event<StatefulSet>| {
            let (set, presence) = match event {
                Event::Object(set, presence) => (Some(set), presence),
                // Its turn reads it live, and tells its owner.
                Event::Part(part, presence) => (part.object, presence),
                _ => return,
            };
            let Some(set) = set else { return };
            let namespace = set.namespace().unwrap_or_default();
            let key = format!("{namespace}/{}", set.name_any());
            let asks = !wanted(&set).is_empty() || restarts(&set).is_err();
            if presence == Presence::Gone || !asks {
                self.phases.put(&key, None);
            } else if let Some(due) = self.due(&key) {
                // Namespaces take turns.
                self.queue.push_by(&namespace, &key, due);
            }
        };
        let config = watcher::Config::default();
        reflect(sets, config, &self.metrics, handle).await;
    }

    /// Notes that a turn of a set begins, until [`end_turn`](Self::end_turn).
    fn begin_turn(&self, key: &str) {
        let mut all = self.all_looks();
        all.retain(|_, look| look.ended.is_none_or(|at| at.elapsed() < SOON));
        all.insert(key.to_owned(), Look::default());
    }

    /// Notes that the turn has ended. If the set had an event meanwhile, it is looked at again.
    fn end_turn(&self, key: &str) {
        let again = self.all_looks().get_mut(key).is_some_and(|look| {
            look.ended = Some(Instant::now());
            look.again
        });
        if again {
            let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
            self.queue.push_by(namespace, key, Instant::now() + SOON);
        }
    }

    /// When a set with an event may be reconciled, unless it is being reconciled.
    fn due(&self, key: &str) -> Option<Instant> {
        match self.all_looks().get_mut(key) {
            None => Some(Instant::now()),
            Some(look) => {
                look.again |= look.ended.is_none();
                look.ended.map(|ended| ended + SOON)
            }
        }
    }

    fn all_looks(&self) -> MutexGuard<'_, HashMap<String, Look>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn reconcile(&self, key: &str) -> Result<Outcome> {
        let begun = self.rounds().remove(key);
        let (namespace, name) = key.split_once('/').context("a set's key")?;
        let set = read_set(&self.client, &self.events, namespace, name).await?;
        let set = set.filter(|set| set.metadata.deletion_timestamp.is_none());
        let Some(set) = set else {
            self.phases.put(key, None);
            return Ok(Outcome::Done);
        };
        let (mut round, rest) = match begun {
            Some(round) => round.next(&set),
            None => (Round::new(&set), Duration::ZERO),
        };
        if round.examined == 0 {
            self.tell_mistakes(&set);
        }
        if wanted(&set).is_empty() {
            self.phases.put(key, None);
            return Ok(Outcome::Done);
        }
        let claims: Api<Read<PersistentVolumeClaim>> =
            Api::namespaced(self.client.clone(), namespace);
        let mut left = wanted_claims(&set).skip(round.examined);
        for asked in left.by_ref().take(TURN) {
            let need = self.claim(&set, &claims, &asked).await?;
            round.found(&need, &asked);
        }
        if left.next().is_none() {
            self.phases.put(key, Some(round.phase(&set)));
            if round.asked || restarts(&set) != Ok(true) {
                return Ok(round.outcome());
            }
            if let Some(outcome) = self.grow_offline(&set, &mut round).await? {
                return Ok(outcome);
            }
        }
        self.rounds().insert(key.to_owned(), round);
        Ok(Outcome::GoOn(rest))
    }

    /// Looks at the next pods that may be evicted. Returns the outcome of the round if it ends with them.
    async fn grow_offline(&self, set: &StatefulSet, round: &mut Round) -> Result<Option<Outcome>> {
        let begun = round.unfinished.take();
        let begins = round.passed.is_none() && begun.is_none();
        if let Some((ordinal, claim)) = round.fail.last_key_value().filter(|_| begins) {
            let why = WaitReason::Storage(claim.clone());
            self.evictions.passes_over(set, *ordinal, &why, true);
        }
        let turns = round.turns();
        if turns.is_empty() {
            return Ok(Some(round.outcome()));
        }
        // Nobody reads hundreds of events.
        match self
            .evictions
            .evict_next(set, &turns, begun, begins)
            .await?
        {
            Turn::Taken(outcome) => return Ok(Some(outcome)),
            Turn::GoesOn { passed, unfinished } => {
                round.passed = passed.or(round.passed);
                round.unfinished = unfinished;
            }
        }
        Ok(round.turns().is_empty().then(|| round.outcome()))
    }

    fn rounds(&self) -> MutexGuard<'_, HashMap<String, Round>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports invalid sizes and templates, at most five, because nobody reads hundreds.
    fn tell_mistakes(&self, set: &StatefulSet) {
        let mistakes = wanted(set).into_iter().filter_map(|(_, size)| size.err());
        for why in restarts(set).err().into_iter().chain(mistakes).take(5) {
            self.events
                .record(set, EventType::Warning, RESIZE_FAILED, &why);
        }
    }

    /// Asks one claim to grow, if necessary. Returns what it needs: `Time`, if it could not be asked.
    async fn claim(
        &self,
        set: &StatefulSet,
        claims: &Api<Read<PersistentVolumeClaim>>,
        WantedClaim {
            claim: name, size, ..
        }: &WantedClaim,
    ) -> Result<Need> {
        let Some(Read {
            object: claim,
            is_truncated,
        }) = claims.get_opt(name).await.context("read a claim")?
        else {
            return Ok(Need::Nothing);
        };
        let failed = |why: &str| {
            self.events
                .record(set, EventType::Warning, RESIZE_FAILED, why);
        };
        if is_truncated {
            failed(&format!(
                "claim {name} is too large to be understood; take finalizers and conditions from it"
            ));
            return Ok(Need::Time);
        }
        if let Some(driver) = stranger(&claim, &self.ours) {
            failed(&format!(
                "claim {name} is of provisioner {driver}, and is left alone; ask for its size itself"
            ));
            return Ok(Need::Nothing);
        }
        let need = need(&claim, *size);
        match need {
            Need::Growth | Need::Storage => {
                // Nobody knows who asked for more: the set, before its annotation was edited, or somebody else.
                let asks = asked(&claim);
                if asks > *size {
                    failed(&format!(
                        "claim {name} asks for {asks}, and has {}; for {size}, lower its own request (Kubernetes 1.32 or newer), or run flexvol-controller recover",
                        capacity(&claim)
                    ));
                }
            }
            Need::Nothing | Need::Time => {}
            Need::Smaller(has) => failed(&format!(
                "claim {name} has {has}; {size} was asked for, and volumes do not shrink"
            )),
            Need::Ask(size) => {
                let patch = json!({
                    "metadata": {"resourceVersion": claim.metadata.resource_version},
                    "spec": {"resources": {"requests": {"storage": size.to_string()}}},
                });
                let patch = Patch::Merge(&patch);
                match claims.patch(name, &PatchParams::default(), &patch).await {
                    Ok(Read { object, .. }) if asked(&object) < size => {
                        failed(&format!(
                            "claim {name} cannot ask for {size}: it asks for {}",
                            asked(&object)
                        ));
                        return Ok(Need::Time);
                    }
                    Ok(_) => {
                        let what = format!("claim {name} was asked to grow to {size}");
                        log::info("a set grows", &[("set", &set.name_any()), ("claim", name)]);
                        self.events
                            .record(set, EventType::Normal, "Resizing", &what);
                    }
                    Err(error) if refusal(&error) == Refusal::Changed => return Ok(Need::Time),
                    // Forbidden by its class or a quota. Other claims may still grow.
                    Err(error) => {
                        failed(&format!("claim {name}: {}", error_message(&error.into())));
                        return Ok(Need::Time);
                    }
                }
            }
        }
        Ok(need)
    }
}
