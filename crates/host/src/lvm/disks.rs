//! The disks that belong to a group. LVM reads every disk of the node, also those that a pod or a virtual machine can
//! write raw, and trusts the newest metadata it finds.

use super::{
    changed::{Changed, PartRow},
    command,
    group_or_thin_pool::{GroupOrThinPool, REPORT},
    own::Disks,
    remembered::DIRECTORIES as REMEMBERED,
    report::{IdentityRow, MemberRow, TagRow},
    rows::{Row, rows},
    sync::sync,
};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fmt::{self, Display},
    os::fd::BorrowedFd,
};

impl GroupOrThinPool {
    /// Changes the group's metadata, on its own disks only, and only if no disk is missing.
    pub(super) fn change(&self, disks: &Disks, doing: &str, words: &[&str]) -> Result<()> {
        disks.expect_none_away()?;
        disks.expect_in_place()?;
        command::count_change();
        self.change_on(disks, doing, words, &[])
    }

    /// Runs a change on `disks`. If a disk was added to the group after `disks` were read, or went meanwhile, LVM does not
    /// see it and marks it as missing in the metadata; that mark is removed again from each disk that is there.
    fn change_on(
        &self,
        disks: &Disks,
        doing: &str,
        words: &[&str],
        hold: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let output = command::attempt(words, disks.paths(), hold)?;
        if command::misses_a_disk(&output)
            && let Err(error) = self.restore_missing(disks)
        {
            log::warn!(
                "a disk of the volume group counts as missing; `vgextend --restoremissing` gives it back: {}",
                error.report()
            );
        }
        command::expect_changed(doing, output)
    }

    fn restore_missing(&self, before: &Disks) -> Result<()> {
        let rows = self.disk_rows()?.into_iter();
        // One that is not there has no path.
        let marked = rows.filter(|disk| {
            let is_there = disk.pv_name.starts_with('/');
            !disk.pv_missing.is_empty() && is_there && before.is_newly_missing(&disk.pv_uuid)
        });
        let marked: Vec<_> = marked.map(|disk| disk.pv_name).collect();
        if marked.is_empty() {
            return Ok(());
        }
        let mut words = vec!["vgextend", "--restoremissing", &self.group];
        words.extend(marked.iter().map(String::as_str));
        let mut shown = [before.paths(), &marked].concat();
        shown.sort_unstable();
        shown.dedup();
        let doing = "give back a disk of the volume group";
        command::count_change();
        command::change(doing, &words, &shown, &[])?;
        sync(&shown)
    }

