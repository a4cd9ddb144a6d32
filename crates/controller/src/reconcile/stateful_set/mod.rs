//! Stateful sets: a size in an annotation becomes the size of all claims of a template.
//!
//! The templates of a set cannot be edited (`pkg/apis/apps/validation`), so the size stands in an
//! annotation, `grow.flexvol.dev/<template>: 20Gi`. Claims grow while their pods run: no set is scaled or
//! made anew, and no claim is made or deleted. Pods are left alone too, unless another annotation says
//! that they may be stopped for it (`offline`). A claim that a set makes later has the template's size,
//! and grows as soon as it is bound. What was begun goes on by itself: each claim is compared with the
//! annotation, and nothing is remembered but whose turn it is, and for which growth a pod was stopped.

mod evict;
mod eviction_decision;
mod needs;
mod recent_evictions;
mod round;
mod snapshot;

use crate::{
    api::well_known::RESIZE_FAILED,
    client::{Read, Refusal, error_message, refusal},
    drivers::ServedDrivers,
    events::{EventRecorder, EventType},
    k8s::stateful_set::{restarts, wanted},
    runtime::{
        backoff::Backoff,
        reflector::{Event, Presence, reflect},
        work_queue::{Outcome, Queue},
        workers::Workers,
    },
    support::{log, metrics::Metrics},
};
use anyhow::{Context, Result};
use evict::Evictions;
use eviction_decision::Why;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use needs::{Need, WantedClaim, need, stranger, wanted_claims};
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

/// A set of which a claim was asked to grow is looked at again after this, and no set is sooner because of news of it:
/// who edits one all the time keeps no other waiting.
const SOON: Duration = Duration::from_secs(5);

/// How soon a set is looked at again that has claims which wait for something, if it does not change.
const WAITS: Backoff = Backoff {
    first: SOON,
    longest: Duration::from_secs(300),
};

/// The same if all claims have their size: the set may have made others meanwhile.
const DONE: Backoff = Backoff {
    first: Duration::from_secs(60),
    longest: Duration::from_secs(3600),
};

/// After so many claims it is the next set's turn: one with thousands of claims keeps no other waiting.
const TURN: usize = 20;

/// Grows the claims of sets.
struct Reconciler {
    client: Client,
    /// Whose claims are asked to grow.
    ours: ServedDrivers,
    queue: Arc<Queue>,
    events: Arc<EventRecorder>,
    /// By set.
    rounds: Mutex<HashMap<String, Round>>,
    /// When sets were looked at last.
    looked: Mutex<HashMap<String, Instant>>,
    evictions: Evictions,
}

/// Grows the claims of sets, for ever.
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
            looked: Mutex::default(),
            evictions,
        })
    }

    async fn run(self: Arc<Self>) {
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.watch().await });
        let reconcile = |key: String| {
            self.looks(&key);
            let this = Arc::clone(&self);
            async move { this.reconcile(&key).await }
        };
        WORKERS.run(Arc::clone(&self.queue), reconcile).await;
    }

    async fn watch(&self) {
        let sets: Api<StatefulSet> = Api::all(self.client.clone());
        let handle = |event| {
            if let Event::Object(set, Presence::There) = event
                && (!wanted(&set).is_empty() || restarts(&set).is_err())
            {
                let namespace = set.namespace().unwrap_or_default();
                let key = format!("{namespace}/{}", set.name_any());
                // Namespaces take turns.
                self.queue.push_by(&namespace, &key, self.due(&key));
            }
        };
        reflect(sets, watcher::Config::default(), handle).await;
    }

    fn looks(&self, key: &str) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked.retain(|_, at| at.elapsed() < SOON);
        looked.insert(key.to_owned(), Instant::now());
    }

    /// When a set of which there is news may be looked at.
    fn due(&self, key: &str) -> Instant {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked
            .get(key)
            .map_or_else(Instant::now, |looked| *looked + SOON)
    }

    async fn reconcile(&self, key: &str) -> Result<Outcome> {
        let begun = self.rounds().remove(key);
        let (namespace, name) = key.split_once('/').context("a set's key")?;
        let Some(set) = read_set(&self.client, &self.events, namespace, name).await? else {
            return Ok(Outcome::Done);
        };
        let new = Round::new(&set);
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let mut round = begun.filter(|round| round.of == new.of).unwrap_or(new);
        if round.looked_at == 0 {
            self.tell_mistakes(&set);
        }
        if wanted(&set).is_empty() {
            return Ok(Outcome::Done);
        }
        let claims: Api<Read<PersistentVolumeClaim>> =
            Api::namespaced(self.client.clone(), namespace);
        let mut rest = wanted_claims(&set).skip(round.looked_at);
        for asked in rest.by_ref().take(TURN) {
            let need = self.claim(&set, &claims, &asked).await?;
            round.found(&need, &asked);
        }
        if rest.next().is_none() {
            if round.asked || restarts(&set) != Ok(true) {
                return Ok(round.outcome());
            }
            if let Some((ordinal, claim)) = round.fail.last_key_value() {
                self.evictions
                    .passes_over(&set, *ordinal, &Why::Storage(claim.clone()));
            }
            let turns = round.turns();
            if turns.is_empty() {
                return Ok(round.outcome());
            }
            return self.evictions.offline(&set, &turns).await;
        }
        self.rounds().insert(key.to_owned(), round);
        Ok(Outcome::RequeueAfter(Duration::ZERO))
    }

    fn rounds(&self) -> MutexGuard<'_, HashMap<String, Round>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sizes and templates that are none. A few: whoever writes hundreds of them does not read them all.
    fn tell_mistakes(&self, set: &StatefulSet) {
        let mistakes = wanted(set).into_iter().filter_map(|(_, size)| size.err());
        for why in restarts(set).err().into_iter().chain(mistakes).take(5) {
            self.events
                .record(set, EventType::Warning, RESIZE_FAILED, &why);
        }
    }

    /// Asks one claim to grow, if it needs that, and says what it needed; time, if it cannot be asked.
    async fn claim(
        &self,
        set: &StatefulSet,
        claims: &Api<Read<PersistentVolumeClaim>>,
        WantedClaim {
            claim: name, size, ..
        }: &WantedClaim,
    ) -> Result<Need> {
        let Some(Read { object: claim, cut }) =
            claims.get_opt(name).await.context("read a claim")?
        else {
            return Ok(Need::Nothing);
        };
        let failed = |why: &str| {
            self.events
                .record(set, EventType::Warning, RESIZE_FAILED, why);
        };
        if cut {
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
            Need::Nothing | Need::Time | Need::Growth | Need::Storage => {}
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
                    Ok(_) => {
                        let what = format!("claim {name} was asked to grow to {size}");
                        log::info("a set grows", &[("set", &set.name_any()), ("claim", name)]);
                        self.events
                            .record(set, EventType::Normal, "Resizing", &what);
                    }
                    Err(error) if refusal(&error) == Refusal::Changed => return Ok(Need::Time),
                    // Its class does not allow it, or a quota: the others may grow all the same.
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
