//! Volume metadata, stored with the volume as an extended attribute or an LVM tag.
//!
//! A mark travels with the volume (an extended attribute of an image, a tag of a logical volume) and changes
//! atomically with it, so there is no database that could disagree. Its text is one line of `key=value` fields
//! separated by colons, in the characters that LVM allows in a tag:
//!
//! ```text
//! flexvol=1:handle=0011…ff:pool=8899…77:state=ready:name=pv1:namespace=default:fs=xfs:uuid=…:growing=1073741824
//! ```
//!
//! The mark contains the handle, so it is stored where only root can read, or with the handle sealed.

mod origin;

pub use origin::Origin;

use crate::retention::{CountedTime, Deletion};
use flexvol_host::{PoolId, Uuid, VolumeId, clock::UnixTime};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Handle, Result, VolumeName};
use std::{fmt, time::Duration};

/// The version to write. Older versions stay readable for ever; newer ones are refused.
pub const VERSION: &str = "1";

/// How far a volume has come. States only advance in this order, and never back from `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Storage is allocated, and nobody has written to it.
    Blank,
    /// Formatting was begun; any content is the driver's own and may be overwritten.
    Formatting,
    /// The volume holds a file system, perhaps with data, and is never formatted again; or it is a directory,
    /// which is ready from the beginning.
    Ready,
    /// Removal was begun and must be finished.
    Deleting,
}

impl State {
    const ALL: [State; 4] = [
        State::Blank,
        State::Formatting,
        State::Ready,
        State::Deleting,
    ];

    /// Returns the word in the mark, which `flexvol list` also shows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Blank => "blank",
            State::Formatting => "formatting",
            State::Ready => "ready",
            State::Deleting => "deleting",
        }
    }
}

/// A volume's mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The volume's handle; a copy of the volume under another handle is refused.
    pub handle: Handle,
    /// The pool in which it was made; a copy in another pool is refused.
    pub pool: PoolId,
    /// How far the volume has come.
    pub state: State,
    /// The persistent volume it was provisioned for.
    pub name: Option<VolumeName>,
    /// The namespace of its claim. Without one, only pools that are open to all namespaces mount it.
    pub namespace: Option<String>,
    /// The file system for which it was made, until it has one; `None` leaves the choice to the first mount.
    pub asked: Option<Filesystem>,
    /// The file system, chosen when formatting began; a directory has none of its own.
    pub format: Option<Format>,
    /// The origin of an adopted volume.
    pub adopted: Option<Origin>,
    /// The target size of a growth that was begun and may be incomplete.
    pub growing: Option<Bytes>,
    /// Whether `e2fsck` and `resize2fs` were started for that growth, after a check found no errors.
    pub resizing: bool,
    /// The deletion, if the volume was deleted and is kept.
    pub deleted: Option<Deletion>,
}

/// The file system of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// The type of the file system.
    pub filesystem: Filesystem,
    /// Its UUID, chosen by the driver: a mounted file system must have it.
    pub uuid: Uuid,
}

impl Mark {
    /// Makes the mark of a volume that was just allocated.
    #[must_use]
    pub fn blank(
        handle: Handle,
        pool: PoolId,
        name: Option<VolumeName>,
        namespace: Option<String>,
    ) -> Mark {
        Mark {
            handle,
            pool,
            state: State::Blank,
            name,
            namespace,
            asked: None,
            format: None,
            adopted: None,
            growing: None,
            resizing: false,
            deleted: None,
        }
    }

    /// Whether this is the mark of this volume in this pool. A copy has the mark of its original.
    #[must_use]
    pub fn is_of(&self, volume: &VolumeId, pool: PoolId) -> bool {
        VolumeId::of(&self.handle) == *volume && self.pool == pool
    }

    /// Returns the mark in another state. In `Deleting` it keeps only what identifies the volume, so that it
    /// never needs more space than before: the pool may have none.
    #[must_use]
    pub fn with_state(&self, state: State) -> Mark {
        let is_deleting = state == State::Deleting;
        Mark {
            state,
            asked: self.asked.filter(|_| state < State::Ready),
            format: self.format.filter(|_| !is_deleting),
            growing: self.growing.filter(|_| !is_deleting),
            resizing: self.resizing && !is_deleting,
            deleted: self.deleted.filter(|_| !is_deleting),
            ..self.clone()
        }
    }

    /// Returns the mark with a growth to this size begun, or ended.
    #[must_use]
    pub fn with_growing(&self, growing: Option<Bytes>) -> Mark {
        Mark {
            growing,
            resizing: self.resizing && growing.is_some(),
            ..self.clone()
        }
    }

    /// Returns the mark with a growth to this size begun, and its tools started.
    #[must_use]
    pub fn with_resizing(&self, to: Bytes) -> Mark {
        Mark {
            growing: Some(self.growing.unwrap_or(to)),
            resizing: true,
            ..self.clone()
        }
    }

    /// Returns the mark as deleted, or not deleted.
    #[must_use]
    pub fn with_deleted(&self, deleted: Option<Deletion>) -> Mark {
        Mark {
            deleted,
            ..self.clone()
        }
    }

