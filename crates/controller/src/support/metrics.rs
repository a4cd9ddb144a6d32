//! Metrics for Prometheus.

mod known;
mod labels;
#[cfg(test)]
mod tests;

use crate::support::watch_health::Watches;
use flexvol_sdk::{Bytes, PoolSpace};
use known::Known;
use labels::{
    CallLabels, ClassLabels, NoLabels, OperationLabels, PhaseLabels, PoolLabels, QueueLabels,
    RequestLabels, StateLabels, WatchLabels,
};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Metric, Registry},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The format of [`Metrics::text`]. Prometheus 3 reads no metrics without it.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Buckets of driver calls. Drivers answer in milliseconds, and may take minutes to format or wipe.
const SECONDS: [f64; 11] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Buckets of the time in a work queue: milliseconds, unless it is long or its workers are blocked.
const QUEUED: [f64; 8] = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0];

/// Buckets of expansion: below a second for a volume in use, or else as long as no pod uses the volume.
const GROWTH: [f64; 9] = [0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 3600.0, 86400.0];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<RequestLabels, Counter>,
    relists: Family<WatchLabels, Counter>,
    watch_errors: Family<WatchLabels, Counter>,
    operations: Family<OperationLabels, Counter>,
    calls: Histograms<CallLabels>,
    depths: Family<QueueLabels, Gauge>,
    queued: Histograms<QueueLabels>,
    missing: Known<ClassLabels>,
    pool_size: Known<PoolLabels>,
    pool_free: Known<PoolLabels>,
    pool_promised: Known<PoolLabels>,
    volumes: Family<StateLabels, Gauge>,
    stateful_sets: Family<PhaseLabels, Gauge>,
    certificate: Family<NoLabels, Gauge>,
    /// The health of watches.
    pub watches: Watches,
    /// One while this process is the leader.
    pub leading: Gauge,
    /// Seconds from the edit of a claim until its status has the new capacity.
    pub growth: Histogram,
    /// Seconds since the edit of the claim that has waited for its growth for longest, or zero.
    pub growth_oldest: Gauge,
    /// Claims whose volume is being created or waits for a node, or that have less than they request.
    pub claims_waiting: Gauge,
    /// Nodes whose agents send no heartbeats.
    pub nodes_silent: Gauge,
    /// Volumes whose last call on the node failed.
    pub volumes_failing: Gauge,
}

/// Metrics of one work queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// Number of keys that wait for a worker.
    pub depth: Gauge,
    /// Seconds for which keys waited.
    pub queued: Histogram,
}

/// Registers a metric.
fn register<M: Metric + Clone>(all: &mut Registry, name: &str, help: &str, metric: M) -> M {
    all.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        let mut all = Registry::with_prefix("flexvol");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        all.register("build", "the version of this program", version);
        let metrics = Metrics::registered(&mut all);
        Metrics {
            registry: Arc::new(all),
            ..metrics
        }
    }
}

