//! Allocation of the blocks that images lack.

use super::{Allocation, Image, Pool, Reserve, blocks::TIMEOUT, lacking::ImageBlocks};
use crate::{VolumeId, fs::extents::ExtentBudget};
use flexvol_sdk::{Bytes, Result};
use std::time::Instant;

impl Pool {
    /// Opens a volume's image for use. With [`Allocation::Full`] missing blocks are allocated again and shared ones are
    /// copied. If the pool has no room for that, a Btrfs cannot reserve any, or it takes more than a minute, the image
    /// is used as it is: its data are there, and serving the pod matters more.
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

    /// Does the same for an open image.
    ///
    /// # Errors
    /// When the image cannot be examined.
    pub fn make_whole(
        &self,
        image: &Image,
        volume: &VolumeId,
        allocation: Allocation,
        reserve: Reserve,
    ) -> Result<()> {
        if allocation == Allocation::Full {
            let seen = image.examine()?;
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

    /// Allocates the blocks that an interrupted [`Pool::adopt`] did not.
    ///
    /// # Errors
    /// [`Exhausted`](flexvol_sdk::ErrorKind::Exhausted) when the pool has no room for them;
    /// [`Conflict`](flexvol_sdk::ErrorKind::Conflict) when a Btrfs cannot reserve any; otherwise as for
    /// [`Pool::existing_image`].
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
        let seen = image.examine_below(None, ExtentBudget::WITHOUT_END)?;
        match seen.is_in_place() {
            true => self
                .restore(&image, seen, volume, reserve, None)
                .and_then(|()| image.expect_whole()),
            // Adopted images are never copy-on-write: this one became so later.
            false => Ok(()),
        }
    }

    fn restore(
        &self,
        image: &Image,
        seen: ImageBlocks,
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
        match image.examine()?.may_lack() {
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
