//! Space that volumes may take.

use super::{
    GroupOrThinPool, Layout, LogicalVolume, Metadata, Percent, ThinPool, View,
    pieces::max_segments, view::TEXT_OF_A_SEGMENT, volume_in,
};
use crate::Reserve;
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

/// Limit for a thin pool's metadata: without room there, the pool cannot allocate blocks, however many are free.
const FULLEST_METADATA: Percent = Percent::of_hundred(90);

/// Below this fill level, metadata have room for any single change. Each free piece of a disk lies between allocated
/// ones, so a volume cannot get more pieces than the metadata have segments.
const ENOUGH: Percent = Percent::of_hundred(40);

/// Maximum fill levels of the metadata for creating a volume and for growing one.
struct Fullest {
    to_make: Percent,
    to_grow: Percent,
}

/// Limits for a pool that keeps no deleted volumes. A volume's mark grows when it is formatted and when the volume
/// grows. Without room for that neither would work, and with no byte left a volume could not even be deleted.
const FULLEST: Fullest = Fullest {
    to_make: Percent::of_hundred(87),
    to_grow: Percent::of_hundred(95),
};

/// Limits for a pool that keeps deleted volumes: their marks are longer, by a sixth of a volume's metadata.
const FULLEST_WHERE_KEPT: Fullest = Fullest {
    to_make: Percent::of_hundred(75),
    to_grow: Percent::of_hundred(82),
};

/// Rules for the use of a group or thin pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Layout of new volumes on the disks of a group; volumes of a thin pool have the pool's layout.
    pub layout: Layout,
    /// Space that stays free.
    pub reserve: Reserve,
    /// Maximum size up to which a volume may grow beyond the request.
    pub largest: Option<Bytes>,
    /// Whether deleted volumes are kept.
    pub keeps: bool,
    /// Whether thin volumes may be promised more than the pool's size, as long as it has that much unwritten space.
    pub overcommit: bool,
}

impl GroupOrThinPool {
    /// Rounds a size up to one that LVM can make: whole extents, equally many on each disk.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the size overflows.
    pub fn fitting(&self, size: Bytes, view: &View, rules: &Rules) -> Result<Bytes> {
        let unit = self.unit(view, rules);
        size.round_up(unit).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("a volume cannot have {size}: sizes here are multiples of {unit}"),
            )
        })
    }

    /// Returns the space that volumes may still take: free space on a group's disks; for a thin pool the space not
    /// promised yet, or with [`Rules::overcommit`] not written yet. `view` must have all volumes.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when a thin pool has no room for metadata, [`ErrorKind::Configuration`] when it does
    /// not zero blocks, [`ErrorKind::Storage`] when it is broken; otherwise as for [`GroupOrThinPool::look`].
    pub fn available(&self, view: &View, rules: &Rules) -> Result<Bytes> {
        let pool = match rules.overcommit {
            true => self.awake(view)?,
            false => {
                let pool = self.thin_pool.as_ref().map(|_| self.thin_pool());
                pool.transpose()?
            }
        };
        self.left(pool, view, rules)
    }

    /// Returns the sizes of all volumes of a thin pool in total; of a group those of its pool's volumes. `view` must
    /// have all volumes.
    #[must_use]
    pub fn promised(&self, view: &View) -> Bytes {
        let is_promised =
            |volume: &&LogicalVolume| self.thin_pool.is_some() || volume_in(&volume.name).is_some();
        let volumes = view.volumes.iter().filter(is_promised);
        Bytes(volumes.fold(0, |sum, volume| sum.saturating_add(volume.size.0)))
    }

    fn left(&self, pool: Option<ThinPool>, view: &View, rules: &Rules) -> Result<Bytes> {
        let reserve = rules.reserve.of(view.size);
        view.disks.expect_none_away()?;
        let free = match pool.map(usable).transpose()? {
            None => view.room(rules.layout.stripes),
            Some(pool) if rules.overcommit => unwritten(view.size, &pool)?,
            Some(_) => view.size.saturating_sub(self.promised(view)),
        };
        let available = free.saturating_sub(reserve).0;
        let unit = self.unit(view, rules).0.max(1);
        Ok(Bytes(available - available % unit))
    }

    /// Checks that a volume of size `has` may grow to `wanted`.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when it may not; otherwise as for [`GroupOrThinPool::available`].
    pub fn expect_room(&self, has: Bytes, wanted: Bytes, view: &View, rules: &Rules) -> Result<()> {
        let available = self.left(self.awake(view)?, view, rules)?;
        let more = wanted.saturating_sub(has);
        if more > available {
            return Err(Error::new(
                ErrorKind::Exhausted,
                format!("the volume needs {more:#} more and the pool has {available:#} to give"),
            ));
        }
        // Even with overcommit, a single volume cannot be larger than the pool.
        if wanted > view.size {
            return Err(Error::new(
                ErrorKind::Exhausted,
                format!(
                    "the volume would have {wanted:#} and the whole pool has {:#}",
                    view.size
                ),
            ));
        }
        Ok(())
    }

    fn unit(&self, view: &View, rules: &Rules) -> Bytes {
        let disks = match self.thin_pool {
            Some(_) => 1,
            None => rules.layout.stripes.max(1),
        };
        Bytes(view.extent.0.saturating_mul(disks.into()))
    }

    /// Returns the state of an active thin pool, because only that has fill levels. Activates an inactive pool for the
    /// query.
    fn awake(&self, view: &View) -> Result<Option<ThinPool>> {
        let Some(name) = &self.thin_pool else {
            return Ok(None);
        };
        let pool = self.thin_pool()?;
        if pool.metadata.is_some() {
            return Ok(Some(pool));
        }
        self.activate(&view.disks, name, None)?;
        let pool = self.thin_pool();
        // Fails if a volume was activated meanwhile, because that needs the pool.
        if let Err(error) = self.deactivate(&view.disks, name) {
            log::warn!("the thin pool stays active: {}", error.report());
        }
        pool.map(Some)
    }
}

