//! The callouts of a FlexVolume driver, and how kubelet interprets the replies.

pub mod argument;
pub mod call;
pub mod exec;
pub mod hanging;
pub mod reply;

/// All callouts. The tester asks whether each of them, except `init`, is Not supported.
pub const CALLOUTS: [&str; 12] = [
    "init",
    "getvolumename",
    "attach",
    "waitforattach",
    "isattached",
    "mountdevice",
    "mount",
    "unmount",
    "unmountdevice",
    "detach",
    "expandvolume",
    "expandfs",
];

/// Callouts that are made only if `init` says `attach: true` (`NewFlexVolumePlugin` in
/// `pkg/volume/flexvolume/plugin.go` makes no attachable plugin of other drivers).
pub const FOR_ATTACHING: [&str; 6] = [
    "attach",
    "waitforattach",
    "isattached",
    "mountdevice",
    "unmountdevice",
    "detach",
];