    /// Returns the file system that the volume holds, or for which it was made.
    #[must_use]
    pub fn filesystem(&self) -> Option<Filesystem> {
        let has = self.format.map(|format| format.filesystem);
        self.asked.or(has)
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] for a newer version and for text that is no mark. An unreadable mark is never
    /// taken for a missing one.
    pub fn decode(text: &str) -> Result<Mark> {
        let mut fields = text.split(':').map(|field| field.split_once('='));
        match fields.next() {
            Some(Some(("flexvol", VERSION))) => {}
            Some(Some(("flexvol", version))) => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "the volume was marked by a newer flexvol (mark version {version:?}, known is {VERSION}); upgrade the driver on this node"
                    ),
                ));
            }
            _ => return Err(unreadable("it does not begin with flexvol=")),
        }
        let (mut handle, mut pool, mut state) = (None, None, None);
        let (mut name, mut namespace, mut growing, mut resizing) = (None, None, None, None);
        let (mut asked, mut filesystem, mut uuid) = (None, None, None);
        let mut adopted = None;
        let (mut deleted, mut keep, mut kept) = (None, None, None);
        for field in fields {
            let (key, value) = field.ok_or_else(|| unreadable("a field has no value"))?;
            let twice = match key {
                "handle" => handle.replace(Handle::parse(value)?).is_some(),
                "pool" => pool.replace(PoolId::parse(value)?).is_some(),
                "state" => state
                    .replace(
                        State::ALL
                            .into_iter()
                            .find(|state| state.as_str() == value)
                            .ok_or_else(|| unreadable("an unknown state"))?,
                    )
                    .is_some(),
                "name" => name.replace(VolumeName::parse(value)?).is_some(),
                "namespace" => namespace.replace(namespace_of(value)?).is_some(),
                "asked" => asked.replace(value.parse()?).is_some(),
                "fs" => filesystem.replace(value.parse()?).is_some(),
                "uuid" => uuid.replace(Uuid::parse(value)?).is_some(),
                "adopted" => adopted.replace(Origin::parse(value)?).is_some(),
                "growing" => growing.replace(Bytes(number(value)?)).is_some(),
                "resizing" if value == "1" => resizing.replace(()).is_some(),
                "deleted" => deleted.replace(UnixTime(number(value)?)).is_some(),
                "keep" => keep.replace(Duration::from_secs(number(value)?)).is_some(),
                "kept" => kept
                    .replace(
                        CountedTime::decode(value)
                            .ok_or_else(|| unreadable("an odd time of keeping"))?,
                    )
                    .is_some(),
                _ => return Err(unreadable("an unknown field")),
            };
            if twice {
                return Err(unreadable("a field is duplicated"));
            }
        }
        let format = match (filesystem, uuid) {
            (Some(filesystem), Some(uuid)) => Some(Format { filesystem, uuid }),
            (None, None) => None,
            _ => return Err(unreadable("a file system without its UUID")),
        };
        let deleted = match deleted {
            Some(at) => Some(Deletion { at, keep, kept }),
            None if keep.is_none() && kept.is_none() => None,
            None => return Err(unreadable("kept, and not deleted")),
        };
        if resizing.is_some() && growing.is_none() {
            return Err(unreadable("resized, and not growing"));
        }
        let state = state.ok_or_else(|| unreadable("no state"))?;
        // A directory volume is ready without a file system of its own.
        if state == State::Formatting && format.is_none() {
            return Err(unreadable("being formatted, with no file system"));
        }
        Ok(Mark {
            handle: handle.ok_or_else(|| unreadable("no handle"))?,
            pool: pool.ok_or_else(|| unreadable("no pool"))?,
            state,
            name,
            namespace,
            asked,
            format,
            adopted,
            growing,
            resizing: resizing.is_some(),
            deleted,
        })
    }
}

/// Parses a namespace as the API server validates it; stricter is safer, since it is shown on terminals.
fn namespace_of(value: &str) -> Result<String> {
    match VolumeName::parse(value) {
        Ok(name) if !name.cannot_be_inline() => Ok(value.to_owned()),
        _ => Err(unreadable("the namespace is no DNS label")),
    }
}

fn number(value: &str) -> Result<u64> {
    value
        .parse()
        .map_err(|_| unreadable("bytes or seconds that are no number"))
}

fn unreadable(why: &'static str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "cannot read the volume's mark; it is left alone",
    )
    .because(why)
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "flexvol={VERSION}:handle={}:pool={}:state={}",
            self.handle,
            self.pool,
            self.state.as_str()
        )?;
        if let Some(name) = &self.name {
            write!(f, ":name={name}")?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, ":namespace={namespace}")?;
        }
        if let Some(asked) = self.asked {
            write!(f, ":asked={asked}")?;
        }
        if let Some(Format { filesystem, uuid }) = self.format {
            write!(f, ":fs={filesystem}:uuid={uuid}")?;
        }
        if let Some(origin) = self.adopted {
            write!(f, ":adopted={origin}")?;
        }
        if let Some(size) = self.growing {
            write!(f, ":growing={}", size.0)?;
        }
        if self.resizing {
            write!(f, ":resizing=1")?;
        }
        if let Some(deletion) = &self.deleted {
            write!(f, ":deleted={}", deletion.at.0)?;
            if let Some(keep) = deletion.keep {
                write!(f, ":keep={}", keep.as_secs())?;
            }
            if let Some(kept) = &deletion.kept {
                write!(f, ":kept={kept}")?;
            }
        }
        Ok(())
    }
}
