//! What Linux does for a volume.
#![warn(missing_docs)]
