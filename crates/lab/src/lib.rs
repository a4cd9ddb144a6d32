//! Real Kubernetes nodes on one machine: built from source, started in namespaces of their own,
//! and gone without a trace.

pub mod kubernetes;
