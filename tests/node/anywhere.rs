//! Disturbs every callout of a volume's life at each of its system calls: a kill, or each error. The reply must
//! be honest, nothing in use may be formatted, the repeated call must succeed, and nothing may be left.

use crate::{
    callouts::{NEEDS, delete, expandfs, mount, mount_grown, mount_new, provision, unmount},
    node::{
        Backend::{self, HelloDirectory, Loop},
        Node,
    },
    story::stories,
};
use flexvol_testing::{
    Disturbance::{self, Errors, ErrorsAt, Kill},
    Points, Test, in_virtual_machine,
};
use std::fs;

macro_rules! callouts {
    ($($callout:literal, $backend:ident => $disturbed:expr;)*) => {
        pub const KILLED: &[Test] = &[$(Test {
            name: concat!($callout, ", killed anywhere, is finished by its repetition"),
            needs: NEEDS,
            run: |points| disturb($backend, $disturbed, Kill, points),
        },)*];
        pub const REFUSED: &[Test] = &[$(Test {
            name: concat!(
                $callout,
                ", refused by the kernel anywhere, says so and is finished by its repetition"
            ),
            needs: NEEDS,
            run: |points| disturb($backend, $disturbed, Errors, points),
        },)*];
    };
}

callouts! {
    "provision", Loop => provision;
    "mount of a new xfs volume", Loop
        => |node, disturbance, points| mount_new(node, "xfs", disturbance, points);
    "mount of a new ext4 volume", Loop
        => |node, disturbance, points| mount_new(node, "ext4", disturbance, points);
    "mount of a new btrfs volume", Loop
        => |node, disturbance, points| mount_new(node, "btrfs", disturbance, points);
    "mount", Loop => mount;
    "mount of xfs on storage that was grown", Loop
        => |node, disturbance, points| mount_grown(node, "xfs", disturbance, points);
    "mount of ext4 on storage that was grown", Loop
        => |node, disturbance, points| mount_grown(node, "ext4", disturbance, points);
    "expandfs", Loop => expandfs;
    "unmount", Loop => unmount;
    "delete", Loop => delete;
    "provision of a directory", HelloDirectory => provision;
    "mount of a directory", HelloDirectory => mount;
    "unmount of a directory", HelloDirectory => unmount;
    "delete of a directory", HelloDirectory => delete;
}

// XFS is queried in the same way as ext4, so errors are injected only for ext4.
stories! {
    STORIES:
    "every callout, killed anywhere, is finished by its repetition", [xfs ext4 btrfs]
        => |backend, points| all(backend, Kill, points);
    "every callout, refused by the kernel anywhere, says so and is finished by its repetition",
        [ext4 btrfs] => |backend, points| all(backend, Errors, points);
    "a growth ends also where the kernel does not tell the time", [ext4] => timeless;
}

/// A callout on this node with these disturbances.
pub type Callout = fn(&Node, &[Disturbance], &Points);

fn disturb(backend: Backend, callout: Callout, disturbance: Disturbance, points: &Points) {
    callout(&Node::new(backend), &[disturbance], points);
}

/// Runs the callouts in one virtual machine, because a machine for each would take longer.
fn all(backend: Backend, disturbance: Disturbance, points: &Points) {
    let node = Node::new(backend);
    let callouts: [Callout; 5] = [provision, expandfs, delete, mount, unmount];
    for callout in callouts {
        callout(&node, &[disturbance], points);
        // The next callout begins without volumes, too.
        if !node.sizes().is_empty() {
            node.delete(&node.volume("pv")).success();
        }
    }
}

fn timeless(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let _clock = in_virtual_machine().then(SlowClock::choose);
    expandfs(&node, &[ErrorsAt("clock_gettime")], points);
    node.delete(&node.volume("pv")).success();
}

/// A clock of the kernel that is read by a system call and not in the process, as on hosts whose processors' counters
/// differ. Until this is dropped.
struct SlowClock(String);

impl SlowClock {
    const CHOSEN: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

    fn choose() -> Self {
        let before = fs::read_to_string(Self::CHOSEN).unwrap();
        fs::write(Self::CHOSEN, "hpet").unwrap();
        assert_eq!(fs::read_to_string(Self::CHOSEN).unwrap(), "hpet\n");
        SlowClock(before)
    }
}

impl Drop for SlowClock {
    fn drop(&mut self) {
        fs::write(Self::CHOSEN, &self.0).expect("the clock of before");
    }
}
