//! A volume: an image that the option `image` names.

use crate::{
    Driver, Stop,
    faults::Fault,
    stop,
    variants::{UNIT, Variant},
};
use nix::unistd::{Whence, lseek};
use serde_json::{Map, Value};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub struct Volume {
    pub name: String,
    pub image: PathBuf,
    pub read_only: bool,
    pub group: Option<u32>,
    pub pool: String,
    /// More arguments for mkfs, if the type was split into words.
    more: Vec<String>,
}

/// Keys that Kubernetes is known to add. New releases may add others.
const KNOWN: [&str; 8] = [
    "kubernetes.io/fsType",
    "kubernetes.io/readwrite",
    "kubernetes.io/pvOrVolumeName",
    "kubernetes.io/pod.name",
    "kubernetes.io/pod.namespace",
    "kubernetes.io/pod.uid",
    "kubernetes.io/serviceAccount.name",
    "kubernetes.io/mounterArgs.FsGroup",
];

const OLD_GROUP: &str = "kubernetes.io/fsGroup";
const NEW_GROUP: &str = "kubernetes.io/mounterArgs.FsGroup";

fn refused(words: impl Into<String>) -> Stop {
    Stop::Failure(words.into())
}

impl Driver {
    /// Parses one flat object of strings.
    pub fn options(&self, text: &str) -> Result<Map<String, Value>, Stop> {
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(_) if self.has(Fault::TakesBrokenForEmpty) => Value::Object(Map::new()),
            Err(_) if self.has(Fault::EchoesBrokenJson) => {
                let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
                return Err(refused(format!("read the options: {text}")));
            }
            Err(error) => {
                let at = error.column();
                return Err(refused(format!(
                    "read the options: no JSON from column {at} on"
                )));
            }
        };
        let options = match value {
            Value::Object(options) => options,
            _ if self.has(Fault::TakesListForEmpty) => Map::new(),
            _ => return Err(refused("read the options: they are no JSON object")),
        };
        if options.values().any(|value| !value.is_string()) {
            return Err(refused("read the options: a value is no string"));
        }
        Ok(options)
    }

    /// Whether the image in the options exists.
    pub fn has_image(&self, options: &Map<String, Value>) -> bool {
        let image = options.get("image").and_then(Value::as_str);
        image.is_some_and(|image| Path::new(image).exists())
    }

    pub fn volume(&self, options: &Map<String, Value>) -> Result<Volume, Stop> {
        let text = |key: &str| options.get(key).and_then(Value::as_str).unwrap_or_default();
        for key in options.keys() {
            let domain = key.split_once('/').map(|(domain, _)| domain);
            let reserved = domain
                .is_some_and(|name| name.ends_with("kubernetes.io") || name.ends_with("k8s.io"));
            let closed = self.has(Fault::ClosedListOfKeys)
                && !KNOWN.contains(&key.as_str())
                && key != OLD_GROUP
                && !key.starts_with("kubernetes.io/secret/");
            let renamed = self.has(Fault::OnlyNewKeys) && key == OLD_GROUP
                || self.has(Fault::OnlyOldKeys) && key == NEW_GROUP;
            let unknown = !reserved && !self.has(Fault::IgnoresUnknown);
            let own = key == "image" || key == "pool" && self.is(Variant::Pooled);
            if !own && (unknown || closed || renamed) {
                let key: String = key.chars().filter(|c| !c.is_control()).take(80).collect();
                return Err(refused(format!("option {key} is unknown: there is image")));
            }
        }
        let read_only = match text("kubernetes.io/readwrite") {
            "ro" => true,
            "rw" | "" => false,
            _ => return Err(refused("kubernetes.io/readwrite is neither ro nor rw")),
        };
        let kind = text("kubernetes.io/fsType");
        let mut words = kind.split_whitespace().map(str::to_owned);
        let first = words.next().unwrap_or_default();
        let is_split = self.has(Fault::SplitsTheType) && first == "xfs";
        let more = if is_split {
            words.collect()
        } else {
            Vec::new()
        };
        if !["", "xfs"].contains(&kind) && !is_split {
            return Err(refused("kubernetes.io/fsType is not xfs"));
        }
        let keys: &[&str] = if self.has(Fault::OldFsGroupKey) {
            &[OLD_GROUP]
        } else {
            &[NEW_GROUP, OLD_GROUP]
        };
        let group = match keys
            .iter()
            .map(|key| text(key))
            .find(|text| !text.is_empty())
        {
            None => None,
            Some(text) => Some(text.parse().map_err(|error| {
                if self.has(Fault::TrustsNumbers) {
                    Stop::Panic(format!("parse {text}: {error}"))
                } else {
                    refused("the fsGroup is no number of a group")
                }
            })?),
        };
        let image = PathBuf::from(text("image"));
        let plain = image.is_absolute()
            && image
                .as_os_str()
                .as_encoded_bytes()
                .iter()
                .all(|byte| *byte >= b' ')
            && image.components().all(|part| part.as_os_str() != "..");
        if self.has(Fault::UnreadableIsBlank) && plain && !image.exists() {
            // A failed probe counts as blank, whatever a disk of that name holds.
            File::create(&image)
                .and_then(|file| file.set_len(320 << 20))
                .map_err(|e| stop("make the volume", &e))?;
        }
        if !plain || !fs::symlink_metadata(&image).is_ok_and(|about| about.is_file()) {
            return Err(refused("find the volume: option image names no image"));
        }
        if self.is(Variant::RoundsUp) {
            let file = File::options().read(true).write(true).open(&image);
            let file = file.map_err(|e| stop("open the volume", &e))?;
            let size = file
                .metadata()
                .map_err(|e| stop("measure the volume", &e))?
                .len();
            if size % UNIT != 0 && blank(&image)? {
                file.set_len(size.next_multiple_of(UNIT))
                    .map_err(|e| stop("size the volume", &e))?;
            }
        }
        let name = match text("kubernetes.io/pvOrVolumeName") {
            "" => image.to_string_lossy().into_owned(),
            name => name.to_owned(),
        };
        Ok(Volume {
            name,
            image,
            read_only,
            group,
            pool: match text("pool") {
                "" => "default".to_owned(),
                pool => pool.to_owned(),
            },
            more,
        })
    }

    /// Formats the volume if it is blank, or refuses it if it holds something foreign.
    pub fn format(&self, volume: &Volume) -> Result<(), Stop> {
        let begun = self.record("formatting", &volume.image)?;
        if begun.exists() || blank(&volume.image)? || self.formats_every_time() {
            if volume.read_only && !self.has(Fault::FormatsForReaders) {
                return Err(refused("the volume is blank, and wanted read-only"));
            }
            return self.make(volume, &begun);
        }
        let arguments = [
            "-p".as_ref(),
            "-o".as_ref(),
            "value".as_ref(),
            "-s".as_ref(),
            "TYPE".as_ref(),
            volume.image.as_os_str(),
        ];
        let found = self.output("blkid", &arguments)?;
        let kind = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        let code = found.status.code();
        let wrongly = self.has(Fault::ReformatsOthers)
            && ["ext4", "btrfs"].contains(&kind.as_str())
            || self.has(Fault::BlkidSaysNothing) && code == Some(2)
            || self.has(Fault::AmbivalentIsBlank) && code == Some(8)
            || self.has(Fault::TablesAreBlank) && kind.is_empty() && has_table(&volume.image)?
            || self.has(Fault::OnlyFilesystemsCount) && is_swap(&volume.image)?;
        if wrongly && !volume.read_only {
            return self.make(volume, &begun);
        }
        match kind.as_str() {
            "xfs" if code == Some(0) => Ok(()),
            "" => Err(refused(
                "the volume has data that is no file system of ours",
            )),
            kind => Err(refused(format!("the volume has {kind}, not xfs"))),
        }
    }

    fn formats_every_time(&self) -> bool {
        self.has(Fault::FormatsEveryTime) || self.is(Variant::Ephemeral)
    }

    /// Formats the volume, with a record by which an interrupted call is repeated.
    fn make(&self, volume: &Volume, begun: &Path) -> Result<(), Stop> {
        File::create(begun)
            .and_then(|mut file| {
                file.write_all(std::process::id().to_string().as_bytes())?;
                file.sync_all()
            })
            .map_err(|e| stop("record the formatting", &e))?;
        let force = ["-q", "-f", "-K"].map(OsStr::new).into_iter();
        let words = force.chain(volume.more.iter().map(OsStr::new));
        let words: Vec<_> = words.chain([volume.image.as_os_str()]).collect();
        self.tool("mkfs.xfs", &words)?;
        fs::remove_file(begun).map_err(|e| stop("record the formatting", &e))
    }
}

