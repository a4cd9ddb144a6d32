//! Every callout of a volume's life, disturbed at each of its system calls: killed, and refused with
//! each error. The answer is an honest one, nothing that is ready is formatted, the repeated call
//! succeeds, and nothing is left.

use crate::callouts::{NEEDS, block, directory};
use flexvol_testing::{
    Disturbance::{self, Errors, Kill},
    Points, Test,
};

macro_rules! callouts {
    ($($callout:literal => $disturbed:expr,)*) => {
        pub const KILLED: &[Test] = &[$(Test {
            name: concat!($callout, ", killed anywhere, is finished by its repetition"),
            needs: NEEDS,
            run: |points| disturb($disturbed, Kill, points),
        },)*];
        pub const REFUSED: &[Test] = &[$(Test {
            name: concat!(
                $callout,
                ", refused by the kernel anywhere, says so and is finished by its repetition"
            ),
            needs: NEEDS,
            run: |points| disturb($disturbed, Errors, points),
        },)*];
    };
}

callouts! {
    "provision" => block::provision,
    "mount of a new xfs volume" => |how, points| block::mount_new("xfs", how, points),
    "mount of a new ext4 volume" => |how, points| block::mount_new("ext4", how, points),
    "mount of a new btrfs volume" => |how, points| block::mount_new("btrfs", how, points),
    "mount" => block::mount,
    "mount of xfs on storage that was grown" => |how, points| block::mount_grown("xfs", how, points),
    "mount of ext4 on storage that was grown" => |how, points| block::mount_grown("ext4", how, points),
    "expandfs" => block::expandfs,
    "unmount" => block::unmount,
    "delete" => block::delete,
    "provision of a directory" => directory::provision,
    "mount of a directory" => directory::mount,
    "unmount of a directory" => directory::unmount,
    "delete of a directory" => directory::delete,
}

fn disturb(callout: fn(Disturbance, &Points), how: Disturbance, points: &Points) {
    callout(how, points);
}
