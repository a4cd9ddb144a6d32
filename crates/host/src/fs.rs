//! File systems: creating and growing them, limiting directories, and special properties of files in them.

pub(crate) mod attribute;
pub(crate) mod chunks;
pub(crate) mod confine;
mod extent_map;
pub(crate) mod extents;
pub mod format;
pub mod grow;
pub(crate) mod immutable;
pub mod ownership;
pub mod quota;
pub mod rooted;
pub(crate) mod subvolume;
pub(crate) mod tree;
mod writable;

pub(crate) use writable::takes_no_writes;
pub use writable::{expect_writable, has_failed};
