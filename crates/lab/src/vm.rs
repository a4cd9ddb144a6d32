//! A virtual machine with its own Debian, which has what most build machines lack: device-mapper, quotas, every
//! capability, and a power switch.
//!
//! It needs no KVM: qemu emulates, which slows programs down ten to twenty times. Its root file system is in memory and
//! made from Debian packages; it has four disks and no network. A machine is restored from a snapshot taken after boot,
//! in half a second.

mod boot;
mod channel;
mod emulator;
mod image;
mod machine;
mod monitor;
mod packages;
mod setup;
mod snapshot;

pub use channel::ScriptOutput;
pub use emulator::{DISK_BYTES, DISKS};
pub use machine::{Machine, Outcome, quoted};
pub use setup::Setup;
pub use snapshot::directory;
