//! The content of a block volume's device: reading and formatting.

use super::{BlockWorld, HiddenMount, growth};
use crate::{
    backend::BlockBackend,
    decide::UNREADABLE,
    mark::{Format, Mark, State},
    observed::Content,
};
use flexvol_host::{
    Device, Uuid,
    block::probe,
    fs::{
        format::{self, MkfsTarget},
        grow,
    },
    mount::Detached,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Options, Result};

/// Space that mkfs may need: a new xfs writes the most, for its log.
const ROOM_FOR_MKFS: Bytes = Bytes(64 << 20);

/// Turns a write error of mkfs into one that says that the pool is full.
#[cold]
fn full(error: &Error) -> Error {
    Error::new(
        ErrorKind::Exhausted,
        "the pool is too full to format the volume",
    )
    .because(error.report())
}

/// Refuses a file system with another UUID: the ends were zero when this driver began to format, so somebody
/// else made it.
fn expect_own(device: &Device, begun: Uuid) -> Result<Uuid> {
    match probe::quick(device) {
        probe::Content::Formatted(found) if found.uuid != begun => Err(Error::new(
            ErrorKind::NotBlank,
            format!(
                "this driver began to format the volume, and it holds a {} that somebody else made; it was left as it is",
                found.filesystem
            ),
        )),
        _ => Ok(begun),
    }
}

/// Checks again that the device is blank: it was before the exclusive claim was made.
fn expect_blank(found: &probe::Content) -> Result<()> {
    match found {
        probe::Content::Blank => Ok(()),
        probe::Content::Unreadable => Err(Error::new(ErrorKind::Unreadable, UNREADABLE)),
        probe::Content::Foreign(_) | probe::Content::Formatted(_) => Err(Error::new(
            ErrorKind::NotBlank,
            "the volume was blank a moment ago and is not any more; it was left as it is",
        )),
    }
}

impl<B: BlockBackend> BlockWorld<'_, B> {
    pub(super) fn read_content(&mut self, mark: &Mark, asset_size: Bytes) -> Result<Content> {
        if let Some(content) = &self.content {
            return Ok(content.clone());
        }
        let content = self.read_content_anew(mark, asset_size)?;
        self.content = Some(content.clone());
        Ok(content)
    }

    fn read_content_anew(&mut self, mark: &Mark, asset_size: Bytes) -> Result<Content> {
        let device = self.device()?;
        // Storage can lose its end while the device in front of it keeps its size.
        let size = device.size()?;
        if size > asset_size {
            return Ok(Content::Truncated { size });
        }
        let hidden = match self.hidden.take() {
            Some(hidden) if hidden.is_identified && mark.state == State::Ready => hidden,
            hidden => match self.identify(mark, size, hidden)? {
                Ok(hidden) => hidden,
                Err(content) => return Ok(content),
            },
        };
        let device = self.device()?;
        let mount = &hidden.mount;
        let geometry = grow::measure(mount.file(), device, mount.filesystem())?;
        if geometry.size > size {
            return Ok(Content::Truncated {
                size: geometry.size,
            });
        }
        self.hidden = Some(hidden);
        Ok(Content::Ours {
            size: geometry.size,
            slack: geometry.slack,
        })
    }

    /// Reads the superblock. Mounts the file system if it is the one that the mark names, else returns what is there.
    fn identify(
        &self,
        mark: &Mark,
        size: Bytes,
        hidden: Option<HiddenMount>,
    ) -> Result<std::result::Result<HiddenMount, Content>> {
        let device = self.device()?;
        let found = match mark.state {
            State::Blank => probe::prove(device, B::PROOF),
            State::Formatting | State::Ready | State::Deleting => probe::quick(device),
        };
        let superblock = match found {
            probe::Content::Blank => return Ok(Err(Content::Blank)),
            probe::Content::Foreign(what) => return Ok(Err(Content::Foreign(what))),
            probe::Content::Unreadable => return Ok(Err(Content::Unreadable)),
            probe::Content::Formatted(superblock) => superblock,
        };
        let ours = Format {
            filesystem: superblock.filesystem,
            uuid: superblock.uuid,
        };
        if mark.state != State::Ready || mark.format != Some(ours) {
            return Ok(Err(Content::Foreign("another file system")));
        }
        if superblock.size > size {
            return Ok(Err(Content::Truncated {
                size: superblock.size,
            }));
        }
        let mount = match hidden {
            Some(hidden) => hidden.mount,
            None => growth::mount_or_mend(device, ours.filesystem, mark, self.lock)?,
        };
        Ok(Ok(HiddenMount {
            mount,
            is_identified: true,
        }))
    }

    pub(super) fn format(&mut self, filesystem: Filesystem) -> Result<()> {
        self.forget();
        let mark = self.stored.mark()?;
        let device = self.device()?;
        let claim = device.claim()?;
        if mark.state == State::Blank {
            expect_blank(&probe::prove(device, B::PROOF))?;
        }
        let uuid = match mark.format {
            // Only an earlier attempt to format this volume has this UUID.
            Some(begun) if mark.state == State::Formatting => {
                let uuid = expect_own(device, begun.uuid)?;
                // mkfs.btrfs before 6.8 refuses a UUID that any device has, even the one to format.
                probe::wipe_ends(device)?;
                uuid
            }
            _ => Uuid::random()?,
        };
        let formatting = Mark {
            state: State::Formatting,
            format: Some(Format { filesystem, uuid }),
            ..mark
        };
        self.stored.set_mark(&formatting)?;
        // mkfs makes an exclusive claim of its own, so this one must be released. Meanwhile only the volume's
        // lock protects the device; the child inherits it.
        drop(claim);
        let thin = self.stored.asset()?.is_some_and(|asset| asset.thin);
        let target = MkfsTarget {
            keep_allocation: !thin,
            proof: B::PROOF,
        };
        // Try to mount before marking the volume ready: the kernel may refuse the new file system, and a ready
        // volume is never formatted again.
        let made = format::mkfs(device, filesystem, uuid, target, self.lock).and_then(|()| {
            Detached::new(device, filesystem).map_err(|refused| {
                refused.advise("nothing is stored in it yet, and the next mount formats it anew")
            })
        });
        let detached = made.map_err(|error| {
            // A missing tool, or one that is still running, has another cause than a full pool.
            let is_full = thin && error.kind() == ErrorKind::Storage && {
                let free = self
                    .stored
                    .backend()
                    .and_then(|it| it.capacity(&Options::default()));
                free.is_ok_and(|free| free < ROOM_FOR_MKFS)
            };
            if is_full { full(&error) } else { error }
        })?;
        self.stored.set_mark(&formatting.with_state(State::Ready))?;
        self.hidden = Some(HiddenMount::unidentified(detached));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_died_is_not_said_to_hold_anything() {
        assert!(expect_blank(&probe::Content::Blank).is_ok());
        let said = |found| expect_blank(&found).unwrap_err();
        let written = said(probe::Content::Foreign("data"));
        assert_eq!(written.kind(), ErrorKind::NotBlank);
        let died = said(probe::Content::Unreadable);
        assert_eq!(died.kind(), ErrorKind::Unreadable);
        assert_eq!(died.to_string(), UNREADABLE);
    }
}
