//! The commands that an administrator runs.

mod poll;
pub mod recover;
pub mod status;
