//! Commands for administrators.

mod poll;
pub mod recover;
pub mod status;
