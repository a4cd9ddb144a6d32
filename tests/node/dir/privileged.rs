//! Changes to a volume by a pod with CAP_SYS_ADMIN.

use super::{
    GROWN, SIZE,
    damage::{RECORD, read_record},
    on_each,
};
use crate::node::{Node, size_of_filesystem};
use flexvol_host::{VolumeId, pool::Pool};
use flexvol_testing::{PersistentVolume, Points, Test};
use rustix::{
    fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr},
    io::Errno,
};
use std::path::Path;

pub const TESTS: &[Test] = on_each![
    "a pod finds nothing in its volume that the driver goes by, and nothing it writes there counts" => forged,
];

const MARK: &str = "trusted.flexvol";

/// The names of a directory's attributes.
fn attributes(directory: &Path) -> String {
    let mut names = [0; 4096];
    let length = listxattr(directory, &mut names).unwrap();
    String::from_utf8_lossy(&names[..length]).replace('\0', " ")
}

/// The driver's data about a volume.
fn kept(node: &Node, volume: &PersistentVolume) -> (String, String) {
    let pool = Pool::open(&node.sandbox.pool()).unwrap();
    let id = VolumeId::parse(&volume.id()).unwrap();
    let mark = pool.directory(&id).unwrap().mark().unwrap().unwrap();
    (mark, read_record(&node.volume_directory(volume)))
}

fn forged(node: &Node, points: &Points) {
    let [ours, theirs] = ["ours", "theirs"].map(|name| node.volume(name));
    let pod = node.mounted(&ours, "one");
    let found = attributes(pod.dir());
    assert!(!found.contains("flexvol"), "{found}");
    points.add(1);

    let before = kept(node, &ours);
    let (mark, record) = kept(node, &theirs);
    let project = record.rsplit_once(' ').unwrap().0;
    for (name, text) in [
        (MARK, mark.as_str()),
        (MARK, "flexvol=9:future=1"),
        (RECORD, &format!("{project} {}", 2 * GROWN)),
        (RECORD, "damaged"),
        // The driver's own note about removed flags; `32` is append-only.
        ("trusted.flexvol.flags", "32"),
    ] {
        setxattr(pod.dir(), name, text.as_bytes(), XattrFlags::empty()).unwrap();
        assert_eq!(kept(node, &ours), before, "{name}");
        node.expect_limit(&ours, SIZE);
        let grown = node.grow(&pod, SIZE).success();
        assert_eq!(grown.object().unwrap()["volumenewsize"], SIZE, "{name}");
        pod.unmount().success();
        pod.mount("rw").success();
        node.expect_limit(&ours, SIZE);
        removexattr(pod.dir(), name).unwrap();
        points.add(1);
    }
    for name in [MARK, RECORD] {
        assert_eq!(removexattr(pod.dir(), name), Err(Errno::NODATA));
        let read = getxattr(pod.dir(), name, &mut [0; 64][..]);
        assert_eq!(read, Err(Errno::NODATA));
    }
    // Stays there during the growth and the deletion.
    let text = format!("{project} {}", 2 * GROWN);
    setxattr(pod.dir(), RECORD, text.as_bytes(), XattrFlags::empty()).unwrap();
    setxattr(pod.dir(), MARK, mark.as_bytes(), XattrFlags::empty()).unwrap();
    node.grow(&pod, GROWN).success();
    node.expect_limit(&ours, GROWN);
    pod.unmount().success();
    node.delete(&ours).success();
    node.expect_limit(&theirs, SIZE);
    let neighbour = node.mounted(&theirs, "two");
    if node.has_projects() {
        assert_eq!(
            size_of_filesystem(neighbour.dir()),
            SIZE,
            "a neighbour's limit is gone"
        );
    }
    neighbour.unmount().success();
    points.add(2);
}