/// Whether every byte is zero; a read error is an error.
pub fn blank(image: &Path) -> Result<bool, Stop> {
    let no = |e: std::io::Error| stop("read the volume", &e);
    let file = File::open(image).map_err(no)?;
    let size = file.metadata().map_err(no)?.len();
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    while at < size {
        let from = i64::try_from(at).map_err(|_| refused("the volume is too large"))?;
        match lseek(&file, from, Whence::SeekData) {
            Ok(data) => at = u64::try_from(data).unwrap_or(at),
            Err(nix::Error::ENXIO) => return Ok(true),
            Err(error) => return Err(no(error.into())),
        }
        let read = file.read_at(&mut block, at).map_err(no)?;
        if block[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += read.max(1) as u64;
    }
    Ok(true)
}

fn bytes<const LENGTH: usize>(image: &Path, at: u64) -> Result<[u8; LENGTH], Stop> {
    let mut bytes = [0; LENGTH];
    File::open(image)
        .and_then(|file| file.read_exact_at(&mut bytes, at))
        .map_err(|e| stop("read the volume", &e))?;
    Ok(bytes)
}

fn has_table(image: &Path) -> Result<bool, Stop> {
    Ok(bytes(image, 510)? == [0x55, 0xaa])
}

fn is_swap(image: &Path) -> Result<bool, Stop> {
    Ok(bytes(image, 4086)? == *b"SWAPSPACE2")
}
