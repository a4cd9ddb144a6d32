//! The agent of a node: calls the node's drivers as the orders for the node say.

pub mod action;
mod bounds;
pub mod exec;
mod guard;
mod heartbeat;
pub mod nsenter;
mod status;
mod workers;

pub use heartbeat::HEARTBEAT;

use crate::{
    api::{
        drivers::Ours,
        labels::{NODE_LABEL, node_label},
        v1alpha1::{NodeVolume, NodeVolumeStatus, Wanted},
    },
    client::{fields::page, is_conflict, words},
    k8s::meta::uid,
    support::{
        log,
        metrics::Metrics,
        work_queue::{Outcome, Queue, pause_after},
    },
};
use action::{Duty, due, duty as duty_of};
use anyhow::{Context, Result};
use exec::{Drivers, Failure, arguments};
use flexvol_sdk::ErrorClass;
use futures_util::{StreamExt, pin_mut};
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher, watcher::Event},
};
use status::{failed, record, succeeded, ungrown, unknown};
use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// When an order that has changed meanwhile is looked at again.
const SOON: Duration = Duration::from_millis(50);

/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// One node's agent.
pub struct Agent {
    client: Client,
    node: String,
    ours: Ours,
    drivers: Drivers,
    queue: Arc<Queue>,
    metrics: Metrics,
    /// All orders were seen once.
    seen: AtomicBool,
    /// What is on the node was told once.
    told: AtomicBool,
    /// Of the drivers that have answered: whether kubelet has to grow their file systems.
    capabilities: Mutex<BTreeMap<String, bool>>,
    /// The UIDs of the orders that are not published, of whose storage this process knows.
    looked: Mutex<HashSet<String>>,
    /// The room on the node may have changed.
    changed: Notify,
    /// How often the node is told to be there.
    heartbeat: Duration,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// The agent of a node for these drivers, which says so often that it is there.
    #[must_use]
    pub fn new(
        client: Client,
        node: String,
        ours: Ours,
        drivers: Drivers,
        heartbeat: Duration,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Agent {
            client,
            node,
            ours,
            drivers,
            queue: Arc::new(Queue::new(LONGEST_PAUSE)),
            metrics,
            seen: AtomicBool::new(false),
            told: AtomicBool::new(false),
            capabilities: Mutex::default(),
            looked: Mutex::default(),
            changed: Notify::new(),
            heartbeat,
        })
    }

    /// Whether all orders were seen once, and what is on the node was told once: it is offered nothing before.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.seen.load(Ordering::Relaxed) && self.told.load(Ordering::Relaxed)
    }

    /// Works for ever.
    pub async fn run(self: Arc<Self>) {
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.watch().await });
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.report().await });
        let serve = |name: String| {
            let this = Arc::clone(&self);
            async move { this.serve(&name).await }
        };
        workers::work(Arc::clone(&self.queue), serve).await;
    }

    async fn watch(&self) {
        let orders: Api<NodeVolume> = Api::all(self.client.clone());
        let own = format!("{NODE_LABEL}={}", node_label(&self.node));
        // Whatever is done is read live before, so the API server may list from its memory: before Kubernetes
        // 1.31 it would read the orders of all nodes from etcd.
        let config = watcher::Config::default()
            .page_size(page::<NodeVolume>())
            .labels(&own)
            .any_semantic();
        let stream = watcher(orders, config).default_backoff();
        pin_mut!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(order) | Event::InitApply(order)) => {
                    let name = order.name_any();
                    let answer = order.status.clone().unwrap_or_default();
                    let answered = Some(answer.observed_generation) == order.metadata.generation;
                    if self.due(&order, &answer, answered) == Duty::Nothing {
                        continue;
                    }
                    // Namespaces take turns.
                    let owner = &order.spec.claim.namespace;
                    // News of our own failure, or what a former agent failed at.
                    if answered && answer.failures > 0 {
                        let pause = pause_after(answer.failures, LONGEST_PAUSE);
                        self.queue.push_later(owner, &name, pause);
                    } else {
                        self.queue.push(owner, &name);
                    }
                }
                Ok(Event::InitDone) => self.seen.store(true, Ordering::Relaxed),
                Ok(Event::Delete(order)) => drop(self.looked().remove(uid(&order.metadata))),
                // What goes meanwhile nobody tells.
                Ok(Event::Init) => self.looked().clear(),
                Err(error) => {
                    let error = error.to_string();
                    log::warn("the watch of orders broke off", &[("error", &error)]);
                }
            }
        }
    }

    async fn serve(&self, name: &str) -> Outcome {
        match self.order(name).await {
            Ok(outcome) => outcome,
            Err(error) if is_conflict(&error) => Outcome::After(SOON),
            Err(error) => {
                let error = words(&error);
                log::warn(
                    "cannot serve an order",
                    &[("volume", name), ("error", &error)],
                );
                Outcome::Failed
            }
        }
    }

    async fn order(&self, name: &str) -> Result<Outcome> {
        let orders: Api<NodeVolume> = Api::all(self.client.clone());
        let Some(order) = orders.get_opt(name).await.context("read the order")? else {
            return Ok(Outcome::Settled);
        };
        if order.spec.node != self.node || !self.ours.has(&order.spec.driver) {
            return Ok(Outcome::Settled);
        }
        let before = order.status.clone().unwrap_or_default();
        let answered = Some(before.observed_generation) == order.metadata.generation;
        let duty = self.due(&order, &before, answered);
        let Some(arguments) = arguments(&duty, name, &order.spec, &before) else {
            return Ok(Outcome::Settled);
        };
        let driver = &order.spec.driver;
        let grows_on_node = self.grows_on_node(driver).await;
        let result = match (&grows_on_node, self.forbids(name, &order, &duty).await?) {
            (Err(failure), _) => Err(failure.clone()),
            (_, Some(why)) => Err(Failure::new(ErrorClass::Retryable, why.to_owned())),
            (Ok(_), None) => {
                let started = Instant::now();
                let result = self.drivers.call(driver, &arguments).await;
                self.metrics
                    .called(driver, &arguments[0], started.elapsed());
                result.and_then(|reply| bounds::kept(driver, reply))
            }
        };
        // What cannot be asked is not asked again.
        if result
            .as_ref()
            .err()
            .is_none_or(|failure| failure.unsupported)
        {
            self.looked().insert(uid(&order.metadata).to_owned());
        }
        let callout = &arguments[0];
        let word = if result.is_ok() { "done" } else { "failed" };
        self.metrics.operated(callout, word);
        let mut after = match result {
            Ok(reply) => {
                log::info("called", &[("volume", name), ("callout", callout)]);
                self.changed.notify_one();
                succeeded(&duty, &before, reply)
            }
            Err(failure) => {
                let why = failure.message.as_str();
                log::warn(
                    "a call failed",
                    &[("volume", name), ("callout", callout), ("why", why)],
                );
                match (&duty, &grows_on_node) {
                    (Duty::Expand { new, old }, Ok(on_node)) if failure.unsupported => {
                        // Before it is published it has no file system that could grow it.
                        let nobody_else = !on_node || !order.spec.published;
                        ungrown(&before, driver, *new > *old && nobody_else)
                    }
                    // What was found before may not be there.
                    (Duty::Provision | Duty::Expand { .. }, _) if !order.spec.published => {
                        failed(&unknown(&before), failure)
                    }
                    _ => failed(&before, failure),
                }
            }
        };
        if let Ok(grows_on_node) = grows_on_node {
            after.grows_on_node = grows_on_node;
        }
        after.observed_generation = order.metadata.generation.unwrap_or_default();
        if !record(&orders, &order, &after).await? {
            return Ok(Outcome::After(SOON));
        }
        Ok(match after.failures {
            0 => Outcome::Settled,
            // Counted in the answer, so that a new agent goes on as slowly.
            failures => Outcome::After(pause_after(failures, LONGEST_PAUSE)),
        })
    }

    /// What to call next. Before a volume is published, what a former agent found is looked for: the machine may have
    /// been replaced under its name.
    fn due(&self, order: &NodeVolume, answer: &NodeVolumeStatus, answered: bool) -> Duty {
        match due(&order.spec, answer, answered) {
            Duty::Nothing
                if order.spec.wanted == Wanted::Present
                    && !order.spec.published
                    && !self.looked().contains(uid(&order.metadata)) =>
            {
                // What may be had by somebody already is not made again.
                let nothing_found = NodeVolumeStatus::default();
                duty_of(&order.spec, &nothing_found)
            }
            duty => duty,
        }
    }

    fn looked(&self) -> MutexGuard<'_, HashSet<String>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn grows_on_node(&self, driver: &str) -> Result<bool, Failure> {
        let known = {
            let all = self
                .capabilities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            all.get(driver).copied()
        };
        match known {
            Some(known) => Ok(known),
            None => self.ask(&self.drivers, driver).await,
        }
    }

    /// Asks a driver what it can do.
    async fn ask(&self, drivers: &Drivers, driver: &str) -> Result<bool, Failure> {
        let reply = drivers.call(driver, &["init".to_owned()]).await?;
        // What kubelet assumes of a driver that does not say.
        let grows_on_node = reply.capabilities.unwrap_or_default().requires_fs_resize;
        let mut all = self
            .capabilities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(driver.to_owned(), grows_on_node);
        Ok(grows_on_node)
    }
}
