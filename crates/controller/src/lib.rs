//! The controller and agent of flexvol: claims become volumes, edited claims become larger volumes, and the storage
//! of deleted claims is deleted.
//!
//! [`claims`] does no I/O: it sees one volume at one moment and names one step. This crate observes and does the step.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use flexvol_claims as claims;

pub mod admission;
pub mod agent;
pub mod api;
pub mod cache;
pub mod cli;
pub mod client;
pub mod drivers;
mod events;
mod k8s;
pub mod leader;
mod observe;
pub mod placement;
pub mod reconcile;
mod runtime;
pub mod server;
pub mod support;
