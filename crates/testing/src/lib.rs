//! Guards, fixtures, images and the kill harness of the tests.

#![allow(clippy::print_stdout, reason = "a test runner prints its report")]

mod layer;

pub use layer::{Need, Points, Test, run_layer};
