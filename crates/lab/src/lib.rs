//! Real machines for tests, on one machine: Kubernetes nodes in namespaces, built from source, and a virtual machine
//! with its own Linux. Both leave nothing behind.

mod cache;
mod command;
pub mod helm;
pub mod kubernetes;
pub mod vm;
