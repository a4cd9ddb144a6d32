//! Checks a node that boots from the disk of another one after a power failure.

use crate::{
    machine::{DIARY, entry},
    node::{Ground, Node},
    story::{Fact, GROWN, SIZE, Story},
};
use flexvol_lab::vm::quoted;
use flexvol_testing::{Call, Outcome, PersistentVolume, request};
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

pub struct Check<G> {
    node: Node<G>,
    disk: PathBuf,
    /// Path of the neighbour's content on the node.
    neighbour: String,
}

/// The state of the volume according to the diary on a disk.
#[derive(Default)]
struct Expected {
    handle: Option<String>,
    /// Minimum size of its file system.
    size: u64,
    files: BTreeMap<String, String>,
    growing: bool,
    deleting: bool,
    deleted: bool,
}

/// Observations during a check.
#[derive(Default)]
pub struct Seen {
    /// The volume was mounted without the driver first.
    pub plain: bool,
    /// After the kernel replayed the log of an xfs, xfs_repair would still have changed the file system.
    pub xfs_was_bad: bool,
    /// Storage of a volume that was never reported had stayed, and `gc` removed it.
    pub unfinished: bool,
    /// LVM could not read its own metadata.
    pub lvm_was_torn: bool,
}

impl<G: Ground> Check<G> {
    /// Remembers the content of the node's disk image before the life begins.
    pub fn new(mut node: Node<G>, disk: &Path, story: &Story) -> Self {
        node.ground.insert_disk().unwrap();
        let neighbour = format!("{}/neighbour", node.ground.kubelet());
        let storage = node.ground.storage(&story.neighbour);
        node.run(&format!(
            "cp {storage} {neighbour} && ! cmp -s -n 1048576 {neighbour} /dev/zero"
        ));
        node.ground.remember();
        node.ground.take_out_disk();
        Check {
            node,
            disk: disk.to_owned(),
            neighbour,
        }
    }

    /// Boots from the disk and checks everything. The volume is deleted afterwards.
    pub fn check(&mut self, story: &Story, plainly: bool, when: &str) -> Seen {
        let expected = expected(&self.disk, story);
        let mut seen = Seen::default();
        if let Err(words) = self.node.ground.insert_disk() {
            // Nothing above LVM can repair this, and the driver must change nothing.
            let refused = self.node.call(&["provision", &request("pv", SIZE)]);
            assert_eq!(
                refused.outcome(),
                Outcome::Failure,
                "{when}: {refused}: {words}"
            );
            seen.lvm_was_torn = true;
            return seen;
        }
        let volume = match &expected.handle {
            Some(handle) => volume(handle, story.filesystem),
            None => self.provision(story.filesystem),
        };
        let storage = self.node.ground.storage(&volume.id());
        if !expected.deleting {
            if plainly && expected.growing && story.filesystem == "xfs" {
                seen.plain = true;
                seen.xfs_was_bad = !self.recover_plainly(&storage);
            }
            assert_eq!(
                self.provision(story.filesystem).handle(),
                volume.handle(),
                "{when}: its name"
            );
            self.live_on(&volume, &expected, story, when);
        }
        if expected.deleted {
            let there = self.node.ground.run(&format!("test -e {storage}"));
            assert_ne!(there.status, 0, "{when}: it is back");
        }
        let deleted = self.node.call(&["delete", &volume.json("rw")]);
        assert_eq!(deleted.outcome(), Outcome::Success, "{when}: {deleted}");
        if expected.handle.is_none() {
            let driver = quoted(&self.node.ground.driver());
            let removed = self.node.run(&format!("{driver} gc"));
            seen.unfinished = removed.contains("never finished");
        }
        let leaked = format!("{when}: leaked");
        self.node.ground.expect_as_remembered(&leaked);
        let neighbour = self.node.ground.storage(&story.neighbour);
        // Large reads take a quarter of the time on an emulated disk.
        let compare = format!(
            "dd if={neighbour} bs=4M iflag=direct status=none | cmp - {}",
            self.neighbour
        );
        let same = self.node.ground.run(&compare);
        assert_eq!(same.status, 0, "{when}: the neighbour: {same:?}");
        self.node.ground.take_out_disk();
        seen
    }

