//! One volume, from its provisioning to its end.

use super::{
    content,
    node::{Argument, Node, strong},
    print,
};
use crate::cli::table::size;
use anyhow::{Context, Result, bail, ensure};
use flexvol_storage::{
    host::kernel,
    sdk::{Bytes, Filesystem, Status},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const OLD: Bytes = Bytes(512 << 20);
const NEW: Bytes = Bytes(1 << 30);
const NAMESPACE: &str = "demo";

/// A provisioned volume and the pod's directory for it.
struct Subject<'a> {
    node: &'a Node,
    name: String,
    /// The JSON that kubelet makes of the persistent volume.
    volume: Value,
    dir: PathBuf,
}

pub fn tell(node: &Node, filesystem: Filesystem) -> Result<()> {
    let title = format!(
        "{filesystem}: a volume of {} grows to {} while a pod uses it",
        size(OLD),
        size(NEW)
    );
    print(format_args!("\n{}", strong(&title)))?;
    let subject = Subject::provision(node, filesystem)?;
    subject.mount()?;
    let file = subject.dir.join("file");
    content::write(&file)?;
    let written = content::checksum(&file)?;
    say(&format!("the pod writes a file of {}", size(content::SIZE)))?;
    if let Some(sum) = &written {
        say(&format!("sha256  {sum}"))?;
    }
    let before = subject.space()?;
    subject.grow(filesystem)?;
    let after = subject.space()?;
    ensure!(after > before, "the file system has not grown");
    check(
        &file,
        written.as_deref(),
        "the file is the same, byte for byte",
    )?;
    subject.unmount()?;
    subject.mount()?;
    check(
        &file,
        written.as_deref(),
        "the file is the same after another mount, too",
    )?;
    subject.unmount()?;
    subject.delete()
}

impl<'a> Subject<'a> {
    fn provision(node: &'a Node, filesystem: Filesystem) -> Result<Self> {
        let name = format!("demo-{filesystem}");
        let request = json!({
            "kubernetes.io/pvOrVolumeName": name,
            "kubernetes.io/pvc.namespace": NAMESPACE,
            "requestBytes": OLD.0.to_string(),
            "fsType": filesystem.as_str(),
        });
        let made = node.succeed(&[Argument::plain("provision"), Argument::json(&request)])?;
        let mut volume = json!({
            "kubernetes.io/pvOrVolumeName": name,
            "kubernetes.io/fsType": filesystem.as_str(),
            "kubernetes.io/readwrite": "rw",
        });
        for (key, value) in made.options {
            volume[key] = value.into();
        }
        let dir = node.directory(&name)?;
        Ok(Subject {
            node,
            name,
            volume,
            dir,
        })
    }

    fn mount(&self) -> Result<()> {
        let mut volume = self.volume.clone();
        volume["kubernetes.io/pod.name"] = "demo".into();
        volume["kubernetes.io/pod.namespace"] = NAMESPACE.into();
        volume["kubernetes.io/pod.uid"] = "5f2c7a3e-9d41-4b86-a1c0-d3e8f7b69210".into();
        volume["kubernetes.io/serviceAccount.name"] = "default".into();
        let arguments = [
            Argument::plain("mount"),
            Argument::directory(&self.node.directory(&self.name)?),
            Argument::json(&volume),
        ];
        self.node.succeed(&arguments).map(drop)
    }

    fn unmount(&self) -> Result<()> {
        let arguments = [Argument::plain("unmount"), Argument::directory(&self.dir)];
        self.node.succeed(&arguments).map(drop)
    }

    fn delete(&self) -> Result<()> {
        let arguments = [Argument::plain("delete"), Argument::json(&self.volume)];
        self.node.succeed(&arguments).map(drop)
    }

    /// What kubelet calls when a claim of a running pod was raised.
    fn grow(&self, filesystem: Filesystem) -> Result<()> {
        let arguments = || {
            [
                Argument::plain("expandfs"),
                Argument::json(&self.volume),
                Argument::plain(""),
                Argument::directory(&self.dir),
                Argument::plain(NEW.0),
                Argument::plain(OLD.0),
            ]
        };
        if self.node.call(&arguments())?.status == Status::Success {
            return Ok(());
        }
        if filesystem != Filesystem::Ext4 || kernel::has(kernel::SYS_RESOURCE).unwrap_or(true) {
            bail!("the demo ends here, because the volume did not grow");
        }
        say("this kernel grows a mounted ext4 only for CAP_SYS_RESOURCE, which is missing here;")?;
        say("the storage has grown, and the file system follows when it is mounted next:")?;
        self.unmount()?;
        self.mount()?;
        self.node.succeed(&arguments()).map(drop)
    }

    /// Prints what `df` says and returns the size that the kernel reports.
    fn space(&self) -> Result<u64> {
        if let Some(lines) = content::space(&self.dir)? {
            lines
                .lines()
                .try_for_each(|line| say(&format!("df      {line}")))?;
        }
        let stat = nix::sys::statvfs::statvfs(&self.dir).context("ask the file system's size")?;
        Ok(stat.blocks())
    }
}

/// Compares the file with what was written, and its checksum with the one it had.
fn check(file: &Path, written: Option<&str>, verdict: &str) -> Result<()> {
    content::verify(file)?;
    let now = content::checksum(file)?;
    ensure!(now.as_deref() == written, "the file's checksum changed");
    if let Some(sum) = now {
        say(&format!("sha256  {sum}"))?;
    }
    say(verdict)
}

fn say(text: &str) -> Result<()> {
    print(format_args!("              {text}"))
}
