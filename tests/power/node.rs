//! A node with a driver that is called as kubelet calls it, on this machine or in a virtual one.

use flexvol_lab::vm::{Outcome, quoted};
use flexvol_testing::{Call, PersistentVolume};
use std::{collections::BTreeMap, time::Instant};

const POD: &str = "0b1e55ed-0000-4000-8000-000000000001";

/// A place for a node: this machine or a virtual one, with a driver and the disk of its pool.
pub trait Ground {
    /// Runs a script of bash.
    fn run(&mut self, script: &str) -> Outcome;
    /// The driver's executable.
    fn driver(&self) -> String;
    /// Kubelet's root directory.
    fn kubelet(&self) -> String;
    /// The file or device of a volume.
    fn storage(&self, volume: &str) -> String;
    /// Inserts the pool's disk, as a boot does. Returns LVM's message if a cut tore the metadata of the volume
    /// group, which LVM writes without a flush between text and pointer.
    fn insert_disk(&mut self) -> Result<(), String>;
    /// Removes the disk, and checks the file system or volume group of the pool.
    fn take_out_disk(&mut self);
    /// Remembers everything on the node except volumes' data.
    fn remember(&mut self);
    /// Checks that everything is as remembered.
    fn expect_as_remembered(&mut self, when: &str);
}

pub struct Node<G> {
    pub ground: G,
}

impl<G: Ground> Node<G> {
    /// Runs a script that must succeed.
    #[track_caller]
    pub fn run(&mut self, script: &str) -> String {
        self.ground.run(script).success().unwrap()
    }

    pub fn call(&mut self, arguments: &[&str]) -> Call {
        let started = Instant::now();
        let script = self.line(arguments);
        let outcome = self.ground.run(&script);
        Call {
            argv: arguments.iter().map(ToString::to_string).collect(),
            output: outcome.output.into_bytes(),
            exit: Some(outcome.status),
            took: started.elapsed(),
        }
    }

    /// The script that makes a callout.
    pub fn line(&self, arguments: &[&str]) -> String {
        let words: Vec<_> = arguments.iter().map(|word| quoted(word)).collect();
        let (driver, words) = (quoted(&self.ground.driver()), words.join(" "));
        format!("cd / && exec env -i {driver} {words} </dev/null")
    }

    /// The pod's directory.
    pub fn dir(&self) -> String {
        let kubelet = self.ground.kubelet();
        format!("{kubelet}/pods/{POD}/volumes/example.com~power/pv")
    }

    pub fn mount(&mut self, volume: &PersistentVolume) -> Call {
        let pod = [("name", "pod"), ("namespace", "default"), ("uid", POD)];
        let pod = pod.map(|(key, value)| (format!("kubernetes.io/pod.{key}"), value));
        let pod = pod.each_ref().map(|(key, value)| (key.as_str(), *value));
        let (dir, json) = (self.dir(), volume.json_with("rw", &pod));
        self.run(&format!("mkdir -p {dir}"));
        self.call(&["mount", &dir, &json])
    }

    pub fn unmount(&mut self) {
        let dir = self.dir();
        self.call(&["unmount", &dir]).success();
    }

    pub fn expand_arguments(&self, volume: &PersistentVolume, new: u64, old: u64) -> [String; 6] {
        let [new, old] = [new, old].map(|size| size.to_string());
        let (json, dir) = (volume.json("rw"), self.dir());
        ["expandfs".to_owned(), json, String::new(), dir, new, old]
    }

    pub fn expand(&mut self, volume: &PersistentVolume, new: u64, old: u64) -> Call {
        let arguments = self.expand_arguments(volume, new, old);
        self.call(&arguments.each_ref().map(String::as_str))
    }

    /// Writes a file in the volume, syncs it and its name, and returns its SHA-256.
    pub fn write(&mut self, name: &str, kibibytes: u32) -> String {
        let dir = self.dir();
        let line = self.run(&format!(
            "cd {dir} && head -c {kibibytes}K /dev/urandom >{name} && sync {name} . && sha256sum {name}"
        ));
        line.split(' ').next().unwrap().to_owned()
    }

    /// The SHA-256 of each of these files that can be read.
    pub fn sums<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> BTreeMap<String, String> {
        let names: Vec<_> = names.into_iter().map(|name| quoted(name)).collect();
        if names.is_empty() {
            return BTreeMap::new();
        }
        let script = format!("cd {} && sha256sum {}", self.dir(), names.join(" "));
        let lines = self.ground.run(&script).output;
        lines
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(sum, name)| (name.to_owned(), sum.to_owned()))
            .collect()
    }

    /// The size of the volume's file system, in bytes.
    pub fn size(&mut self) -> u64 {
        let text = self.run(&format!("stat -f -c '%b %S' {}", self.dir()));
        let (blocks, unit) = text.trim().split_once(' ').unwrap();
        blocks.parse::<u64>().unwrap() * unit.parse::<u64>().unwrap()
    }

    /// Checks an unmounted file system without changing it.
    pub fn fsck(&mut self, filesystem: &str, storage: &str) -> Outcome {
        self.ground.run(&fsck(filesystem, storage))
    }
}

/// The command that checks a file system without changing it.
pub fn fsck(filesystem: &str, storage: &str) -> String {
    match filesystem {
        "xfs" => format!("xfs_repair -f -n {storage}"),
        _ => format!("e2fsck -f -n {storage}"),
    }
}
