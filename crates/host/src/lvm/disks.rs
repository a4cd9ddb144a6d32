//! Which disks are a place's own. LVM reads every disk of the node, also those that a pod or a virtual
//! machine writes as it likes, and believes what the newest metadata say.

use super::{
    command,
    place::{Place, REPORT},
    report::{IdentityRow, MemberRow, TagRow, rows},
};
use flexvol_sdk::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use std::{collections::BTreeSet, os::fd::BorrowedFd};

impl Place {
    /// Changes something on the group's own disks.
    pub(super) fn change(
        &self,
        doing: &str,
        words: &[&str],
        hold: &[BorrowedFd<'_>],
    ) -> Result<()> {
        command::change(doing, words, &self.disks()?, hold)
    }

    /// The same for what changes no metadata, and is done also where these are in doubt.
    pub(super) fn change_in_doubt(&self, doing: &str, words: &[&str]) -> Result<()> {
        command::change(doing, words, &self.disks().unwrap_or_default(), &[])
    }

    /// The disks of the one group of this name that is a pool.
    pub(super) fn disks_of_the_pool(&self, said: &str) -> Result<Vec<String>> {
        let group = format!("vg_name=\"{}\"", self.group);
        let (verb, fields, tagged) = match &self.thin_pool {
            Some(pool) => (
                "lvs",
                "vg_uuid,lv_tags",
                format!("{group} && lv_name=\"{pool}\""),
            ),
            None => ("vgs", "vg_uuid,vg_tags", group.clone()),
        };
        let found: Vec<TagRow> = of(verb, fields, &["-S", &tagged], &[])?;
        let pools: BTreeSet<_> = found.iter().filter_map(TagRow::group_of_pool).collect();
        let mut pools = pools.into_iter();
        let (Some(uuid), None) = (pools.next(), pools.next()) else {
            return Err(Error::new(
                ErrorKind::Storage,
                "several volume groups have this name; detach one, or give it another with `vgrename` and its UUID",
            )
            .because(said.to_owned()));
        };
        let members: Vec<MemberRow> = of("vgs", MemberRow::FIELDS, &["-S", &group], &[])?;
        let own = members.into_iter().filter(|disk| disk.is_of(&uuid));
        Ok(own.map(|disk| disk.pv_name).collect())
    }

    /// Checks what LVM said of disks that have different metadata of the group. It is so after a power cut
    /// within a change, and then the disk with the older ones knows the other.
    pub(super) fn expect_agreement(&self, said: &str) -> Result<()> {
        for (older, newer) in disagreements(said, &self.group) {
            if !self.knows(older, newer)? {
                return Err(Error::new(
                    ErrorKind::Storage,
                    "the volume group's metadata are in doubt: a disk that the group's others do not know has newer ones; detach that disk, and let no command of LVM write before",
                )
                .because(format!("{newer} is not in the metadata of {older}")));
            }
        }
        Ok(())
    }

    /// Whether one disk of the group names the other as one.
    fn knows(&self, older: &str, newer: &str) -> Result<bool> {
        let only = |disk: &str| [disk.to_owned()];
        let fields = IdentityRow::FIELDS;
        let members: Vec<IdentityRow> = of("vgs", fields, &[&self.group], &only(older))?;
        let newer: Vec<IdentityRow> = of("pvs", fields, &[newer], &only(newer))?;
        Ok(newer.first().is_some_and(|it| members.contains(it)))
    }
}

/// A report that is not looked at for what LVM warns of.
fn of<R: DeserializeOwned>(
    verb: &str,
    fields: &str,
    more: &[&str],
    disks: &[String],
) -> Result<Vec<R>> {
    let mut words = vec![verb];
    words.extend(REPORT);
    words.extend(["-o", fields]);
    words.extend(more);
    rows(&command::report(&words, disks)?.stdout)
}

/// The disks of a group that have older metadata, each with one that has newer:
/// `WARNING: ignoring metadata seqno %u on %s for seqno %u on %s for VG %s.` in LVM's
/// lib/metadata/metadata.c (`_vg_read`).
fn disagreements<'a>(said: &'a str, group: &str) -> Vec<(&'a str, &'a str)> {
    let of_group = format!(" for VG {group}.");
    let pair = |line: &'a str| {
        let (_, rest) = line.split_once("ignoring metadata seqno ")?;
        let (older, newer) = rest
            .trim_end()
            .strip_suffix(&of_group)?
            .split_once(" for seqno ")?;
        Some((older.split_once(" on ")?.1, newer.split_once(" on ")?.1))
    };
    let mut pairs: Vec<_> = said.lines().filter_map(pair).collect();
    pairs.dedup();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_disagree_are_read_from_what_lvm_says() {
        let line = "  WARNING: ignoring metadata seqno 6 on /dev/vda for seqno 500 on /dev/vdb for VG vg0.";
        let said = format!("  WARNING: other\n{line}\n{line}\n");
        assert_eq!(disagreements(&said, "vg0"), [("/dev/vda", "/dev/vdb")]);
        for (said, group) in [
            (line, "vg"),
            (line, "vg01"),
            ("", "vg0"),
            ("ignoring metadata seqno 6 for VG vg0.", "vg0"),
        ] {
            assert_eq!(disagreements(said, group), [], "{said} {group}");
        }
    }
}
