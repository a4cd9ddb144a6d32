//! The driver: parse, dispatch, print.
#![forbid(unsafe_code)]

fn main() {}
