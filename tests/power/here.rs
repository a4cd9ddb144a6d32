//! The ground on this machine, where volumes are files.

use crate::{
    executable,
    node::{Ground, Node, fsck},
};
use flexvol_lab::vm::Outcome;
use flexvol_testing::{Baseline, Driver, Sandbox};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub struct Here {
    sandbox: Sandbox,
    driver: Driver,
    disk: PathBuf,
    remembered: Option<Baseline>,
}

impl Node<Here> {
    /// A node whose pool is on this disk image, after the image is inserted.
    pub fn here(disk: &Path) -> Self {
        let sandbox = Sandbox::new(&executable());
        let driver = sandbox.install("example.com/power", false, "");
        Node {
            ground: Here {
                sandbox,
                driver,
                disk: disk.to_owned(),
                remembered: None,
            },
        }
    }
}

impl Ground for Here {
    fn run(&mut self, script: &str) -> Outcome {
        let mut bash = Command::new("bash");
        let script = format!("exec 2>&1\n{script}");
        let ran = bash.args(["-c", &script]).stdin(Stdio::null()).output();
        let ran = ran.unwrap();
        Outcome {
            status: ran.status.code().unwrap(),
            output: String::from_utf8(ran.stdout).unwrap(),
        }
    }

    fn driver(&self) -> String {
        self.driver.executable().to_str().unwrap().to_owned()
    }

    fn kubelet(&self) -> String {
        self.sandbox.kubelet_root().to_str().unwrap().to_owned()
    }

    fn storage(&self, volume: &str) -> String {
        let volumes = self.sandbox.pool().join("volumes");
        volumes.join(volume).to_str().unwrap().to_owned()
    }

    fn insert_disk(&mut self) -> Result<(), String> {
        self.sandbox.change_disk(&self.disk);
        Ok(())
    }

    fn take_out_disk(&mut self) {
        let own = self.sandbox.path("pool.img");
        self.sandbox.change_disk(&own);
        let check = fsck("ext4", self.disk.to_str().unwrap());
        let checked = self.run(&check);
        assert_eq!(checked.status, 0, "the pool's file system: {checked:?}");
    }

    fn remember(&mut self) {
        self.remembered = Some(Baseline::of(&self.sandbox));
    }

    fn expect_as_remembered(&mut self, when: &str) {
        let baseline = self.remembered.as_ref().unwrap();
        baseline.expect(&self.sandbox, when);
    }
}
