//! Every call a real Kubernetes 1.20.2 made of two drivers, made again, in its order.
//!
//! `kubernetes-1.20.2.jsonl` is the recording: caller, arguments and the reply of the driver that
//! was there, which only logged. `kubernetes-1.20.2.expected` has what this driver must answer,
//! line for line. Kubelet's root, devices, handle and pool are this sandbox's; kubelet's own acts
//! around a call (it makes and removes directories) are done here.

use crate::sandbox;
use flexvol_testing::{
    Baseline, Call, Driver, Need, Outcome, PersistentVolume, Points, Sandbox, Test, json,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

pub const TESTS: &[Test] = &[Test {
    name: "every call Kubernetes 1.20.2 made gets the answer it needs",
    needs: &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")],
    run: replay,
}];

const RECORDING: &str = include_str!("../fixtures/kubernetes-1.20.2.jsonl");
const EXPECTED: &str = include_str!("../fixtures/kubernetes-1.20.2.expected");

const MEBI: u64 = 1 << 20;

/// What the pool keeps free in this test.
const RESERVE: u64 = 64 * MEBI;

/// The persistent volumes of the recording and the driver each has; `d` is inline and has none.
const VOLUMES: [(&str, &str); 4] = [
    ("v1", "block"),
    ("v2", "shared"),
    ("v4", "block"),
    ("v5", "block"),
];

struct Node {
    sandbox: Sandbox,
    drivers: BTreeMap<&'static str, Driver>,
    volumes: BTreeMap<&'static str, PersistentVolume>,
    /// By recorded device, what `attach` answered here.
    devices: BTreeMap<String, String>,
}

fn replay(points: &Points) {
    let sandbox = sandbox();
    let drivers = BTreeMap::from([
        (
            "block",
            sandbox.install("lab.example/block", true, "reserve = \"64Mi\""),
        ),
        (
            "shared",
            sandbox.install("lab.example/shared", false, "reserve = \"64Mi\""),
        ),
    ]);
    let before = Baseline::of(&sandbox);
    let make = |(name, driver)| {
        (
            name,
            PersistentVolume::provision(&drivers[driver], name, "xfs", 300 * MEBI),
        )
    };
    let volumes = VOLUMES.map(make).into();
    let mut node = Node {
        sandbox,
        drivers,
        volumes,
        devices: BTreeMap::new(),
    };
    let mut filler = None;
    assert_eq!(RECORDING.lines().count(), EXPECTED.lines().count());
    for (number, (line, expected)) in RECORDING.lines().zip(EXPECTED.lines()).enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["scenario"] == "expandfs-fails" && filler.is_none() {
            filler = Some(node.sandbox.fill_disk(RESERVE + 50 * MEBI));
        }
        let call = node.make(&line);
        let status = match call.outcome() {
            Outcome::Success => "Success".to_owned(),
            Outcome::NotSupported => "Not supported".to_owned(),
            Outcome::Failure => "Failure".to_owned(),
            Outcome::Broken(reason) => reason,
        };
        let driver = line["driver"].as_str().unwrap();
        let found = format!("{:2} {driver:6} {:13} {status}", number + 1, call.argv[0]);
        assert_eq!(found, expected, "{call}");
        if line["scenario"] == "expandfs-fails" && status == "Failure" {
            assert_eq!(call.text("errorClass"), "exhausted", "{call}");
        }
        points.add(1);
    }
    fs::remove_file(filler.expect("a scenario with a full pool")).unwrap();
    node.close(&before);
}

impl Node {
    fn make(&mut self, line: &Value) -> Call {
        let arguments: Vec<String> = serde_json::from_value(line["argv"].clone()).unwrap();
        let here: Vec<_> = arguments
            .iter()
            .map(|argument| self.here(argument))
            .collect();
        let dir = |at: usize| Path::new(&here[at]);
        match here[0].as_str() {
            "mount" | "mountdevice" => fs::create_dir_all(dir(1)).unwrap(),
            // The driver that was recorded left `mount` to kubelet, which had the directory made.
            "expandfs" => fs::create_dir_all(dir(3)).unwrap(),
            _ => {}
        }
        let call = self.drivers[line["driver"].as_str().unwrap()].call(&here);
        let gone = match (here[0].as_str(), call.outcome()) {
            ("mount", Outcome::Failure) => true,
            ("unmount" | "unmountdevice", Outcome::Success) => dir(1).exists(),
            _ => false,
        };
        if gone {
            fs::remove_dir(dir(1)).unwrap_or_else(|e| panic!("remove the directory: {e}: {call}"));
        }
        if let (true, Some(recorded)) = (here[0] == "attach", line["reply"]["device"].as_str()) {
            self.devices
                .insert(recorded.to_owned(), call.text("device"));
        }
        call
    }

    /// An argument of the recording as it must be here.
    fn here(&self, argument: &str) -> String {
        if let Some(device) = self.devices.get(argument) {
            return device.clone();
        }
        let Ok(Value::Object(recorded)) = serde_json::from_str(argument) else {
            let root = self.sandbox.kubelet_root();
            return argument.replace("/var/lib/kubelet", root.to_str().unwrap());
        };
        let name = recorded["kubernetes.io/pvOrVolumeName"].as_str().unwrap();
        let inline = BTreeMap::from([("pool".to_owned(), "default".to_owned())]);
        let options = self
            .volumes
            .get(name)
            .map_or(&inline, |volume| &volume.options);
        let kept = recorded.iter().filter(|(key, _)| *key != "pool");
        let kept = kept.map(|(key, value)| (key.as_str(), value.as_str().unwrap()));
        json(
            kept.chain(
                options
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_str())),
            ),
        )
    }

    /// After the recording: sizes are what was asked, growth succeeds once there is room, and
    /// nothing is left when the volumes are gone.
    fn close(self, before: &Baseline) {
        let sizes = [("v1", 500), ("v2", 450), ("v4", 300), ("v5", 300)];
        let block = &self.drivers["block"];
        let v5 = self.mounts("v5");
        block.call(&["unmountdevice", &v5]).success();
        fs::remove_dir(&v5).unwrap();
        for (name, mebibytes) in sizes {
            let (image, filesystem) = self.size(name);
            assert_eq!(image, mebibytes * MEBI, "image of {name}");
            // XFS leaves less than 64 blocks of 4 KiB unused.
            assert!(
                image - filesystem < 64 * 4096,
                "file system of {name}: {filesystem}"
            );
        }
        for (name, driver) in VOLUMES {
            self.drivers[driver]
                .call(&["delete", &self.volumes[name].json("rw")])
                .success();
        }
        before.expect(&self.sandbox, "all volumes deleted");
    }

    fn mounts(&self, name: &str) -> String {
        let mounts = "plugins/kubernetes.io/flexvolume/lab.example/block/mounts";
        let dir = self.sandbox.kubelet_root().join(mounts).join(name);
        dir.to_str().unwrap().to_owned()
    }

    /// Bytes of a volume's image, and of the XFS in it by its superblock (`sb_blocksize` at 4,
    /// `sb_dblocks` at 8, big-endian).
    fn size(&self, name: &str) -> (u64, u64) {
        let image = File::open(self.volumes[name].image(&self.sandbox)).unwrap();
        let mut head = [0; 16];
        image.read_exact_at(&mut head, 0).unwrap();
        let block = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let blocks = u64::from_be_bytes(head[8..16].try_into().unwrap());
        (image.metadata().unwrap().len(), blocks * u64::from(block))
    }
}
