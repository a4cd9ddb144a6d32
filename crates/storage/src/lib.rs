//! The life of a volume.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
