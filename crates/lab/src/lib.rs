//! Real machines for tests, on one machine: Kubernetes nodes in namespaces of their own, built from
//! source, and a virtual machine with a Linux of its own. Both are gone without a trace.

pub mod helm;
mod kept;
pub mod kubernetes;
mod tool;
pub mod vm;
