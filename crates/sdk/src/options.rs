//! The options of a volume: strings on the wire, the vendor's own type in the driver.

use std::collections::BTreeMap;

/// What the author of a volume wrote, with the keys Kubernetes writes already split off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<String, String>);