    /// Runs a change that also gives the kernel new device tables. `volume` is the name of the changed volume, and its
    /// UUID if it has one already.
    pub(super) fn change_devices(
        &self,
        disks: &Disks,
        doing: &str,
        words: &[&str],
        volume: (&str, Option<&str>),
        hold: &[BorrowedFd<'_>],
    ) -> Result<()> {
        disks.expect_none_away()?;
        disks.expect_in_place()?;
        command::count_change();
        self.load_devices(disks, doing, words, volume, hold)
    }

    /// Runs a command that only gives the kernel device tables, also while a disk is missing.
    pub(super) fn load_devices(
        &self,
        disks: &Disks,
        doing: &str,
        words: &[&str],
        (volume, uuid): (&str, Option<&str>),
        hold: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let changed = Changed {
            group: &self.group,
            volume,
            uuid,
            thin_pool: self.thin_pool.as_deref(),
        };
        let found = disks.possible_conflicts(&changed)?;
        if !found.is_empty() {
            // What is on a disk that was added meanwhile is no stranger's.
            disks.expect_same(&self.disks()?)?;
            let rows: Vec<PartRow> = self.ask("lvs", PartRow::FIELDS, &["-a"], &self.group)?;
            disks.remove_conflicts(found, &changed, &rows)?;
        }
        self.change_on(disks, doing, words, hold)
    }

    /// Returns the disks of the one group of this name that is a pool or has a thin pool that is one. If the node
    /// remembers a pool of this name, it must be that one.
    pub(super) fn disks_of_the_pool(&self, said: &str) -> Result<Vec<String>> {
        let group = format!("vg_name=\"{}\"", self.group);
        let of_thin_pools = match &self.thin_pool {
            Some(pool) => format!("{group} && lv_name=\"{pool}\""),
            None => group.clone(),
        };
        let tagged =
            |verb, fields, which: &str| self.of::<TagRow>(verb, fields, &["-S", which], &[]);
        let mut found = tagged("lvs", "vg_uuid,lv_tags", &of_thin_pools)?;
        // A caller that knows only a device does not know whether the group or a thin pool has the tag.
        if self.thin_pool.is_none() {
            found.extend(tagged("vgs", "vg_uuid,vg_tags", &group)?);
        }
        let known = self.remembered_of_group()?;
        let mut pools = found.iter().filter_map(|row| row.group_of_pool(&known));
        let first = pools.next();
        let Some(uuid) = first.filter(|first| pools.all(|other| other == *first)) else {
            let what = match known.is_empty() {
                true => "which is the pool cannot be told; detach the others, or give them other names with `vgrename` and their UUIDs".to_owned(),
                false => format!("none, or more than one, is the pool that the node remembers; attach its disks, or where it was replaced, remove its file in {} and detach the others", REMEMBERED.join(" and ")),
            };
            let what = format!("several volume groups have this name, and {what}");
            return Err(Error::new(ErrorKind::Storage, what).because(said.to_owned()));
        };
        let members: Vec<MemberRow> = self.of("vgs", MemberRow::FIELDS, &["-S", &group], &[])?;
        let own = members.into_iter().filter(|disk| disk.is_of(&uuid));
        Ok(own.map(|disk| disk.pv_name).collect())
    }

    /// Checks LVM's messages for disks with different metadata of the group. A power cut within a change causes that,
    /// and then the disk with the older metadata lists the other disk.
    pub(super) fn expect_agreement(&self, said: &str) -> Result<()> {
        let disagreements = disagreements(said, &self.group);
        for Disagreement { older, newer } in &disagreements {
            if !self.knows(older.disk, newer.disk)? {
                return Err(Error::new(
                    ErrorKind::Storage,
                    "the volume group's metadata are in doubt: a disk has newer ones than another, which does not know it; take away the one of the two that the group never had, or lost (the node's log names both), and let no command of LVM write before",
                )
                .because(format!("{newer} is not in {older}")));
            }
        }
        if forked(said, &self.group) || disagreements.is_empty() && differ(said, &self.group) {
            return Err(Error::new(
                ErrorKind::Storage,
                "the volume group's metadata are in doubt: its disks have different ones, and lvm does not tell which disk has which; take away the disk that the group never had, or lost, and let no command of LVM write before; where all are its own, repair it with `vgck`",
            )
            .because(said.to_owned()));
        }
        Ok(())
    }

    /// Whether the metadata on disk `older` list the disk `newer`.
    fn knows(&self, older: &str, newer: &str) -> Result<bool> {
        let only = |disk: &str| [disk.to_owned()];
        let fields = IdentityRow::FIELDS;
        let members: Vec<IdentityRow> = self.of("vgs", fields, &[&self.group], &only(older))?;
        let newer: Vec<IdentityRow> = self.of("pvs", fields, &[newer], &only(newer))?;
        Ok(newer.first().is_some_and(|it| members.contains(it)))
    }

    /// Runs a report without checking LVM's warnings.
    fn of<R: Row>(
        &self,
        verb: &str,
        fields: &str,
        more: &[&str],
        disks: &[String],
    ) -> Result<Vec<R>> {
        let mut words = vec![verb];
        words.extend(REPORT);
        words.extend(["-o", fields]);
        words.extend(more);
        rows(&command::report(&self.group, &words, disks)?.stdout)
    }
}

/// Version of a group's metadata on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Metadata<'a> {
    seqno: &'a str,
    disk: &'a str,
}

impl<'a> Metadata<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (seqno, disk) = text.split_once(" on ")?;
        Some(Metadata { seqno, disk })
    }
}

impl Display for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metadata {} on {}", self.seqno, self.disk)
    }
}

/// Different metadata on two disks; LVM uses the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Disagreement<'a> {
    older: Metadata<'a>,
    newer: Metadata<'a>,
}

/// Parses `WARNING: ignoring metadata seqno %u on %s for seqno %u on %s for VG %s.` in LVM's lib/metadata/metadata.c
/// (`_vg_read`), which begins with a capital since 2.03.34.
fn disagreements<'a>(said: &'a str, group: &str) -> Vec<Disagreement<'a>> {
    let of_group = format!(" for VG {group}.");
    let pair = |line: &'a str| {
        let (_, rest) = line.split_once("gnoring metadata seqno ")?;
        let (older, newer) = rest
            .trim_end()
            .strip_suffix(&of_group)?
            .split_once(" for seqno ")?;
        Some(Disagreement {
            older: Metadata::parse(older)?,
            newer: Metadata::parse(newer)?,
        })
    };
    let mut pairs: Vec<_> = said.lines().filter_map(pair).collect();
    pairs.dedup();
    pairs
}

