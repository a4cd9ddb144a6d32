//! Metrics for Prometheus.

use crate::support::watch_health::Watches;
use flexvol_sdk::Bytes;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Buckets of driver calls. Drivers answer in milliseconds, and may take minutes to format or wipe.
const SECONDS: [f64; 11] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Buckets of the time in a work queue: milliseconds, unless it is long or its workers are blocked.
const QUEUED: [f64; 8] = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0];

/// Buckets of expansion: below a second for a volume in use, or else as long as no pod uses the volume.
const GROWTH: [f64; 9] = [0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 3600.0, 86400.0];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics. No label is a volume's name, because there may be a hundred thousand volumes.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<RequestLabels, Counter>,
    operations: Family<OperationLabels, Counter>,
    calls: Histograms<CallLabels>,
    depths: Family<QueueLabels, Gauge>,
    queued: Histograms<QueueLabels>,
    missing: Family<ClassLabels, Gauge>,
    /// The labels that `missing` has, because the family does not list them.
    said_missing: Arc<Mutex<Vec<ClassLabels>>>,
    /// The health of watches.
    pub watches: Watches,
    /// One while this process is the leader.
    pub leading: Gauge,
    /// Seconds from the edit of a claim until its status has the new capacity.
    pub growth: Histogram,
    /// Claims whose volume is being created or waits for a node, or that have less than they request.
    pub claims_waiting: Gauge,
    /// Nodes whose agents send no heartbeats.
    pub nodes_silent: Gauge,
    /// Volumes whose storage has to be created, grown or deleted.
    pub volumes_unsettled: Gauge,
    /// Volumes whose last call on the node failed.
    pub volumes_failing: Gauge,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
    code: u32,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct OperationLabels {
    operation: String,
    result: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct CallLabels {
    driver: String,
    callout: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct QueueLabels {
    name: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct ClassLabels {
    driver: String,
    class: String,
}

/// Metrics of one work queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// Number of keys that wait for a worker.
    pub depth: Gauge,
    /// Seconds for which keys waited.
    pub queued: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexvol");
        let requests = Family::default();
        let operations = Family::default();
        let missing = Family::default();
        let calls = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> _);
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let leading = gauge("leading", "1 while this process leads");
        let claims_waiting = gauge(
            "claims_waiting",
            "claims whose volume is being made, or waits for a node, or that have less than they ask for",
        );
        let nodes_silent = gauge("nodes_silent", "nodes of whose agents nothing is heard");
        let volumes_unsettled = gauge(
            "volumes_unsettled",
            "volumes whose storage is to be made, grown or deleted",
        );
        let volumes_failing = gauge(
            "volumes_failing",
            "volumes whose driver failed when it was last asked",
        );
        registry.register(
            "api_requests",
            "requests to the API server; code 0: no answer",
            requests.clone(),
        );
        registry.register(
            "build",
            "the version of this program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let depths = Family::default();
        registry.register(
            "workqueue_depth",
            "names that wait for a worker",
            depths.clone(),
        );
        let queued = Family::new_with_constructor((|| Histogram::new(QUEUED)) as fn() -> _);
        registry.register(
            "workqueue_queue_duration_seconds",
            "how long names waited for a worker",
            queued.clone(),
        );
        let growth = Histogram::new(GROWTH);
        registry.register(
            "growth_seconds",
            "from the edit of a claim until it says that it has grown",
            growth.clone(),
        );
        registry.register(
            "operations",
            "steps of the controller, or calls of drivers, and how they ended",
            operations.clone(),
        );
        registry.register(
            "call_seconds",
            "how long calls of drivers took",
            calls.clone(),
        );
        registry.register(
            "missing_bytes",
            "what volumes were promised and do not have, by the storage of a class, where its driver knows",
            missing.clone(),
        );
        Metrics {
            watches: Watches::default(),
            registry: Arc::new(registry),
            requests,
            operations,
            calls,
            depths,
            queued,
            growth,
            missing,
            said_missing: Arc::default(),
            leading,
            claims_waiting,
            nodes_silent,
            volumes_unsettled,
            volumes_failing,
        }
    }
}

impl Metrics {
    /// Counts a request by the code of its answer, or 0 if there was none.
    pub fn requested(&self, verb: &'static str, resource: &str, code: u16) {
        let labels = RequestLabels {
            verb,
            resource: resource.to_owned(),
            code: u32::from(code),
        };
        self.requests.get_or_create(&labels).inc();
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
        let said = missing.iter().map(|((driver, class), bytes)| {
            let (driver, class) = (driver.clone(), class.clone());
            let labels = ClassLabels { driver, class };
            let bytes = i64::try_from(bytes.0).unwrap_or(i64::MAX);
            self.missing.get_or_create(&labels).set(bytes);
            labels
        });
        let said: Vec<_> = said.collect();
        let mut before = self
            .said_missing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for labels in before.iter().filter(|labels| !said.contains(labels)) {
            self.missing.remove(labels);
        }
        *before = said;
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

    /// Returns all metrics as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::default();
        metrics.requested("get", "nodevolumes", 200);
        metrics.operated("provision", "done");
        metrics.called("a/b", "provision", Duration::from_secs(1));
        metrics.lack(&BTreeMap::from([(
            ("a/b".to_owned(), "c".to_owned()),
            Bytes(1),
        )]));
        metrics.of_queue("volume").queued.observe(1.0);
        let page = include_str!("../../../../docs/operate/monitoring.md");
        let text = metrics.text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let names = samples.map(|line| line.split([' ', '{']).next().unwrap());
        let parts = ["_bucket", "_sum", "_count"];
        let mut seen = 0;
        for name in names {
            let whole = parts.iter().find_map(|part| name.strip_suffix(part));
            let name = whole.unwrap_or(name);
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
            seen += 1;
        }
        assert!(seen > 12, "{text}");
        let version = concat!(
            "flexvol_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        );
        assert!(text.contains(version), "{text}");
    }
}
