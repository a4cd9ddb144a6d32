//! Volumes that the driver's own `provision` makes and its `delete` removes, whatever the volumes of other checks
//! come from.

use crate::{
    bench::{Bench, MountPoint},
    callout::{
        argument::{self, Options},
        call::{Call, Outcome},
    },
    config::Kind,
    journal::record::Record,
    system::{block_devices, mounts},
    verdict::{Stop, Verdict, wrong},
    volume::Volume,
};
use anyhow::{Context, Result};
use std::sync::atomic::Ordering;

/// What a file system on a shared directory may take of the size for itself.
const OVERHEAD: u64 = 16 << 20;

/// A volume that `provision` made, with the call and what it answered.
#[derive(Debug)]
pub struct Provisioned {
    pub call: Call,
    pub volume: Volume,
    /// `volumeName`, by which the driver knows it.
    pub handle: String,
    /// The size that the driver told.
    pub capacity: Option<u64>,
}

impl Provisioned {
    /// Whether the reply names this volume too.
    pub fn is(&self, other: &Provisioned) -> bool {
        self.handle == other.handle && self.volume.options == other.volume.options
    }
}

impl Bench<'_> {
    /// A name as long as a claim's, of which only the end differs from that of other volumes.
    pub fn provision_name(&self) -> String {
        let number = self.run.count.fetch_add(1, Ordering::Relaxed);
        format!("sanity-{}-{number:024}", self.run.tag)
    }

    /// Makes a volume of the tester's size, under a new name.
    pub fn provision_new(&self) -> Result<Provisioned, Stop> {
        self.provision(&self.provision_name(), self.run.bytes)
    }

    /// Makes a volume, or stops the check.
    pub fn provision(&self, name: &str, bytes: u64) -> Result<Provisioned, Stop> {
        let call = self.call_provision(name, bytes, &Options::new())?;
        if let Some(made) = self.answered(name, &call) {
            return Ok(made);
        }
        let supported = self.needs_support(&call);
        if matches!(supported, Err(Stop::NotApplicable(_))) {
            self.gone(name)?;
        }
        supported?;
        Err(wrong(&call, "provision makes a volume", "it did not"))
    }

    /// Calls `provision` with these members besides the usual ones, recorded in the journal first.
    pub fn call_provision(&self, name: &str, bytes: u64, more: &Options) -> Result<Call, Stop> {
        self.expect_provisioned(name, bytes)?;
        let call = self.call(&self.provision_arguments(name, bytes, more))?;
        if let Some(made) = self.answered(name, &call) {
            self.record(Record::Options {
                name: name.to_owned(),
                options: made.volume.options,
            })?;
        }
        Ok(call)
    }

    /// Records in the journal that `provision` may make this volume.
    pub fn expect_provisioned(&self, name: &str, bytes: u64) -> Result<()> {
        self.record(Record::Volume {
            name: name.to_owned(),
            bytes,
            provisioned: true,
        })
    }

    pub fn provision_arguments(&self, name: &str, bytes: u64, more: &Options) -> [String; 2] {
        let mut members = self.run.provision_members(name, bytes);
        members.extend(more.clone());
        ["provision".to_owned(), argument::object(&members)]
    }

    /// The volume that a successful `provision` answered.
    pub fn answered(&self, name: &str, call: &Call) -> Option<Provisioned> {
        let Outcome::Success(reply) = call.outcome() else {
            return None;
        };
        Some(Provisioned {
            call: call.clone(),
            volume: self.run.bare(name, reply.options.unwrap_or_default()),
            handle: reply.volume_name.unwrap_or_default(),
            capacity: reply.capacity,
        })
    }

    pub fn call_delete(&self, volume: &Volume) -> Result<Call, Stop> {
        self.call(&["delete", &volume.json("rw")])
    }

    /// Calls `delete` as after a lost answer: with what `provision` was told, but for the size.
    pub fn call_delete_by_name(&self, name: &str) -> Result<Call, Stop> {
        let mut members = self.run.provision_members(name, self.run.bytes);
        members.retain(|key, _| !key.starts_with("request"));
        self.call(&["delete", &argument::object(&members)])
    }

    /// Deletes a volume, or stops the check.
    pub fn delete(&self, volume: &Volume) -> Verdict {
        let call = self.call_delete(volume)?;
        self.expect_deleted(&volume.name, &call)
    }

    /// Checks that `delete` succeeded, and forgets the volume.
    pub fn expect_deleted(&self, name: &str, call: &Call) -> Verdict {
        if !call.succeeded() {
            let found = match call.not_supported() {
                true => "Not supported: nobody removes what provision makes",
                false => "it did not",
            };
            return Err(wrong(call, "delete succeeds", found));
        }
        self.gone(name)
    }

    /// Nothing of the volume is left to undo.
    pub fn gone(&self, name: &str) -> Verdict {
        Ok(self.record(Record::Gone {
            name: name.to_owned(),
        })?)
    }

    /// Checks that what is mounted has at least this size: its device, or the file system where no device is the
    /// volume's alone.
    pub fn expect_size(&self, call: &Call, mount_point: &MountPoint, bytes: u64) -> Verdict {
        let mount = mounts::at(&mount_point.dir)?.pop();
        let mount = mount.context("the volume is mounted")?;
        let device = match self.run.config.volume.kind {
            Kind::Block => block_devices::size(&mount.device),
            Kind::Directory | Kind::Ephemeral => None,
        };
        let (found, least) = match device {
            Some(device) => (device, bytes),
            None => {
                let found = nix::sys::statvfs::statvfs(&mount_point.dir);
                let found = found.context("ask for the size of the volume")?;
                let size = found.blocks() * found.fragment_size();
                (size, (bytes - bytes / 8).saturating_sub(OVERHEAD))
            }
        };
        if found >= least {
            return Ok(());
        }
        let expected = format!("the volume has at least {bytes} bytes");
        Err(wrong(call, expected, format!("it has {found}")))
    }
}
