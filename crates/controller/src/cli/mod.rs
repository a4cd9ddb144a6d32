//! Commands for administrators.

pub mod check;
mod poll;
pub mod recover;
pub mod status;