    /// Mounts the volume, checks it, grows it if that was requested, writes to it, and unmounts it clean.
    fn live_on(
        &mut self,
        volume: &PersistentVolume,
        expected: &Expected,
        story: &Story,
        when: &str,
    ) {
        let mounted = self.node.mount(volume);
        assert_eq!(mounted.outcome(), Outcome::Success, "{when}: {mounted}");
        self.expect_files(expected, when);
        let size = self.node.size();
        assert!(size >= expected.size, "{when}: {size} of {}", expected.size);
        if expected.growing {
            self.grow(volume, when);
            let grown = story.facts.iter().find_map(|fact| match fact {
                Fact::Grown(size) => Some(*size),
                _ => None,
            });
            let size = self.node.size();
            assert!(Some(size) >= grown, "{when}: grown to {size} of {grown:?}");
            self.expect_files(expected, when);
        }
        self.node.write("written-afterwards", 1);
        self.node.unmount();
        let storage = self.node.ground.storage(&volume.id());
        let checked = self.node.fsck(story.filesystem, &storage);
        assert_eq!(checked.status, 0, "{when}: {checked:?}");
    }

    fn grow(&mut self, volume: &PersistentVolume, when: &str) {
        let mut expand = || -> Call { self.node.expand(volume, GROWN, SIZE) };
        let first = expand();
        if first.outcome() == Outcome::Success {
            return;
        }
        // The kernel may not permit this process to grow a mounted ext4.
        assert!(
            first.failure().contains("CAP_SYS_RESOURCE"),
            "{when}: {first}"
        );
        self.node.unmount();
        self.node.mount(volume).success();
        self.node.expand(volume, GROWN, SIZE).success();
    }

    /// Mounts and unmounts without the driver, as a person would, and runs xfs_repair.
    fn recover_plainly(&mut self, storage: &str) -> bool {
        let dir = self.node.dir();
        self.node.run(&format!(
            "mkdir -p {dir} && mount {storage} {dir} && umount {dir}"
        ));
        self.node.fsck("xfs", storage).status == 0
    }

    fn expect_files(&mut self, expected: &Expected, when: &str) {
        let found = self.node.sums(expected.files.keys());
        assert_eq!(found, expected.files, "{when}: files that were synced");
    }

    fn provision(&mut self, filesystem: &'static str) -> PersistentVolume {
        let call = self.node.call(&["provision", &request("pv", SIZE)]);
        PersistentVolume::from_reply("pv", filesystem, &call.success())
    }
}

fn volume(handle: &str, filesystem: &'static str) -> PersistentVolume {
    let options = [("handle", handle), ("pool", "default")];
    let owned = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    PersistentVolume {
        name: "pv".to_owned(),
        filesystem,
        options: owned.into(),
    }
}

/// Reads a disk's diary up to its last entry that reached the disk. Each entry was written after everything
/// before it.
fn expected(image: &Path, story: &Story) -> Expected {
    let disk = File::open(image).unwrap();
    let last = (0..story.facts.len()).rev().find(|number| {
        let entry = entry(*number);
        let mut found = vec![0; entry.len()];
        let at = DIARY + u64::try_from(*number).unwrap() * 512;
        disk.read_exact_at(&mut found, at).unwrap();
        found == entry.as_bytes()
    });
    let mut expected = Expected::default();
    let reached = last.map_or(0, |last| last + 1);
    for fact in &story.facts[..reached] {
        match fact.clone() {
            Fact::Begun => {}
            Fact::Made(handle) => expected.handle = Some(handle),
            Fact::Mounted(size) => expected.size = size,
            Fact::Written(name, sum) => drop(expected.files.insert(name, sum)),
            Fact::Growing => expected.growing = true,
            Fact::Grown(size) => expected.size = size,
            Fact::Deleting => expected.deleting = true,
            Fact::Deleted => expected.deleted = true,
        }
    }
    expected
}
