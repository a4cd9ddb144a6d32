//! Replays every call that real releases of Kubernetes made, in order.
//!
//! A recording has caller, arguments and reply of each call. kubelet's root, devices, handles and pool are replaced by
//! this sandbox's, and the test does what kubelet does around a call (it makes and removes directories). For recordings
//! of this driver the same replies are expected. `kubernetes-1.20.2.jsonl` was recorded with a driver that only logged;
//! `kubernetes-1.20.2.expected` has the reply that this driver must give, line by line.

use crate::{
    recordings::{OF_ANOTHER, OF_THIS_DRIVER},
    sandbox,
};
use flexvol_testing::{
    Baseline, Call, Driver, Need, Outcome, PersistentVolume, Points, Sandbox, json, tests,
    volume_id,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

tests! {
    "every call Kubernetes 1.20.2 made gets the answer it needs", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => another;
    "every recorded call of this driver gets the same answer again", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => again;
}

const EXPECTED: &str = include_str!("../fixtures/kubernetes-1.20.2.expected");

const MEBI: u64 = 1 << 20;

/// The pool's reserve, and the free space while the disk is filled: less than any recorded
/// growth needs.
const RESERVE: u64 = 64 * MEBI;
const FILLED: u64 = RESERVE + 32 * MEBI;

/// The installations and volumes of the recorded calls.
struct Story {
    /// Drivers of the vendor `lab.example`, and whether they attach.
    drivers: &'static [(&'static str, bool)],
    /// Driver, name and final size in MiB of each volume.
    volumes: &'static [(&'static str, &'static str, u64)],
    /// Initial size of each volume in MiB.
    first: u64,
    /// Whether replies must be equal to the expected ones, or may have additional members.
    whole: bool,
}

/// `d` is inline and has no handle.
const ANOTHER: Story = Story {
    drivers: &[("block", true), ("shared", false)],
    volumes: &[
        ("block", "v1", 500),
        ("shared", "v2", 450),
        ("block", "v4", 300),
        ("block", "v5", 300),
    ],
    first: 300,
    whole: false,
};

const AGAIN: Story = Story {
    drivers: &[("block", true), ("disk", false), ("open", false)],
    volumes: &[
        ("block", "v1", 448),
        ("disk", "v2", 384),
        ("disk", "v3", 320),
        ("disk", "v5", 384),
    ],
    first: 320,
    whole: true,
};

/// A recorded call, and the expected members of its reply.
type Line = (Value, Value);

fn another(points: &Points) {
    let lines = OF_ANOTHER.lines();
    assert_eq!(lines.len(), EXPECTED.lines().count());
    let expected = |(number, (line, expected)): (usize, (Value, &str))| {
        let (driver, callout) = (line["driver"].as_str().unwrap(), callout(&line));
        let named = format!("{:2} {driver:6} {callout:13} ", number + 1);
        let status = expected.strip_prefix(&named);
        let mut reply = json!({"status": status.unwrap_or_else(|| panic!("{named}: {expected}"))});
        if callout == "expandfs" && status == Some("Failure") {
            reply["errorClass"] = "exhausted".into();
        }
        (line, reply)
    };
    let lines = lines.into_iter().zip(EXPECTED.lines()).enumerate();
    ANOTHER.play("another driver's", lines.map(expected).collect(), points);
}

fn again(points: &Points) {
    for recording in OF_THIS_DRIVER {
        let expected = |line: Value| {
            let mut reply = line["reply"].clone();
            // The message contains the capacity, which depends on the disk.
            reply.as_object_mut().unwrap().remove("message");
            // A newer member, which no release of Kubernetes reads.
            if let Some(capabilities) = reply.get_mut("capabilities") {
                capabilities["concurrentFSResize"] = true.into();
            }
            (line, reply)
        };
        let lines = recording.lines().into_iter().map(expected);
        AGAIN.play(recording.release, lines.collect(), points);
    }
}

fn callout(line: &Value) -> &str {
    line["argv"][0].as_str().unwrap()
}

