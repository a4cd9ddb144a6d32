//! Giving images what they lack of what they were promised.

use super::{Allocation, Image, Pool, Reserve, blocks::TIMEOUT, lacking::Seen};
use crate::{VolumeId, fs::extents::Allowance};
use flexvol_sdk::{Bytes, Result};
use std::time::Instant;

impl Pool {
    /// Opens a volume's image that is about to be used. With [`Allocation::Full`] what is missing of
    /// its blocks is allocated again, and what a copy shares is its own again; where the pool has no room for
    /// that, a Btrfs keeps none, or it takes more than a minute, the image is used as it is: what was written is
    /// there, and who needs it is served.
    ///
    /// # Errors
    /// As for [`Pool::existing_image`].
    pub fn whole_image(
        &self,
        volume: &VolumeId,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<Image> {
        let image = self.existing_image(volume)?;
        self.make_whole(&image, volume, allocation, reserve)?;
        Ok(image)
    }

    /// The same for an image that is open.
    ///
    /// # Errors
    /// When it cannot be examined.
    pub fn make_whole(
        &self,
        image: &Image,
        volume: &VolumeId,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        if allocation == Allocation::Full {
            let seen = image.look()?;
            if let Err(error) =
                self.restore(image, seen, volume, reserve, Some(Instant::now() + TIMEOUT))
            {
                log::error!(
                    "volume {volume} lacks {} of its storage, and writing there may fail: {}",
                    seen.lacks(),
                    error.report()
                );
            }
        }
        Ok(())
    }

    /// Gives a volume what a cut [`Pool::take`] did not.
    ///
    /// # Errors
    /// [`Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where the pool has no room for it;
    /// [`Conflict`](flexvol_sdk::ErrorKind::Conflict) where a Btrfs keeps none; otherwise as for
    /// [`Pool::existing_image`].
    pub fn complete(
        &self,
        volume: &VolumeId,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        let image = self.existing_image(volume)?;
        if allocation == Allocation::Thin {
            return Ok(());
        }
        let seen = image.look_below(None, Allowance::WITHOUT_END)?;
        match seen.is_in_place() {
            true => self
                .restore(&image, seen, volume, reserve, None)
                .and_then(|()| image.expect_whole()),
            // Nothing that is taken over is so: it became so later.
            false => Ok(()),
        }
    }

    fn restore(
        &self,
        image: &Image,
        seen: Seen,
        volume: &VolumeId,
        reserve: Reserve,
        end: Option<Instant>,
    ) -> Result<()> {
        let lacks = seen.lacks();
        if lacks == Bytes(0) {
            if seen.unknown() > Bytes(0) {
                log::warn!(
                    "volume {volume} is in very many pieces, so it is not known of {} whether a copy shares it",
                    seen.unknown()
                );
            }
            return Ok(());
        }
        image.expect_in_place()?;
        image.refill(seen, reserve, self, end)?;
        match image.look()?.may_lack() {
            Bytes(0) => {
                log::info!("volume {volume} lacked {lacks} of its storage and has it again");
            }
            still => log::error!(
                "volume {volume} shares up to {still} of its storage with a copy, and writing there may fail: the pool's file system cannot part them, or it is in too many pieces"
            ),
        }
        Ok(())
    }
}
