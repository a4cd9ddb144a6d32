//! Node tests that run on any machine and are worth running in the virtual one too: it has a kernel of
//! Debian, and the driver has every capability, so mounted file systems grow without a helper. Tests for
//! which this makes no difference run only on the faster machine.

/// Their names.
pub const ALSO: &[&str] = &[
    "32 images attached at once get 32 devices",
    "a btrfs volume is mounted from its own disk, whatever another disk says that it is",
    "a btrfs that a pod gave a device is unmounted, and mounted when it is taken out",
    "a btrfs that a pod moved off its volume keeps that from being deleted, and is unmounted",
    "a btrfs with another device than its own is refused, and not mounted",
    "a dead file system is unmounted",
    "a file system whose device was cut is left alone",
    "a full pool refuses, and its neighbours keep writing",
    "a volume survives a reboot, its growth half done",
    "a volume whose disk fails is unmounted",
    "adopt: every file system keeps its data and grows",
    "an mkfs that outlives its driver keeps the device to itself",
    "an xfs is told its size again and mends its secondary superblocks",
    "data that could not be written is reported and the volume is unmounted",
    "dir on btrfs: a full volume fails its own writes and nobody else's",
    "dir on btrfs: a full volume grows at once, while a pod writes to it",
    "every file system is mounted writable and read-only at once",
    "expandfs, killed anywhere, is finished by its repetition",
    "ext3 and ext4 grow mounted, or the missing capability is named and they grow offline",
    "loop: volumes are mounted, filled, grown while mounted, unmounted and deleted",
    "volumes that swap loop numbers are not mixed up",
    "what is too little for an allocation group is slack",
    "what was written behind or above the device is seen",
    "xfs and btrfs grow mounted and detached, and keep their data",
];