impl GroupOrThinPool {
    /// Checks that a group's metadata has room for the segments of a volume that grows by `more`.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] when there is no room; otherwise as for [`GroupOrThinPool::look`].
    pub fn expect_metadata_for_segments(
        &self,
        more: Bytes,
        view: &View,
        rules: &Rules,
    ) -> Result<()> {
        if self.thin_pool.is_some() || view.metadata.taken() <= ENOUGH {
            return Ok(());
        }
        let extents = more.0.div_ceil(view.extent.0.max(1));
        let segments = max_segments(self.free_pieces()?, extents);
        let text = segments.saturating_mul(TEXT_OF_A_SEGMENT);
        expect_metadata_for(Bytes(text), view, rules)
    }
}

/// Checks that a group's metadata has room for another volume.
///
/// # Errors
/// [`ErrorKind::Exhausted`] when there is no room.
pub fn expect_metadata_to_make(view: &View, rules: &Rules) -> Result<()> {
    let fullest = rules.fullest().to_make;
    expect_metadata(&view.metadata, Bytes(0), fullest, "for the volumes it has")
}

/// Checks that a group's metadata has room for a volume to grow.
///
/// # Errors
/// [`ErrorKind::Exhausted`] when there is no room.
pub fn expect_metadata_to_grow(view: &View, rules: &Rules) -> Result<()> {
    expect_metadata_for(Bytes(0), view, rules)
}

fn expect_metadata_for(segments: Bytes, view: &View, rules: &Rules) -> Result<()> {
    let rest = "for volumes to be formatted and deleted";
    expect_metadata(&view.metadata, segments, rules.fullest().to_grow, rest)
}

impl Rules {
    fn fullest(&self) -> Fullest {
        match self.keeps {
            true => FULLEST_WHERE_KEPT,
            false => FULLEST,
        }
    }
}

fn expect_metadata(metadata: &Metadata, more: Bytes, fullest: Percent, rest: &str) -> Result<()> {
    if metadata.taken_with(more) <= fullest {
        return Ok(());
    }
    let with = match more.0 {
        0 => String::new(),
        _ => format!(
            " and would be {} full, as what is free of its disks is in small pieces",
            metadata.taken_with(more)
        ),
    };
    Err(Error::new(
        ErrorKind::Exhausted,
        format!(
            "the volume group's own metadata is {} full{with}, and the rest is {rest}; make another group with `vgcreate --metadatasize 16m`, or delete volumes",
            metadata.taken()
        ),
    ))
}

fn usable(pool: ThinPool) -> Result<ThinPool> {
    pool.expect_zeroes()?;
    // The caller checks the fill level of the data.
    if !["", "out_of_data"].contains(&pool.health.as_str()) {
        return Err(Error::new(
            ErrorKind::Storage,
            format!(
                "the thin pool is not well: LVM says {}; see lvmthin(7)",
                pool.health
            ),
        ));
    }
    match pool.metadata.filter(|percent| *percent > FULLEST_METADATA) {
        None => Ok(pool),
        Some(percent) => Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "the thin pool's metadata is {percent} full; give it more with `lvextend --poolmetadatasize`"
            ),
        )),
    }
}

/// Returns the unwritten space of a thin pool with this size.
fn unwritten(size: Bytes, pool: &ThinPool) -> Result<Bytes> {
    let written = pool.data.ok_or_else(|| {
        Error::new(
            ErrorKind::Storage,
            "LVM does not say how full the thin pool is; look whether `lvchange -ay` activates it",
        )
    })?;
    Ok(written.left_of(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_over_many_pieces_says_what_the_metadata_would_be() {
        let size = 512 << 10;
        let metadata = Metadata {
            size: Bytes(size),
            free: Bytes(size * 2 / 5),
        };
        let expect = |more| {
            expect_metadata(
                &metadata,
                Bytes(more),
                Percent::of_hundred(90),
                "for others",
            )
        };
        expect(150).unwrap();
        let error = expect(1_200 * TEXT_OF_A_SEGMENT).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("60.01 % full and would be 94.34 % full"),
            "{said}"
        );
    }
}
