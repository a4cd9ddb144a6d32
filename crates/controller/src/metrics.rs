//! What is counted, for Prometheus.

use http::Method;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::sync::Arc;

/// All that is counted. No label is a volume's name: there may be a hundred thousand.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<RequestLabels, Counter>,
    operations: Family<OperationLabels, Counter>,
    /// One while this process leads.
    pub leading: Gauge,
    /// Volumes that wait for a worker.
    pub waiting: Gauge,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct RequestLabels {
    method: String,
    code: u32,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct OperationLabels {
    operation: String,
    result: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexvol");
        let requests = Family::default();
        let operations = Family::default();
        let (leading, waiting) = (Gauge::default(), Gauge::default());
        registry.register(
            "api_requests",
            "requests to the API server; code 0: no answer",
            requests.clone(),
        );
        registry.register(
            "operations",
            "steps of the controller, or calls of drivers, and how they ended",
            operations.clone(),
        );
        registry.register("leading", "1 while this process leads", leading.clone());
        registry.register("waiting", "volumes that wait for a worker", waiting.clone());
        Metrics {
            registry: Arc::new(registry),
            requests,
            operations,
            leading,
            waiting,
        }
    }
}

impl Metrics {
    /// A request was answered with this code; 0: it was not.
    pub fn requested(&self, method: &Method, code: u16) {
        let labels = RequestLabels {
            method: method.to_string(),
            code: u32::from(code),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// A step or a call has ended.
    pub fn operated(&self, operation: &str, result: &str) {
        let labels = OperationLabels {
            operation: operation.to_owned(),
            result: result.to_owned(),
        };
        self.operations.get_or_create(&labels).inc();
    }

    /// All of it as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