impl Metrics {
    fn registered(all: &mut Registry) -> Self {
        Metrics {
            registry: Arc::default(),
            watches: Watches::default(),
            requests: register(
                all,
                "api_requests",
                "requests to the API server; code 0: no answer",
                Family::default(),
            ),
            relists: register(
                all,
                "watch_relists",
                "lists of all objects after the first one, because a watch could not go on",
                Family::default(),
            ),
            watch_errors: register(
                all,
                "watch_errors",
                "watches and lists that broke off",
                Family::default(),
            ),
            operations: register(
                all,
                "operations",
                "steps of the controller, or calls of drivers, and how they ended",
                Family::default(),
            ),
            calls: register(
                all,
                "call_seconds",
                "how long calls of drivers took",
                Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> _),
            ),
            depths: register(
                all,
                "workqueue_depth",
                "names that wait for a worker",
                Family::default(),
            ),
            queued: register(
                all,
                "workqueue_queue_duration_seconds",
                "how long names waited for a worker",
                Family::new_with_constructor((|| Histogram::new(QUEUED)) as fn() -> _),
            ),
            missing: Known::of(register(
                all,
                "missing_bytes",
                "what volumes were promised and do not have, by the storage of a class, where its driver knows",
                Family::default(),
            )),
            pool_size: Known::of(register(
                all,
                "pool_size_bytes",
                "the size of a pool, where its driver knows",
                Family::default(),
            )),
            pool_free: Known::of(register(
                all,
                "pool_free_bytes",
                "what a pool can still give to volumes, where its driver knows",
                Family::default(),
            )),
            pool_promised: Known::of(register(
                all,
                "pool_promised_bytes",
                "the sizes of all volumes of a pool, where its driver knows",
                Family::default(),
            )),
            volumes: register(
                all,
                "volumes",
                "volumes by the state of their storage",
                Family::default(),
            ),
            stateful_sets: register(
                all,
                "stateful_sets",
                "stateful sets whose annotations ask for larger claims, by phase",
                Family::default(),
            ),
            certificate: register(
                all,
                "webhook_certificate_renewal_timestamp_seconds",
                "when the certificate that webhooks show is to be renewed",
                Family::default(),
            ),
            leading: register(
                all,
                "leading",
                "1 while this process leads",
                Gauge::default(),
            ),
            growth: register(
                all,
                "growth_seconds",
                "from the edit of a claim until it says that it has grown",
                Histogram::new(GROWTH),
            ),
            growth_oldest: register(
                all,
                "growth_oldest_seconds",
                "how long the claim has waited that has waited for its growth for longest",
                Gauge::default(),
            ),
            claims_waiting: register(
                all,
                "claims_waiting",
                "claims whose volume is being made, or waits for a node, or that have less than they ask for",
                Gauge::default(),
            ),
            nodes_silent: register(
                all,
                "nodes_silent",
                "nodes of whose agents nothing is heard",
                Gauge::default(),
            ),
            volumes_failing: register(
                all,
                "volumes_failing",
                "volumes whose driver failed when it was last asked",
                Gauge::default(),
            ),
        }
    }

    /// Counts a request by the code of its answer, or 0 if there was none.
    pub fn requested(&self, verb: &'static str, resource: &str, code: u16) {
        let labels = RequestLabels {
            verb,
            resource: resource.to_owned(),
            code: u32::from(code),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a list of all objects of a watch after the first one.
    pub fn relisted(&self, resource: &str) {
        let resource = resource.to_owned();
        self.relists.get_or_create(&WatchLabels { resource }).inc();
    }

    /// Counts a watch, or a list before it, that broke off.
    pub fn watch_failed(&self, resource: &str) {
        let resource = resource.to_owned();
        let labels = WatchLabels { resource };
        self.watch_errors.get_or_create(&labels).inc();
    }

    /// Counts the end of a step or a call.
    pub fn operated(&self, operation: &str, result: &str) {
        let labels = OperationLabels {
            operation: operation.to_owned(),
            result: result.to_owned(),
        };
        self.operations.get_or_create(&labels).inc();
    }

    /// Observes the duration of a driver's call, which was answered or killed.
    pub fn called(&self, driver: &str, callout: &str, took: Duration) {
        let labels = CallLabels {
            driver: driver.to_owned(),
            callout: callout.to_owned(),
        };
        let seconds = self.calls.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }

    /// Sets the bytes that volumes lack, by driver and class. Other classes are unknown and lose their metric.
    pub fn lack(&self, missing: &BTreeMap<(String, String), Bytes>) {
        self.missing.set(missing.iter().map(|(of, bytes)| {
            let (driver, class) = of.clone();
            (ClassLabels { driver, class }, bytes.0)
        }));
    }

    /// Sets the space of pools, by driver and pool. What is unknown loses its metric.
    pub fn pools(&self, pools: &BTreeMap<(String, String), PoolSpace>) {
        let set = |gauges: &Known<PoolLabels>, of: fn(&PoolSpace) -> Option<Bytes>| {
            gauges.set(pools.iter().filter_map(|((driver, pool), space)| {
                let (driver, pool) = (driver.clone(), pool.clone());
                Some((PoolLabels { driver, pool }, of(space)?.0))
            }));
        };
        set(&self.pool_size, |space| space.size);
        set(&self.pool_free, |space| space.free);
        set(&self.pool_promised, |space| space.promised);
    }

    /// Returns the number of volumes in this state.
    #[must_use]
    pub fn volumes(&self, state: &'static str) -> Gauge {
        self.volumes.get_or_create_owned(&StateLabels { state })
    }

    /// Returns the number of stateful sets in this phase.
    #[must_use]
    pub fn stateful_sets(&self, phase: &'static str) -> Gauge {
        let labels = PhaseLabels { phase };
        self.stateful_sets.get_or_create_owned(&labels)
    }

    /// Sets when the webhooks' certificate is to be renewed, in seconds since 1970.
    pub fn certificate_renewal(&self, at: i64) {
        self.certificate.get_or_create(&[]).set(at);
    }

    /// Returns the metrics of the work queue of this name.
    #[must_use]
    pub fn of_queue(&self, name: &'static str) -> QueueMetrics {
        let labels = QueueLabels { name };
        QueueMetrics {
            depth: self.depths.get_or_create_owned(&labels),
            queued: self.queued.get_or_create_owned(&labels),
        }
    }

    /// Returns all metrics as text, in the format [`CONTENT_TYPE`].
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
