//! The container of logical volumes: a volume group, or a thin pool in one.

use super::{
    command::{report, stderr_text},
    key::PoolKey,
    names::Names,
    own::Disks,
    pool_tag::{pool_tag, tag_is_lost},
    report::{CopyRow, DiskRow, GroupReport, OpenRow, TagRow, view},
    rows::{Row, rows},
    sync::sync,
    view::View,
};
use crate::pool::PoolId;
use flexvol_sdk::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Options of every report: JSON, sizes in bytes.
pub(super) const REPORT: [&str; 5] = ["--reportformat", "json", "--units", "b", "--nosuffix"];

/// A volume group, or a thin pool in it. Nothing is read before a method is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOrThinPool {
    /// The group's name.
    pub group: String,
    /// The thin pool's name.
    pub thin_pool: Option<String>,
}

/// Selects the volumes of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// The volume with this name.
    One(&'a str),
    /// All volumes.
    All,
}

impl GroupOrThinPool {
    /// Reads LVM's state of the group or thin pool, and of the selected volumes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such group or thin pool, [`ErrorKind::Configuration`] when it is not
    /// the pool that the node remembers, or a disk of it is there twice.
    pub fn look(&self, which: Which<'_>) -> Result<View> {
        let view = self.look_at_any(which)?;
        self.expect_remembered(&view)?;
        Ok(view)
    }

