//! Gauges of which all are measured at once. What was not measured is unknown, and has no gauge.

use prometheus_client::metrics::{family::Family, gauge::Gauge};
use std::{
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

/// Such gauges of one name.
#[derive(Clone, Debug)]
pub(super) struct Known<L> {
    gauges: Family<L, Gauge>,
    /// The labels of all gauges, because the family does not list them.
    labels: Arc<Mutex<Vec<L>>>,
}

impl<L: Clone + Eq + Hash> Known<L> {
    /// Wraps gauges that are registered.
    pub fn of(gauges: Family<L, Gauge>) -> Self {
        Known {
            gauges,
            labels: Arc::default(),
        }
    }

    /// Replaces all gauges.
    pub fn set(&self, measured: impl Iterator<Item = (L, u64)>) {
        let now = measured.map(|(labels, number)| {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.gauges.get_or_create(&labels).set(number);
            labels
        });
        let now: Vec<_> = now.collect();
        let mut before = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        for labels in before.iter().filter(|labels| !now.contains(labels)) {
            self.gauges.remove(labels);
        }
        *before = now;
    }
}
