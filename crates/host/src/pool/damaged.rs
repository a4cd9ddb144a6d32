//! Volumes whose records of their limits are unreadable.

use super::Limited;
use crate::{
    VolumeId,
    fs::quota::{RECORD, Record, Usage},
};
use flexvol_sdk::{Bytes, Error, Result};
use std::{collections::HashSet, num::NonZeroU32, path::PathBuf};

/// A volume whose record of its limit is unreadable. It is neither mounted nor grown nor deleted, because its project
/// may belong to another volume: pods can change a directory's project.
#[derive(Debug)]
pub struct Damaged {
    /// The volume.
    pub volume: VolumeId,
    /// Reason why the record is unreadable.
    pub why: Error,
    /// Path in the pool of the directory that contains the root and has the record.
    pub directory: PathBuf,
    /// Name of the record's extended attribute.
    pub attribute: &'static str,
    /// Record according to the kernel's quota; `None` if another volume has the same project, or the project has no
    /// limit.
    pub proposal: Option<String>,
}

/// Quota usage of a directory, and its current project.
type Found = (Usage, Option<NonZeroU32>);

impl Limited<'_> {
    /// Returns the volumes with unreadable records, unordered.
    ///
    /// # Errors
    /// When the pool is unreadable.
    pub fn damaged(&self) -> Result<Vec<Damaged>> {
        let (mut damaged, mut taken) = (Vec::new(), HashSet::new());
        for volume in self.pool.volume_ids()? {
            let Ok(Some(directory)) = self.pool.open_volume("", &volume) else {
                continue;
            };
            match Record::of(&directory.around) {
                Ok(record) => taken.extend(record.and_then(|record| record.project)),
                Err(why) => {
                    let found = self.limiter.usage_without_record(&directory.root).ok();
                    damaged.push((volume, why, found));
                }
            }
        }
        // Of two volumes with the same project now, one had another before, and it is unknown which.
        let (mut once, projects) = (HashSet::new(), damaged.iter().filter_map(|it| it.2?.1));
        taken.extend(projects.filter(|project| !once.insert(*project)));
        let describe = |(volume, why, found): (VolumeId, Error, Option<Found>)| {
            let whole = found.filter(|(usage, project)| {
                usage.limit > Bytes(0) && project.is_none_or(|project| !taken.contains(&project))
            });
            let proposal = whole.map(|(usage, project)| {
                let size = usage.limit;
                Record { project, size }.to_string()
            });
            Damaged {
                volume,
                why,
                directory: PathBuf::from("volumes").join(volume.to_string()),
                attribute: RECORD,
                proposal,
            }
        };
        Ok(damaged.into_iter().map(describe).collect())
    }
}