    fn look_at_any(&self, which: Which<'_>) -> Result<View> {
        let thin_pool = self.thin_pool.as_deref();
        let selection = match (which, thin_pool) {
            (Which::All, None) => None,
            (Which::All, Some(pool)) => Some(format!("pool_lv=\"{pool}\" || lv_name=\"{pool}\"")),
            (Which::One(name), None) => Some(format!("lv_name=\"{name}\"")),
            (Which::One(name), Some(pool)) => {
                Some(format!("lv_name=\"{name}\" || lv_name=\"{pool}\""))
            }
        };
        let mut words = vec!["fullreport"];
        words.extend(REPORT);
        words.extend(GroupReport::words(selection.as_deref()));
        words.push(&self.group);
        let found = GroupReport::parse(&self.printed(&words)?)?;
        let usable = found
            .pv
            .iter()
            .filter(|disk| !disk.pv_allocatable.is_empty());
        let free_of_disks = usable.map(|disk| disk.pv_free).collect();
        let disks = Disks::from(found.pv);
        if let Some(view) = view(found.lv, thin_pool) {
            return Ok(View {
                disks,
                free_of_disks,
                ..view
            });
        }
        if thin_pool.is_some() {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the thin pool is not there; is it named as in `lvs`?",
            )
            .because(self.to_string()));
        }
        // The group has no volumes, so its own row is used.
        let group = found.vg.into_iter().next().ok_or_else(|| self.missing())?;
        Ok(View {
            disks,
            free_of_disks,
            ..View::from(group)
        })
    }

    /// Makes this a pool: adds a tag with a key, unless there is one. The flag tells whether the tag was added. A thin
    /// pool is also set to fail writes at once when it is full. A copy of a group keeps the key it was copied with, and
    /// so its volumes. The node remembers the pool as its own; `replaces` allows this to replace another remembered
    /// pool.
    ///
    /// # Errors
    /// As for [`GroupOrThinPool::look`]; [`ErrorKind::Configuration`] for a thin pool that does not zero its blocks;
    /// [`ErrorKind::Conflict`] for a copy while the original is there, and when the node remembers another pool or the
    /// pool cannot be identified.
    pub fn init(&self, replaces: bool) -> Result<(PoolId, bool)> {
        let view = self.look_at_any(Which::All)?;
        if !replaces {
            self.expect_not_replacing(&view)?;
        }
        let (id, made) = self.tag(view)?;
        self.remember(id)?;
        Ok((id, made))
    }

    fn tag(&self, view: View) -> Result<(PoolId, bool)> {
        let (view, verb, path) = match &self.thin_pool {
            Some(pool) => {
                self.thin_pool()?.expect_zeroes()?;
                let path = self.path(pool);
                let doing = "make the thin pool fail when it is full";
                let words = ["lvchange", "-y", "--errorwhenfull", "y", &path];
                self.change_devices(&view.disks, doing, &words, (pool, None), &[])?;
                // Another process may have made it a pool meanwhile.
                (self.look_at_any(Which::All)?, "lvchange", path)
            }
            None => (view, "vgchange", self.group.clone()),
        };
        let copied = view.pool_tag()?;
        let key = match &copied {
            // With a new key, the handles of these volumes could not be read.
            None if view.has_our_volumes() => return Err(tag_is_lost()),
            None => PoolKey::random()?,
            Some(tag) if tag.group == view.uuid => {
                sync(view.disks.paths())?;
                return Ok((tag.key.id(), false));
            }
            Some(tag) => {
                self.expect_alone(&view.uuid, tag.key.id())?;
                tag.key
            }
        };
        let tag = pool_tag(key, &view.uuid);
        let mut words = vec![verb, "--addtag", &tag];
        if let Some(copied) = &copied {
            words.extend(["--deltag", copied.text]);
        }
        words.push(&path);
        self.change(&view.disks, "make it a pool", &words)?;
        sync(view.disks.paths())?;
        // Another process may have done the same concurrently; then there are two tags, and this fails.
        Ok((self.look_at_any(Which::All)?.id()?, true))
    }

    /// Checks that no other group has this pool's key.
    fn expect_alone(&self, group: &str, id: PoolId) -> Result<()> {
        let (verb, fields) = match self.thin_pool {
            Some(_) => ("lvs", "vg_uuid,lv_tags"),
            None => ("vgs", "vg_uuid,vg_tags"),
        };
        let all: Vec<TagRow> = self.report(verb, fields, &[])?;
        if all.iter().any(|row| row.is_in_another_group(group, id)) {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the volume group is a copy of another one that is here too; detach or remove one of them",
            ));
        }
        Ok(())
    }

    /// Returns the disks of the group. LVM commits a change by writing to them, but never flushes their caches
    /// (`dev_write_bytes` in its lib/label/label.c). A change survives a power cut only after each disk was synced.
    ///
    /// # Errors
    /// As for [`GroupOrThinPool::look`].
    pub fn disks(&self) -> Result<Disks> {
        self.disk_rows().map(Disks::from)
    }

    /// Returns a row for each disk of this group. `pvs` would read the disks of all groups, and fail for a bad disk of
    /// another group.
    pub(super) fn disk_rows(&self) -> Result<Vec<DiskRow>> {
        self.ask("vgs", DiskRow::FIELDS, &[], &self.group)
    }

    /// Whether any process has the volume's device open; `None` if LVM cannot tell.
    pub(super) fn says_open(&self, name: &str) -> Result<Option<bool>> {
        let rows = self.ask::<OpenRow>("lvs", OpenRow::FIELDS, &[], &self.path(name))?;
        let said = rows.first().map(|row| row.lv_device_open.as_str());
        Ok(match said {
            Some("open") => Some(true),
            Some("") => Some(false),
            _ => None,
        })
    }

    /// Opens the names that are promised to volumes of a pool before these exist.
    ///
    /// # Errors
    /// When /run is not writable.
    pub fn names(id: PoolId) -> Result<Names> {
        Names::open(id)
    }

    /// Returns a place that stands for the group or thin pool. The group's links to its devices are there.
    #[must_use]
    pub fn devices(&self) -> PathBuf {
        let place = Path::new("/dev").join(&self.group);
        match &self.thin_pool {
            Some(pool) => place.join(pool),
            None => place,
        }
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.group)
    }

    pub(super) fn missing(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            "the volume group is not there; are its disks attached?",
        )
        .because(self.to_string())
    }

    /// Checks that no disk of the group is present twice. LVM uses either the disk or its copy, and after the next boot
    /// perhaps the other one.
    fn expect_no_copies(&self) -> Result<()> {
        let ours = format!("pv_duplicate=1 && vg_name=\"{}\"", self.group);
        let mut words = vec!["pvs", "-a"];
        words.extend(REPORT);
        words.extend(["-o", CopyRow::FIELDS, "-S", &ours]);
        // The command fails because of unrelated disks, but still reports those of the group.
        let copies: Vec<CopyRow> = rows(&report(&self.group, &words, &[])?.stdout)?;
        if copies.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = copies.into_iter().map(|row| row.pv_name).collect();
        // A fact about the node, and not about a claim, which another node may serve.
        Err(Error::new(
            ErrorKind::Configuration,
            "a disk of the volume group is there twice, as somebody copied it, and LVM uses one of the two; detach the other, or make a group of its own of a whole copy with `vgimportclone`",
        )
        .because(format!("LVM does not use {}", names.join(", "))))
    }

    /// Runs a report about one group or volume, which must exist.
    pub(super) fn ask<R: Row>(
        &self,
        verb: &str,
        fields: &str,
        more: &[&str],
        what: &str,
    ) -> Result<Vec<R>> {
        let words: Vec<&str> = more.iter().copied().chain([what]).collect();
        self.report(verb, fields, &words)
    }

    fn report<R: Row>(&self, verb: &str, fields: &str, more: &[&str]) -> Result<Vec<R>> {
        let mut words = vec![verb];
        words.extend(REPORT);
        words.extend(["-o", fields]);
        words.extend(more);
        rows(&self.printed(&words)?)
    }

    /// Returns LVM's output about the group, after checking that it is trustworthy.
    pub(super) fn printed(&self, words: &[&str]) -> Result<Vec<u8>> {
        let mut output = report(&self.group, words, &[])?;
        // Message of LVM's tools/toollib.c; the exit status is 5 for every failure.
        if stderr_text(&output).contains("Multiple VGs found with the same name") {
            let disks = self.disks_of_the_pool(&stderr_text(&output))?;
            output = report(&self.group, words, &disks)?;
        }
        let said = stderr_text(&output);
        // `WARNING: Not using device %s for PV %s.` (lib/cache/lvmcache.c), about disks of any group.
        if said.contains("Not using device") {
            self.expect_no_copies()?;
        }
        self.expect_agreement(&said)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        if says_missing(&said, &self.group) {
            return Err(self.missing().because(format!("{self}: {said}")));
        }
        output
            .success("ask lvm for the volume group")
            .map(|output| output.stdout)
    }
}

impl std::fmt::Display for GroupOrThinPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.group)?;
        match &self.thin_pool {
            Some(pool) => write!(f, "/{pool}"),
            None => Ok(()),
        }
    }
}

/// Whether LVM says that the group or thin pool is missing. It prints "not found" for other things too.
fn says_missing(said: &str, group: &str) -> bool {
    said.contains(&format!("Volume group \"{group}\" not found"))
        || said.contains(&format!("Failed to find logical volume \"{group}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_about_another_disk_is_no_missing_group() {
        for (said, missing) in [
            (
                "Volume group \"vg0\" not found\n  Cannot process volume group vg0",
                true,
            ),
            ("Failed to find logical volume \"vg0/tp0\"", true),
            (
                "WARNING: Device for PV x not found or rejected by a filter.\n  vg0: lock timed out",
                false,
            ),
            ("Volume group \"vg01\" not found", false),
        ] {
            assert_eq!(says_missing(said, "vg0"), missing, "{said}");
        }
    }
}
