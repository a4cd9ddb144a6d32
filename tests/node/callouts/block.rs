//! Callouts of block volumes.

use super::{Callout, Place};
use flexvol_testing::{Call, Disturbance, PersistentVolume, Points, below, request};
use std::fs;

const SIZE: u64 = 300 << 20;
const GROWN: u64 = 316 << 20;
const TEXT: &str = "written and synced before the callout";

impl Place {
    pub fn volume(&self, filesystem: &'static str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, "pv", filesystem, SIZE)
    }

    /// A volume that was mounted and holds a file, and is mounted now.
    pub fn mounted(&self, filesystem: &'static str) -> PersistentVolume {
        let volume = self.volume(filesystem);
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        let path = pod.dir().join("file");
        fs::write(&path, TEXT).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        volume
    }

    pub fn holds_the_file(&self, volume: &PersistentVolume) {
        let file = self.pod(volume).dir().join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), TEXT);
    }

    /// The file system of the pod's mount, in bytes.
    fn measured(&self, volume: &PersistentVolume) -> u64 {
        let found = nix::sys::statvfs::statvfs(self.pod(volume).dir()).unwrap();
        found.blocks() * found.fragment_size()
    }
}

pub fn provision(disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let arguments = vec!["provision".to_owned(), request("pv", SIZE)];
    let made = |call: &Call| PersistentVolume::from_reply("pv", "xfs", call);
    let callout = Callout {
        name: "provision",
        prepare: &|| (),
        arguments: &|()| arguments.clone(),
        formats: false,
        check: &|(), call| {
            let image = fs::metadata(made(call).image(&place.sandbox)).unwrap();
            assert_eq!(image.len(), SIZE);
        },
        undo: &|()| {
            place.delete(&made(&place.driver.call(&arguments).success()));
        },
    };
    place.disturbed(&callout, disturbance, points);
}

pub fn mount_new(filesystem: &'static str, disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let callout = Callout {
        name: &format!("mount of a new {filesystem} volume"),
        prepare: &|| place.volume(filesystem),
        arguments: &|volume| place.pod(volume).mount_arguments("rw"),
        formats: true,
        check: &|volume, _| {
            fs::write(place.pod(volume).dir().join("file"), TEXT).unwrap();
        },
        undo: &|volume| {
            place.pod(&volume).unmount().success();
            place.delete(&volume);
        },
    };
    place.disturbed(&callout, disturbance, points);
}

pub fn mount(disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let volume = place.mounted("xfs");
    place.pod(&volume).unmount().success();
    let callout = Callout {
        name: "mount",
        prepare: &|| (),
        arguments: &|()| place.pod(&volume).mount_arguments("rw"),
        formats: false,
        check: &|(), _| place.holds_the_file(&volume),
        undo: &|()| {
            place.pod(&volume).unmount().success();
        },
    };
    place.disturbed(&callout, disturbance, points);
}

/// The storage was grown while nobody had it mounted, and the file system must follow.
pub fn mount_grown(filesystem: &'static str, disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let (new, old) = (GROWN.to_string(), SIZE.to_string());
    let callout = Callout {
        name: &format!("mount of {filesystem} on storage that was grown"),
        prepare: &|| {
            let volume = place.mounted(filesystem);
            let before = place.measured(&volume);
            let pod = place.pod(&volume);
            pod.unmount().success();
            let json = volume.json("rw");
            let dir = pod.dir().to_str().unwrap();
            let grow = ["expandvolume", &json, dir, &new, &old];
            place.driver.call(&grow).success();
            (volume, before)
        },
        arguments: &|(volume, _)| place.pod(volume).mount_arguments("rw"),
        formats: false,
        // A mount does not fail for a growth that cannot be, but the next one makes good for it.
        check: &|(volume, _), _| place.holds_the_file(volume),
        undo: &|(volume, before)| {
            let pod = place.pod(&volume);
            pod.unmount().success();
            pod.mount("rw").success();
            // ext4 takes a part of what it is given for itself.
            let least = before + (GROWN - SIZE) / 2;
            assert!(place.measured(&volume) > least, "it did not follow");
            place.pod(&volume).unmount().success();
            place.delete(&volume);
        },
    };
    place.disturbed(&callout, disturbance, points);
}

pub fn expandfs(disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let callout = Callout {
        name: "expandfs",
        prepare: &|| {
            let volume = place.mounted("xfs");
            let before = place.measured(&volume);
            (volume, before)
        },
        arguments: &|(volume, _)| place.pod(volume).expand_arguments(GROWN, SIZE),
        formats: false,
        check: &|(volume, before), _| {
            let image = fs::metadata(volume.image(&place.sandbox)).unwrap();
            assert_eq!(image.len(), GROWN);
            assert_eq!(place.measured(volume), before + GROWN - SIZE);
            place.holds_the_file(volume);
        },
        undo: &|(volume, _)| {
            place.pod(&volume).unmount().success();
            place.delete(&volume);
        },
    };
    place.disturbed(&callout, disturbance, points);
}

pub fn unmount(disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let volume = place.mounted("xfs");
    let pod = place.pod(&volume);
    pod.unmount().success();
    let arguments = vec!["unmount".to_owned(), pod.dir().to_str().unwrap().to_owned()];
    let callout = Callout {
        name: "unmount",
        prepare: &|| {
            pod.mount("rw").success();
            place.holds_the_file(&volume);
        },
        arguments: &|()| arguments.clone(),
        formats: false,
        check: &|(), _| assert_eq!(below(&place.sandbox.kubelet_root()), []),
        undo: &|()| {
            if pod.dir().exists() {
                fs::remove_dir(pod.dir()).unwrap();
            }
        },
    };
    place.disturbed(&callout, disturbance, points);
}

pub fn delete(disturbance: Disturbance, points: &Points) {
    let place = Place::of_images();
    let callout = Callout {
        name: "delete",
        prepare: &|| place.volume("xfs"),
        arguments: &|volume: &PersistentVolume| vec!["delete".to_owned(), volume.json("rw")],
        formats: false,
        check: &|volume, _| assert!(!volume.image(&place.sandbox).exists()),
        undo: &|_| {},
    };
    place.disturbed(&callout, disturbance, points);
}
