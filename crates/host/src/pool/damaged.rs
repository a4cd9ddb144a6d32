//! Volumes with limits whose records cannot be read.

use super::Limited;
use crate::{
    VolumeId,
    fs::quota::{RECORD, Record, Usage},
};
use flexvol_sdk::{Bytes, Error, Result};
use std::{collections::HashSet, num::NonZeroU32, path::PathBuf};

/// A volume whose record of its limit cannot be read. It is neither mounted nor grown nor deleted,
/// because its project may be another volume's: pods can change that.
#[derive(Debug)]
pub struct Damaged {
    /// The volume.
    pub volume: VolumeId,
    /// What is wrong with its record.
    pub why: Error,
    /// Where the directory around its root is in the pool, which has the record.
    pub directory: PathBuf,
    /// The attribute that is the record.
    pub attribute: &'static str,
    /// What the record would be by what the kernel says now; `None` where the project is another
    /// volume's too, or limits nothing.
    pub proposal: Option<String>,
}

/// What a directory has and may take, and its project now.
type Found = (Usage, Option<NonZeroU32>);

impl Limited<'_> {
    /// The volumes whose records cannot be read, in no order.
    ///
    /// # Errors
    /// When the pool cannot be read.
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
        // One of two that are in one project now was in another, and which one nobody knows.
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
