//! How much volumes may take.

use super::{
    GroupOrThinPool, Layout, Metadata, Percent, ThinPool, View, pieces::max_segments,
    view::TEXT_OF_A_SEGMENT,
};
use crate::Reserve;
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

/// A thin pool without room for metadata can give out no block, whatever it has of them.
const FULLEST_METADATA: Percent = Percent::of_hundred(90);

/// Less full, metadata have room for any single change: a free piece of a disk lies between pieces that are taken, so no
/// volume can take more of them than the text has segments.
const ENOUGH: Percent = Percent::of_hundred(40);

/// How full metadata may be when a volume is made, and when one grows.
struct Fullest {
    to_make: Percent,
    to_grow: Percent,
}

/// A volume's mark becomes longer when it is formatted and when it grows. In a group without room for that it could be
/// neither, and with no byte left not even be deleted.
const FULLEST: Fullest = Fullest {
    to_make: Percent::of_hundred(87),
    to_grow: Percent::of_hundred(95),
};

/// The mark of a volume that was deleted and is kept is longer by a sixth of all that a volume takes.
const FULLEST_WHERE_KEPT: Fullest = Fullest {
    to_make: Percent::of_hundred(75),
    to_grow: Percent::of_hundred(82),
};

/// How a place may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How new volumes lie on the disks of a group; those of a thin pool lie where it lies.
    pub layout: Layout,
    /// What is left free.
    pub reserve: Reserve,
    /// No volume gets larger by itself.
    pub largest: Option<Bytes>,
    /// Deleted volumes are kept.
    pub keeps: bool,
    /// Thin volumes may be promised more than their pool has, as long as it has that much unwritten.
    pub overcommit: bool,
}

impl GroupOrThinPool {
    /// A volume's size that LVM can make: whole extents, and as many on each disk.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a size beyond all numbers.
    pub fn fitting(&self, size: Bytes, view: &View, rules: &Rules) -> Result<Bytes> {
        let unit = self.unit(view, rules);
        size.round_up(unit).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("a volume cannot have {size}: sizes here are multiples of {unit}"),
            )
        })
    }

    /// What volumes may still take: of a group what its disks have, of a thin pool what was not
    /// promised yet, or with [`Rules::overcommit`] what was not written yet. `view` shows all volumes.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where a thin pool has no room for its metadata,
    /// [`ErrorKind::Configuration`] where it does not zero blocks, [`ErrorKind::Storage`] where it
    /// is broken; otherwise as for
    /// [`GroupOrThinPool::look`].
    pub fn available(&self, view: &View, rules: &Rules) -> Result<Bytes> {
        let pool = match rules.overcommit {
            true => self.awake()?,
            false => {
                let pool = self.thin_pool.as_ref().map(|_| self.thin_pool());
                pool.transpose()?
            }
        };
        self.left(pool, view, rules)
    }

    fn left(&self, pool: Option<ThinPool>, view: &View, rules: &Rules) -> Result<Bytes> {
        let reserve = rules.reserve.of(view.size);
        view.disks.expect_none_away()?;
        let free = match pool.map(usable).transpose()? {
            None => self.room(rules.layout.stripes)?,
            Some(pool) if rules.overcommit => unwritten(view.size, &pool)?,
            Some(_) => {
                let promised = view.volumes.iter().map(|volume| volume.size.0);
                view.size
                    .saturating_sub(Bytes(promised.fold(0, u64::saturating_add)))
            }
        };
        let available = free.saturating_sub(reserve).0;
        let unit = self.unit(view, rules).0.max(1);
        Ok(Bytes(available - available % unit))
    }

    /// Checks that a volume with `has` may be as large as `wanted`.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where it may not; otherwise as for [`GroupOrThinPool::available`].
    pub fn expect_room(&self, has: Bytes, wanted: Bytes, view: &View, rules: &Rules) -> Result<()> {
        let available = self.left(self.awake()?, view, rules)?;
        let more = wanted.saturating_sub(has);
        if more > available {
            return Err(Error::new(
                ErrorKind::Exhausted,
                format!("the volume needs {more} more and the pool has {available} to give"),
            ));
        }
        // However much is promised to all together.
        if wanted > view.size {
            return Err(Error::new(
                ErrorKind::Exhausted,
                format!(
                    "the volume would have {wanted} and the whole pool has {}",
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

    /// Only an active thin pool tells how full it is. One that somebody deactivated is active as long
    /// as it is asked.
    fn awake(&self) -> Result<Option<ThinPool>> {
        let Some(name) = &self.thin_pool else {
            return Ok(None);
        };
        let pool = self.thin_pool()?;
        if pool.metadata.is_some() {
            return Ok(Some(pool));
        }
        self.activate(name, None)?;
        let pool = self.thin_pool();
        // A volume that somebody activated meanwhile keeps what it needs of the pool.
        if let Err(error) = self.deactivate(name) {
            log::warn!("the thin pool stays active: {}", error.report());
        }
        pool.map(Some)
    }
}

impl GroupOrThinPool {
    /// Checks that a group's metadata has room for the segments that a volume gets when it grows by `more`.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] where there is none; otherwise as for [`GroupOrThinPool::look`].
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
/// [`ErrorKind::Exhausted`] where there is none.
pub fn expect_metadata_to_make(view: &View, rules: &Rules) -> Result<()> {
    let fullest = rules.fullest().to_make;
    expect_metadata(&view.metadata, Bytes(0), fullest, "for the volumes it has")
}

/// Checks that a group's metadata has room for a volume to grow.
///
/// # Errors
/// [`ErrorKind::Exhausted`] where there is none.
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
    // How full it is, is counted by whoever asks.
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

/// What nobody has written to of a thin pool with this size.
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