/// Whether two disks have different metadata with the same sequence number, which no power cut causes:
/// `scan of VG %s from %s mda%d found mda_checksum %x` in LVM's lib/cache/lvmcache.c.
fn forked(said: &str, group: &str) -> bool {
    let scan = format!("can of VG {group} from ");
    said.lines()
        .any(|line| line.contains(&scan) && line.contains(" found mda_checksum "))
}

/// Whether disks have different metadata, according to a release before 2.03.04, which does not name the disks
/// (lib/metadata/metadata.c and lib/cache/lvmetad.c), or to a later one, which named them in an earlier message.
fn differ(said: &str, group: &str) -> bool {
    let within = [
        format!("nconsistent metadata found for VG {group} - updating to use version "),
        format!("nconsistent metadata for VG {group} on devices "),
        format!("olume Group {group} is not consistent"),
        format!("olume group {group} is not consistent"),
    ];
    let last = [
        format!("nconsistent metadata found for VG {group}"),
        format!("nconsistent metadata found for VG {group}."),
        format!("nconsistent metadata UUIDs found for volume group {group}"),
        format!("nconsistent metadata UUIDs found for volume group {group}."),
        format!("ot repairing metadata for VG {group}."),
    ];
    said.lines().map(str::trim_end).any(|line| {
        within.iter().any(|words| line.contains(words))
            || last.iter().any(|words| line.ends_with(words))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_disagree_are_read_from_what_lvm_says() {
        let line = "  WARNING: ignoring metadata seqno 6 on /dev/vda for seqno 500 on /dev/vdb for VG vg0.";
        let newest = line.replace("ignoring", "Ignoring");
        let expected = Disagreement {
            older: Metadata {
                seqno: "6",
                disk: "/dev/vda",
            },
            newer: Metadata {
                seqno: "500",
                disk: "/dev/vdb",
            },
        };
        for line in [line, &newest] {
            let said = format!("  WARNING: other\n{line}\n{line}\n");
            assert_eq!(disagreements(&said, "vg0"), [expected]);
        }
        let named = "metadata 500 on /dev/vdb is not in metadata 6 on /dev/vda";
        let Disagreement { older, newer } = expected;
        assert_eq!(format!("{newer} is not in {older}"), named);
        for (said, group) in [
            (line, "vg"),
            (line, "vg01"),
            ("", "vg0"),
            ("ignoring metadata seqno 6 for VG vg0.", "vg0"),
        ] {
            assert_eq!(disagreements(said, group), [], "{said} {group}");
        }
    }

    #[test]
    fn equally_new_metadata_that_differ_are_in_doubt() {
        for scan in [
            "  WARNING: scan of VG vg0 from /dev/vdb mda1 found mda_checksum 1a mda_size 9 vs 2b 9",
            "  WARNING: Scan of VG vg0 from /dev/vdb mda1 found mda_checksum 1a mda_size 9 vs 2b 9.",
            "  Scan of VG vg0 from /dev/vdb found mda_checksum 1a mda_size 9 vs previous 2b 9",
        ] {
            assert!(forked(&format!("other\n{scan}\n"), "vg0"), "{scan}");
            for group in ["vg", "vg01", "g0"] {
                assert!(!forked(scan, group), "{group}");
            }
        }
        // Another LVM command changes the group while this one scans without a lock.
        let change = "  Scan of VG vg0 from /dev/vdb found metadata seqno 7 vs previous 6.";
        assert!(!forked(change, "vg0"));
    }

    #[test]
    fn a_release_that_names_no_disks_says_that_they_differ() {
        for said in [
            "  Not repairing metadata for VG vg0.",
            "  WARNING: Volume Group vg0 is not consistent.",
            "  WARNING: Inconsistent metadata found for VG vg0 - updating to use version 7",
            "  WARNING: Inconsistent metadata found for VG vg0",
            "  WARNING: Inconsistent metadata found for VG vg0.",
            "  WARNING: inconsistent metadata for VG vg0 on devices /dev/vda seqno 6 and /dev/vdb seqno 7.",
            "  WARNING: Inconsistent metadata UUIDs found for volume group vg0.",
        ] {
            assert!(differ(&format!("other\n{said}\nother"), "vg0"), "{said}");
            for group in ["vg", "vg01", "g0"] {
                assert!(!differ(said, group), "{said} {group}");
            }
        }
        for said in [
            "",
            "  Cannot process volume group vg0",
            "  WARNING: Not repairing PV x with missing device.",
            "  WARNING: VG vg0 was missing PV /dev/vdb x.",
        ] {
            assert!(!differ(said, "vg0"), "{said}");
        }
    }
}