impl Story {
    /// Makes the calls. The disk is full from the first growth that must fail until the next one that must
    /// succeed.
    fn play(&self, recording: &str, lines: Vec<Line>, points: &Points) {
        let mut node = Node::of(self);
        let before = Baseline::of(&node.sandbox);
        node.provision(self);
        let mut filler: Option<PathBuf> = None;
        let mut refused = 0;
        for (number, (line, expected)) in lines.into_iter().enumerate() {
            if callout(&line) == "expandfs" {
                match (&filler, expected["status"] == "Failure") {
                    (None, true) => filler = Some(node.sandbox.fill_disk(FILLED)),
                    (Some(file), false) => {
                        fs::remove_file(file).unwrap();
                        filler = None;
                    }
                    _ => {}
                }
                refused += usize::from(filler.is_some());
            }
            let call = node.make(&line);
            node.check(&call, &expected, self.whole)
                .unwrap_or_else(|e| panic!("{recording}, line {}: {e}: {call}", number + 1));
            node.learn(&line, &call);
            points.add(1);
        }
        assert!(refused > 0, "{recording}: no growth with a full disk");
        if let Some(file) = filler {
            fs::remove_file(file).unwrap();
        }
        node.close(self, &before);
    }
}

struct Node {
    sandbox: Sandbox,
    drivers: BTreeMap<&'static str, Driver>,
    volumes: BTreeMap<&'static str, PersistentVolume>,
    /// Recorded words and their replacements here: kubelet's root, handles, devices.
    words: BTreeMap<String, String>,
    /// Current mounts: the driver, the callout that unmounts, and the directory.
    mounted: Vec<(String, &'static str, String)>,
}

impl Node {
    fn of(story: &Story) -> Self {
        let sandbox = sandbox();
        let reserve = format!("reserve = \"{}Mi\"", RESERVE / MEBI);
        let install = |(name, attach): &(&'static str, bool)| {
            let full = format!("lab.example/{name}");
            (*name, sandbox.install(&full, *attach, &reserve))
        };
        let root = sandbox.kubelet_root().to_str().unwrap().to_owned();
        Node {
            drivers: story.drivers.iter().map(install).collect(),
            volumes: BTreeMap::new(),
            words: [("/var/lib/kubelet".to_owned(), root)].into(),
            mounted: Vec::new(),
            sandbox,
        }
    }

    fn provision(&mut self, story: &Story) {
        for (driver, name, _) in story.volumes {
            let driver = &self.drivers[driver];
            let volume = PersistentVolume::provision(driver, name, "xfs", story.first * MEBI);
            self.volumes.insert(name, volume);
        }
    }

    /// Makes the call, with kubelet's actions before and after it.
    fn make(&mut self, line: &Value) -> Call {
        let driver = line["driver"].as_str().unwrap();
        let arguments: Vec<String> = serde_json::from_value(line["argv"].clone()).unwrap();
        for argument in &arguments {
            self.learn_handle(argument);
        }
        let here: Vec<_> = arguments
            .iter()
            .map(|argument| self.here(argument))
            .collect();
        let dir = |at: usize| Path::new(&here[at]);
        match here[0].as_str() {
            "mount" | "mountdevice" => fs::create_dir_all(dir(1)).unwrap(),
            // The logging driver left `mount` to kubelet, which had the directory made.
            "expandfs" => fs::create_dir_all(dir(3)).unwrap(),
            _ => {}
        }
        let call = self.drivers[driver].call(&here);
        let succeeded = call.outcome() == Outcome::Success;
        match (here[0].as_str(), succeeded) {
            ("mount", true) => self.remember(driver, "unmount", &here[1]),
            ("mountdevice", true) => self.remember(driver, "unmountdevice", &here[1]),
            ("unmount" | "unmountdevice", true) => self.mounted.retain(|(.., at)| *at != here[1]),
            _ => {}
        }
        let gone = match here[0].as_str() {
            "mount" => !succeeded,
            "unmount" | "unmountdevice" => succeeded && dir(1).exists(),
            _ => false,
        };
        if gone {
            fs::remove_dir(dir(1)).unwrap_or_else(|e| panic!("remove the directory: {e}: {call}"));
        }
        call
    }

    fn remember(&mut self, driver: &str, end: &'static str, dir: &str) {
        self.mounted.push((driver.to_owned(), end, dir.to_owned()));
    }

