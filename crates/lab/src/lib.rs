//! Real machines for tests, on one machine: Kubernetes nodes in namespaces of their own, built from
//! source, and a virtual machine with a Linux of its own. Both are gone without a trace.

mod cache;
mod command;
pub mod helm;
pub mod kubernetes;
pub mod vm;
