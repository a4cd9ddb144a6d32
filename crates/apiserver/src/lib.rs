//! A double of Kubernetes' API server, for tests of programs that are its clients: it keeps objects
//! in memory, answers HTTP as the real one does, and fails where it is told to.
//!
//! What it knows is what `flexvol-controller` asks: reading, listing in pages, watching, creating,
//! merge patches, replacing, the status subresource, and deleting with finalizers and
//! preconditions, of the kinds in [`KINDS`]. It refuses what it does not know. It checks no rights and no
//! schema. `tests/story.rs` compares it with recordings of a real API server.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ask;
mod faults;
mod hold;
mod kinds;
mod kubernetes;
mod refused;
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
