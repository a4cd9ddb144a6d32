//! The cluster's half of flexvol: claims become volumes, edited claims become bigger volumes, and
//! deleted claims give their storage back.
//!
//! [`decide`] knows no API server: it sees one moment of one volume and names one step. Everything
//! else observes, and does that step.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use flexvol_decide as decide;

mod act;
pub mod admission;
pub mod agent;
pub mod alive;
pub mod api;
mod asked;
mod away;
pub mod capacities;
mod connections;
pub mod controller;
mod cut;
pub mod enter;
mod events;
mod gone;
mod growth;
mod index;
pub mod leader;
mod limits;
pub mod log;
pub mod metrics;
mod names;
mod needed;
mod news;
pub mod nodes;
mod objects;
mod observe;
pub mod ours;
mod pages;
mod pods;
mod prune;
mod queue;
pub mod recover;
mod resolve;
pub mod serve;
pub mod sets;
mod shapes;
mod sort;
pub mod status;
mod turns;
mod watches;
mod wish;
