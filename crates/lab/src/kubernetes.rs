//! A Kubernetes node with its control plane.

mod build;
mod cluster;
mod components;
mod containerd;
pub mod contract;
mod control_groups;
mod data_disk;
mod image;
mod kubelet;
mod module;
mod node;
mod objects;
mod openapi;
mod paths;

mod version;

pub use crate::command::{run, run_with};
use crate::{cache, command};
pub use build::Programs;
pub use cluster::Cluster;
pub use components::{Component, Pods};
pub use image::BUSYBOX;
pub use node::{Node, NodeLifetime, become_init, wait_until};
pub use paths::{DISK, PLUGINS, labs};
pub use version::{VERSIONS, Version};
