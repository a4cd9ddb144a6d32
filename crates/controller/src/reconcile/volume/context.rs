//! Shared state of the reconciler of volumes.

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
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

/// Backoff while another component has to act. An event may get lost, and the claim would wait for ever.
pub(super) const OTHERS: Backoff = Backoff {
    first: Duration::from_secs(300),
    longest: Duration::from_secs(3600),
};

/// Maximum number of steps of a volume in one reconciliation.
pub(super) const STEPS: usize = 16;

/// State that all volumes share.
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
    /// Whether the API server dropped allocated sizes of claims when this process last wrote one.
    drops_allocated: AtomicBool,
    /// Expansions in progress.
    pub(super) expansions: Expansions,
    /// Number of watches.
    pub(super) watches: AtomicU8,
    /// Number of watches that have completed their first list.
    pub(super) synced: AtomicU8,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Creates the state for volumes of these drivers on these nodes.
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
            drops_allocated: AtomicBool::new(false),
            expansions: Expansions::default(),
            watches: AtomicU8::new(0),
            synced: AtomicU8::new(0),
        })
    }

    /// Whether the API server drops allocated sizes of claims, as far as is known. Every growth writes one at its end,
    /// so a newer API server is noticed.
    pub(super) fn drops_allocated(&self) -> bool {
        self.drops_allocated.load(Ordering::Relaxed)
    }

    /// Notes whether the API server has dropped an allocated size that was just written.
    pub(super) fn note_dropped_allocation(&self, dropped: bool) {
        self.drops_allocated.store(dropped, Ordering::Relaxed);
    }

    /// Whether all watches have completed their first list.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let watches = self.watches.load(Ordering::Relaxed);
        watches > 0 && self.synced.load(Ordering::Relaxed) >= watches
    }

    /// Waits for the first lists: before them it is unknown which objects belong together.
    pub(crate) async fn wait_until_ready(&self) {
        while !self.is_ready() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Enqueues a volume with its claim's namespace as owner.
    pub(super) fn enqueue(&self, name: &str) {
        let of_claim = self.claims.place(name).map(|(namespace, _)| namespace);
        let owner = of_claim.unwrap_or_else(|| self.index.namespace(name).to_string());
        self.queue.push(&owner, name);
    }
}
