//! The API of flexvol in a cluster: its custom resources, and its labels, annotations, finalizers and conditions.

pub(crate) mod v1alpha1;
pub(crate) mod well_known;
