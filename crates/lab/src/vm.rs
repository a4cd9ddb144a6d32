//! A virtual machine with a Debian of its own, for what most build machines lack: device-mapper,
//! quotas, every capability, and a power switch.
//!
//! It needs no KVM: qemu translates, which makes programs ten to twenty times slower. Its root is in
//! memory and made from Debian packages by name; it has four disks and no network. A machine is
//! restored from the state of one that had just booted, in half a second.

mod boot;
mod channel;
mod emulator;
mod image;
mod machine;
mod monitor;
mod packages;
mod setup;
mod snapshot;

pub use channel::Said;
pub use emulator::{DISK_BYTES, DISKS};
pub use machine::{Machine, Outcome, quoted};
pub use setup::Setup;
pub use snapshot::directory;
