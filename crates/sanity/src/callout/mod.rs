//! The callouts of a FlexVolume driver, and what kubelet makes of them.

pub mod argument;
pub mod call;
pub mod exec;
pub mod hanging;
pub mod reply;

/// Callouts that a driver may answer with "Not supported" for ever.
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

/// What is called only of drivers whose `init` says `attach: true` (`NewFlexVolumePlugin` in
/// `pkg/volume/flexvolume/plugin.go` makes no attachable plugin of the others).
pub const FOR_ATTACHING: [&str; 6] = [
    "attach",
    "waitforattach",
    "isattached",
    "mountdevice",
    "unmountdevice",
    "detach",
];
