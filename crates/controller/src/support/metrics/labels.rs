//! Labels of metrics. No label is a volume's name, because there may be a hundred thousand volumes, and none is a text
//! that a tenant chooses.

use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct RequestLabels {
    pub verb: &'static str,
    pub resource: String,
    pub code: u32,
}

/// The objects of a watch.
#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct WatchLabels {
    pub resource: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct OperationLabels {
    pub operation: String,
    pub result: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct CallLabels {
    pub driver: String,
    pub callout: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct QueueLabels {
    pub name: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct ClassLabels {
    pub driver: String,
    pub class: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct PoolLabels {
    pub driver: String,
    pub pool: String,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct StateLabels {
    pub state: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
pub(super) struct PhaseLabels {
    pub phase: &'static str,
}

/// Of a metric that is either unknown or one number.
pub(super) type NoLabels = [(&'static str, &'static str); 0];
