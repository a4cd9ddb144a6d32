//! What Linux does for a volume.
//!
//! This is the only crate of the workspace that contains `unsafe` and that starts programs.
#![warn(missing_docs)]

mod deadline;
pub mod device;
pub mod exec;
pub mod lock;
mod node;
mod run_dir;
mod sys;
