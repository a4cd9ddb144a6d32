//! What the reconciler of volumes works with.

use super::{WORKERS, recent_nodes::RecentNodes, reschedule::Reschedules};
use crate::{
    api::well_known::CONTROLLER,
    cache::{
        claims::Claims, classes::Classes, expansions::Expansions, own_writes::OwnWrites,
        volumes::Index,
    },
    drivers::ServedDrivers,
    events::EventRecorder,
    placement::Nodes,
    runtime::{backoff::Backoff, work_queue::Queue},
    support::metrics::Metrics,
};
use kube::Client;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

/// How soon it is looked again where somebody else has to act: news may get lost, and then a claim would wait for
/// ever.
pub(super) const OTHERS: Backoff = Backoff {
    first: Duration::from_secs(300),
    longest: Duration::from_secs(3600),
};

/// No volume needs more steps without anything happening in between.
pub(super) const STEPS: usize = 16;

/// What all volumes have in common.
pub struct Context {
    pub(crate) client: Client,
    pub(crate) ours: ServedDrivers,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) index: Index,
    pub(super) claims: Claims,
    pub(super) classes: Classes,
    pub(super) own_writes: OwnWrites,
    pub(super) recent_nodes: RecentNodes,
    pub(super) reschedules: Reschedules,
    pub(super) queue: Arc<Queue>,
    pub(crate) events: Arc<EventRecorder>,
    pub(crate) metrics: Metrics,
    /// Claims that are growing.
    pub(super) expansions: Expansions,
    /// How many watches there are.
    pub(super) watches: AtomicU8,
    /// How many of them have seen everything once.
    pub(super) synced: AtomicU8,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// For the volumes of these drivers, on these nodes.
    #[must_use]
    pub fn new(
        client: Client,
        ours: ServedDrivers,
        nodes: Arc<Nodes>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Context {
            events: Arc::new(EventRecorder::start(client.clone(), CONTROLLER)),
            client,
            ours,
            nodes,
            index: Index::default(),
            claims: Claims::default(),
            classes: Classes::default(),
            own_writes: OwnWrites::default(),
            recent_nodes: RecentNodes::default(),
            reschedules: Reschedules::default(),
            queue: Arc::new(Queue::new(
                Backoff::FAILURES,
                metrics.of_queue(WORKERS.kind),
            )),
            metrics,
            expansions: Expansions::default(),
            watches: AtomicU8::new(0),
            synced: AtomicU8::new(0),
        })
    }

    /// Whether all there is was seen once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let watches = self.watches.load(Ordering::Relaxed);
        watches > 0 && self.synced.load(Ordering::Relaxed) >= watches
    }

    /// Before all was seen nobody can tell what of it belongs together.
    pub(crate) async fn wait_until_ready(&self) {
        while !self.is_ready() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Something about a volume has changed. Namespaces take turns.
    pub(super) fn enqueue(&self, name: &str) {
        let of_claim = self.claims.place(name).map(|(namespace, _)| namespace);
        let owner = of_claim.unwrap_or_else(|| self.index.namespace(name).to_string());
        self.queue.push(&owner, name);
    }
}
