//! `provision`, `delete` and `capacity`: images in a directory of the driver's, each with a record of its name.

use crate::{
    Answer, Driver, Stop,
    faults::Fault,
    mount::{dawdle, failure},
    stop,
    variants::{UNIT, Variant},
};
use serde_json::{Map, Value, json};
use std::{
    ffi::OsStr,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// How much the volumes may have together.
const ROOM: u64 = 256 << 30;

/// A volume that was provisioned.
struct Known {
    name: String,
    image: PathBuf,
    size: u64,
}

impl Known {
    fn read(record: &Path) -> Option<Self> {
        let value: Value = serde_json::from_str(&fs::read_to_string(record).ok()?).ok()?;
        Some(Known {
            name: value["name"].as_str()?.to_owned(),
            image: value["image"].as_str()?.into(),
            size: value["size"].as_u64()?,
        })
    }

    fn write(&self, record: &Path) -> Result<(), Stop> {
        let text = json!({ "name": self.name, "image": self.image, "size": self.size });
        let new = record.with_extension("new");
        fs::write(&new, text.to_string())
            .and_then(|()| fs::rename(&new, record))
            .map_err(|e| stop("record the volume's name", &e))
    }

    /// Makes the image. An interrupted call's is replaced.
    fn make(&self, size: u64) -> Result<(), Stop> {
        let new = self.image.with_extension("new");
        File::create(&new)
            .and_then(|file| file.set_len(size))
            .and_then(|()| fs::rename(&new, &self.image))
            .map_err(|e| stop("make the volume", &e))
    }
}

fn text<'a>(options: &'a Map<String, Value>, key: &str) -> &'a str {
    options.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Driver {
    /// The directory of the volumes, without links, as the kernel names the files of loop devices.
    fn volumes(&self) -> Result<PathBuf, Stop> {
        let directory = self.state.join("volumes");
        fs::create_dir_all(&directory)
            .and_then(|()| fs::canonicalize(&directory))
            .map_err(|e| stop("open the directory of volumes", &e))
    }

    /// The sizes of all volumes together.
    fn used(&self) -> Result<u64, Stop> {
        let no = |e: std::io::Error| stop("measure the volumes", &e);
        let entries = fs::read_dir(self.volumes()?).map_err(no)?;
        let sizes = entries.map(|entry| Ok(entry?.metadata()?.len()));
        sizes.sum::<std::io::Result<u64>>().map_err(no)
    }

    fn expect_known_keys(&self, options: &Map<String, Value>, own: &[&str]) -> Result<(), Stop> {
        let pool = self.is(Variant::Pooled).then_some("pool");
        let unknown = options.keys().find(|key| {
            !key.starts_with("kubernetes.io/") && !own.contains(&key.as_str()) && pool != Some(key)
        });
        match unknown {
            Some(_) if self.has(Fault::IgnoresParameters) => Ok(()),
            Some(key) => failure(&format!("parameter {key:.40?} is unknown")),
            None => Ok(()),
        }
    }

    pub fn provision(&self, options: &str) -> Answer {
        let options = self.options(options)?;
        let path = text(&options, "path");
        if self.has(Fault::ProvisionsAnyDirectory) && Path::new(path).is_dir() {
            return Ok(json!({ "options": { "image": path } }));
        }
        self.expect_known_keys(&options, &["requestBytes", "requestMiB", "requestGiB"])?;
        let name = text(&options, "kubernetes.io/pvOrVolumeName");
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (name.is_empty() || !name.chars().all(is_plain)) && !self.has(Fault::JoinsTheName) {
            return failure("the volume's name is not of a-z, 0-9 and -");
        }
        let kind = text(&options, "kubernetes.io/fsType");
        if !["", "xfs"].contains(&kind) && !self.has(Fault::NamesWithTheType) {
            return failure("kubernetes.io/fsType is not xfs");
        }
        let asked = text(&options, "requestBytes").parse::<i64>();
        let size = match asked.ok().and_then(|size| u64::try_from(size).ok()) {
            Some(size @ 1..) => size,
            _ if self.has(Fault::TakesAnySize) => 320 << 20,
            _ => return failure("requestBytes is no size"),
        };
        let size = if self.has(Fault::RoundsSizesDown) {
            size - size % (1 << 20)
        } else if self.is(Variant::RoundsUp) {
            size.next_multiple_of(UNIT)
        } else {
            // A loop device has whole sectors.
            size.checked_next_multiple_of(4096).unwrap_or(size)
        };
        let key = if self.has(Fault::CutsNames) {
            name.chars().take(32).collect()
        } else if self.has(Fault::NamesWithTheType) {
            format!("{name} {kind}")
        } else {
            name.to_owned()
        };
        let known = self.bind(name, &key, size)?;
        let mut members = json!({ "image": known.image });
        if self.has(Fault::AnswersTheType) {
            members["kubernetes.io/fsType"] = "xfs".into();
        } else if self.has(Fault::AnswersNumbers) {
            members["bytes"] = known.size.into();
        } else if self.has(Fault::AnswersTooLittle) {
            members = json!({});
        }
        let told = if self.has(Fault::TellsOneByte) {
            1
        } else {
            known.size
        };
        let handle = known.image.file_name().map(OsStr::to_string_lossy);
        Ok(json!({
            "volumeName": handle, "options": members, "capacity": told, "fsType": "xfs",
        }))
    }

    /// Finds the volume of a name, or makes it.
    fn bind(&self, name: &str, key: &str, size: u64) -> Result<Known, Stop> {
        let record = self.record("name", Path::new(key))?;
        let _lock = match self.has(Fault::LooksForTheName) {
            true => None,
            false => Some(self.lock(Path::new("provision"))?),
        };
        let known = Known::read(&record).filter(|_| !self.has(Fault::ProvisionsAnew));
        if let Some(known) = &known {
            let is_made = known.image.exists()
                || self.has(Fault::RecordsTheName)
                || self.has(Fault::KeepsTheName);
            if !is_made && self.has(Fault::KeepsAFailedName) {
                return failure("the volume exists with another size");
            }
            if is_made && size != known.size && self.has(Fault::MakesAnotherSizeAnew) {
                fs::remove_file(&known.image).map_err(|e| stop("remove the volume", &e))?;
            } else if is_made && size > known.size && !self.has(Fault::AnswersTheSizeAsked) {
                return failure("the volume exists and has less");
            } else if is_made {
                let told = match self.has(Fault::AnswersTheSizeAsked) {
                    true => size,
                    false => known.size,
                };
                return Ok(Known {
                    name: name.to_owned(),
                    image: known.image.clone(),
                    size: told,
                });
            }
        } else if self.has(Fault::LooksForTheName) {
            dawdle();
        }
        let image = match known {
            Some(known) => known.image,
            None if self.has(Fault::JoinsTheName) => self.volumes()?.join(name),
            None => self.volumes()?.join(handle(name)),
        };
        let new = Known {
            name: name.to_owned(),
            image,
            size,
        };
        let room = ROOM.saturating_sub(self.used()?);
        if size > room && !self.has(Fault::PromisesAnything) {
            if self.has(Fault::KeepsAFailedName) {
                new.write(&record)?;
            }
            return failure("there is no room for such a volume");
        }
        new.write(&record)?;
        if self.has(Fault::RecordsTheName) {
            dawdle();
        }
        new.make(match self.has(Fault::MakesLess) {
            true => size.saturating_sub(16 << 20),
            false => size.min(room),
        })?;
        Ok(new)
    }

    pub fn delete(&self, options: &str) -> Answer {
        let options = self.options(options)?;
        self.expect_known_keys(&options, &["image"])?;
        let image = Path::new(text(&options, "image"));
        if self.has(Fault::RemovesAnyPath) && image.is_file() {
            fs::remove_file(image).map_err(|e| stop("remove the volume", &e))?;
        }
        let _lock = self.lock(Path::new("provision"))?;
        let name = text(&options, "kubernetes.io/pvOrVolumeName");
        let found = if image.as_os_str().is_empty() {
            if self.has(Fault::DeletesByOptions) {
                return Ok(json!({}));
            }
            let record = self.record("name", Path::new(name))?;
            Known::read(&record).map(|known| (record, known))
        } else {
            let is_own = image.parent() == Some(self.volumes()?.as_path());
            if !is_own && image.exists() {
                return failure("option image names no volume of this driver");
            }
            let mut all = self.all_known()?;
            all.retain(|(_, known)| known.image == image);
            all.pop()
        };
        let deleted = self.record("deleted", Path::new(name))?;
        let Some((record, known)) = found else {
            return match deleted.exists() {
                true if self.has(Fault::DeletesOnce) => failure("there is no such volume any more"),
                false if self.has(Fault::DeletesTheKnown) => failure("there is no such volume"),
                _ => Ok(json!({})),
            };
        };
        self.expect_unused(&known.image)?;
        if self.has(Fault::DeletesNothing) {
            return Ok(json!({}));
        }
        let mut all = vec![(record, known)];
        if self.has(Fault::DeletesWhatBeginsAlike) {
            let name = all[0].1.name.clone();
            all.extend(self.all_known()?);
            all.retain(|(_, known)| known.name.starts_with(&name));
        }
        for (record, known) in all {
            // An interrupted call may have removed the image, or have made none.
            let _ = fs::remove_file(&known.image);
            if !self.has(Fault::KeepsTheName) {
                let _ = fs::remove_file(record);
            }
        }
        File::create(deleted).map_err(|e| stop("keep a record", &e))?;
        Ok(json!({}))
    }

    fn expect_unused(&self, image: &Path) -> Result<(), Stop> {
        let mut mounts = self.mounts()?;
        mounts.retain(|mount| mount.image().as_deref() == Some(image));
        if self.has(Fault::DeletesWhatIsMounted) {
            return Ok(());
        }
        if self.has(Fault::UnmountsToDelete) {
            for mount in &mounts {
                self.tool("umount", &["--lazy".as_ref(), mount.point.as_os_str()])?;
            }
            return Ok(());
        }
        match mounts.is_empty() {
            true => self.until_let_go(image),
            false => failure("the volume is mounted"),
        }
    }

    /// All volumes, with their records.
    fn all_known(&self) -> Result<Vec<(PathBuf, Known)>, Stop> {
        let beside = self.record("name", Path::new(""))?;
        let entries = fs::read_dir(beside.parent().unwrap_or(&beside));
        let entries = entries.map_err(|e| stop("list the volumes", &e))?;
        let records = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let known = records.filter_map(|record| Some((record.clone(), Known::read(&record)?)));
        Ok(known.collect())
    }

    pub fn capacity(&self, options: &str) -> Answer {
        self.expect_known_keys(&self.options(options)?, &[])?;
        let used = self.used()?;
        let free = ROOM.saturating_sub(used);
        let largest = if self.has(Fault::TellsEndlessRoom) {
            u64::MAX
        } else if self.has(Fault::CountsInMebibytes) {
            free >> 20
        } else if self.has(Fault::TellsAConstant) || self.is(Variant::Thin) {
            ROOM
        } else {
            free
        };
        if self.has(Fault::FreesMoreThanThereIs) {
            return Ok(
                json!({ "capacity": largest, "poolSpace": { "size": free, "free": ROOM + 1 } }),
            );
        }
        if self.is(Variant::Thin) {
            let pool = json!({ "pool": "default", "size": ROOM, "promised": used });
            return Ok(json!({ "capacity": largest, "poolSpace": pool }));
        }
        Ok(json!({ "capacity": largest }))
    }
}

/// A name for the image that no other volume has had.
fn handle(name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (name, SystemTime::now(), std::process::id()).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
