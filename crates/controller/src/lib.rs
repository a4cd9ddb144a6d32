//! The cluster's half of flexvol: claims become volumes, edited claims become bigger volumes, and
//! deleted claims give their storage back.
//!
//! [`claims`] knows no API server: it sees one moment of one volume and names one step. Everything
//! else observes, and does that step.
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
