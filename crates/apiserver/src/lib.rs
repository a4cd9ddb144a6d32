//! A test double of Kubernetes' API server. It keeps objects in memory, answers HTTP like the real one, and fails on
//! demand.
//!
//! It supports what `flexvol-controller` uses: get, paged lists, watches, create, merge patches, update, the status
//! subresource, and deletion with finalizers and preconditions, for the kinds in [`KINDS`]. It rejects everything else,
//! and checks neither permissions nor schemas. `tests/story.rs` compares it with recordings of a real API server.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod faults;
mod hold;
mod kinds;
mod kubernetes;
mod refused;
mod request;
mod server;
mod shared;
mod store;
mod watch;

pub use faults::{Fault, Plan};
pub use hold::Hold;
pub use kinds::{KINDS, Kind};
pub use kubernetes::Kubernetes;
pub use refused::Refused;
pub use server::Server;
pub use store::{Change, Key, Store};
