//! The API of flexvol in a cluster: its custom resources, its labels and annotations, and the drivers that
//! a program was started for.

pub mod drivers;
pub(crate) mod labels;
pub(crate) mod v1alpha1;