    /// Compares the reply with the expected one, with words replaced.
    fn check(&self, call: &Call, expected: &Value, whole: bool) -> Result<(), String> {
        match call.outcome() {
            Outcome::Broken(reason) => return Err(reason),
            Outcome::Failure => drop(call.failure()),
            Outcome::Success | Outcome::NotSupported => {}
        }
        let found: Value = serde_json::from_slice(&call.output).map_err(|e| e.to_string())?;
        let expected = expected.as_object().unwrap();
        for (member, value) in expected {
            let value = match value {
                Value::String(text) => self.words(text).into(),
                other => other.clone(),
            };
            if found[member] != value {
                return Err(format!("{member} must be {value}"));
            }
        }
        let mut members = found.as_object().unwrap().keys();
        let more = members.find(|member| *member != "message" && !expected.contains_key(*member));
        match more {
            Some(member) if whole => Err(format!("{member} was not answered then")),
            _ => Ok(()),
        }
    }

    /// Maps the recorded device to the one in this reply.
    fn learn(&mut self, line: &Value, call: &Call) {
        if let (true, Some(recorded)) =
            (callout(line) == "attach", line["reply"]["device"].as_str())
        {
            self.words.insert(recorded.to_owned(), call.text("device"));
        }
    }

    fn learn_handle(&mut self, argument: &str) {
        let Ok(Value::Object(object)) = serde_json::from_str(argument) else {
            return;
        };
        let name = object["kubernetes.io/pvOrVolumeName"].as_str().unwrap();
        let recorded = object.get("handle").and_then(Value::as_str);
        if let (Some(volume), Some(recorded)) = (self.volumes.get(name), recorded) {
            let here = volume.handle().to_owned();
            self.words.insert(recorded.to_owned(), here);
            self.words.insert(volume_id(recorded), volume.id());
            // The recorded driver returned the handle from `attach`.
            let device = |name| format!("/run/flexvol/volumes/{name}");
            self.words.insert(device(recorded), device(&volume.id()));
        }
    }

    /// A recorded text with its words replaced.
    fn words(&self, text: &str) -> String {
        // A device is a whole text; other words are parts of one.
        if let Some(word) = self.words.get(text) {
            return word.clone();
        }
        let words = self.words.iter();
        words.fold(text.to_owned(), |text, (recorded, here)| {
            text.replace(recorded, here)
        })
    }

    /// A recorded argument for use here. Options are replaced by those of the volume here. A volume outside the
    /// story has no handle.
    fn here(&self, argument: &str) -> String {
        let Ok(Value::Object(recorded)) = serde_json::from_str(argument) else {
            return self.words(argument);
        };
        let name = recorded["kubernetes.io/pvOrVolumeName"].as_str().unwrap();
        let inline = BTreeMap::from([("pool".to_owned(), "default".to_owned())]);
        let volume = self.volumes.get(name);
        let options = volume.map_or(&inline, |volume| &volume.options);
        let kept = recorded.iter().filter(|(key, _)| key.contains('/'));
        let kept = kept.map(|(key, value)| (key.as_str(), value.as_str().unwrap()));
        json(
            kept.chain(
                options
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_str())),
            ),
        )
    }

    /// Ends the replay: remaining mounts can be unmounted, sizes are as requested, and nothing is left without the
    /// volumes.
    fn close(self, story: &Story, before: &Baseline) {
        for (driver, end, dir) in self.mounted.iter().rev() {
            self.drivers[driver.as_str()]
                .call(&[end, dir.as_str()])
                .success();
            fs::remove_dir(dir).unwrap();
        }
        for (_, name, mebibytes) in story.volumes {
            let (image, filesystem) = self.size(name);
            assert_eq!(image, mebibytes * MEBI, "image of {name}");
            // XFS leaves less than 64 blocks of 4 KiB unused.
            assert!(
                image - filesystem < 64 * 4096,
                "file system of {name}: {filesystem}"
            );
        }
        for (driver, name, _) in story.volumes {
            self.drivers[driver]
                .call(&["delete", &self.volumes[name].json("rw")])
                .success();
        }
        before.expect(&self.sandbox, "all volumes deleted");
    }

    /// Bytes of a volume's image, and of the XFS in it according to its superblock (`sb_blocksize` at 4,
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
