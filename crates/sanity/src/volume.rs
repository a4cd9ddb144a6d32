//! Where volumes come from: one that exists, commands of the vendor, images of the tester, or the
//! driver's own `provision`.

use crate::{
    callout::argument::{self, Options},
    config::Hooks,
    system::{self, command},
};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// How volumes are had.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Source {
    /// There is this one.
    Existing,
    /// The vendor's commands make and remove them.
    Hooks,
    /// The tester makes images, and options that have `{image}` or `{device}` name them.
    Images,
    /// The driver has `provision` and `delete`.
    Callouts,
    /// Nothing was given.
    None,
}

impl Source {
    /// What the configuration says; [`Source::None`] if only the driver can tell.
    pub fn of(options: &Options, hooks: &Hooks) -> Self {
        let template = |text: &String| text.contains("{image}") || text.contains("{device}");
        if !hooks.create.is_empty() {
            Source::Hooks
        } else if options.values().any(template) {
            Source::Images
        } else if !options.is_empty() {
            Source::Existing
        } else {
            Source::None
        }
    }

    /// Whether every check can have volumes of its own.
    pub fn is_fresh(&self) -> bool {
        matches!(self, Source::Hooks | Source::Images | Source::Callouts)
    }
}

/// A release of Kubernetes, for what it puts into arguments.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Release {
    /// Neither the volume's name nor the pod, and the old key of fsGroup.
    V1_6,
    /// The old key of fsGroup; growth on the node's directory.
    V1_13,
    /// The new key of fsGroup; growth on the pod's directory.
    V1_25,
}

/// A volume as Kubernetes knows it.
#[derive(Clone, Debug)]
pub struct Volume {
    pub name: String,
    pub options: Options,
    pub bytes: u64,
    pub fs_type: String,
    /// The file or device with its bytes, if the tester may touch them.
    pub content: Option<PathBuf>,
    pub release: Release,
    /// The loop device of an image, which is there as long as somebody has it open.
    #[expect(dead_code, reason = "it is only kept open")]
    pub device: Option<Arc<File>>,
}

impl Volume {
    /// The JSON argument of every callout but `mount`.
    pub fn json(&self, mode: &str) -> String {
        argument::object(&self.members(mode))
    }

    pub fn members(&self, mode: &str) -> Options {
        let mut members = self.options.clone();
        members.insert(argument::FS_TYPE.to_owned(), self.fs_type.clone());
        members.insert(argument::READ_WRITE.to_owned(), mode.to_owned());
        if self.release > Release::V1_6 {
            members.insert(argument::NAME.to_owned(), self.name.clone());
        }
        members
    }

    /// What `mount` gets besides: the pod, and since when Kubernetes tells of it.
    pub fn mount_members(&self, mode: &str, uid: &str) -> Options {
        let mut members = self.members(mode);
        if self.release > Release::V1_6 {
            for (key, value) in [
                ("kubernetes.io/pod.name", "sanity"),
                (argument::NAMESPACE, "default"),
                ("kubernetes.io/pod.uid", uid),
                ("kubernetes.io/serviceAccount.name", "default"),
            ] {
                members.insert(key.to_owned(), value.to_owned());
            }
        }
        members
    }

    /// What a kubelet that restarted knows of it (`ConstructVolumeSpec` in plugin.go).
    pub fn reconstructed(&self) -> String {
        let members = [
            (argument::NAME, self.name.as_str()),
            (argument::FS_TYPE, ""),
            (argument::READ_WRITE, "rw"),
        ];
        argument::object(
            &members
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        )
    }

    /// The same volume in the arguments of another release.
    pub fn seen_by(&self, release: Release) -> Self {
        Volume {
            release,
            ..self.clone()
        }
    }
}

/// A sparse image, and options that name it or its loop device.
pub fn image(directory: &Path, name: &str, bytes: u64, template: &Options) -> Result<Imaged> {
    system::make_directory(directory).context("make a directory for images")?;
    let image = directory.join(format!("{name}.img"));
    let file = File::create_new(&image).with_context(|| format!("make {}", image.display()))?;
    file.set_len(bytes).context("size an image")?;
    let wants_device = template.values().any(|text| text.contains("{device}"));
    let device = wants_device.then(|| loop_device(&image)).transpose()?;
    let (path, held) = device.unzip();
    let fill = |text: &String| {
        let device = path.as_deref().unwrap_or(Path::new(""));
        text.replace("{image}", &image.to_string_lossy())
            .replace("{device}", &device.to_string_lossy())
            .replace("{name}", name)
    };
    let options = template.iter().map(|(key, text)| (key.clone(), fill(text)));
    Ok(Imaged {
        options: options.collect(),
        // The device caches what was read from it.
        content: path.clone().unwrap_or_else(|| image.clone()),
        device: held,
    })
}

/// What [`image`] made.
#[derive(Debug)]
pub struct Imaged {
    pub options: Options,
    /// The device, or the image if there is none.
    pub content: PathBuf,
    pub device: Option<File>,
}

/// A loop device that goes as soon as the returned descriptor and everybody else's are closed, so
/// that a killed run leaves none.
fn loop_device(image: &Path) -> Result<(PathBuf, File)> {
    let arguments = ["--find".as_ref(), "--show".as_ref(), image.as_os_str()];
    let device = PathBuf::from(command::tool("losetup", &arguments)?.trim_end());
    let held = File::open(&device).with_context(|| format!("open {}", device.display()))?;
    let found = held.metadata().context("look at a loop device")?;
    ensure!(
        found.file_type().is_block_device(),
        "losetup named no device"
    );
    // While somebody has it open the kernel only marks it to be cleared.
    let words = ["--detach".as_ref(), device.as_os_str()];
    command::tool("losetup", &words)?;
    Ok((device, held))
}

/// Fills `{KEY}`, `{KEY:sha256:DIGITS}` and `{name}` of the path of a volume's content.
///
/// # Errors
/// When a value would lead elsewhere than where the template says: it may be the driver's own. Only a
/// vendor's command may tell the whole path.
pub fn content(template: &str, name: &str, options: &Options, source: &Source) -> Result<PathBuf> {
    let mut path = template.replace("{name}", name);
    for (key, value) in options {
        path = hashed(&path, key, value)?;
        let place = format!("{{{key}}}");
        if !path.contains(&place) {
            continue;
        }
        let whole = template == place && *source == Source::Hooks && Path::new(value).is_absolute();
        let part = !value.is_empty() && !value.contains('/') && value != ".." && value != ".";
        ensure!(
            whole || part,
            "option {key} of a volume leads out of the content's place {template}"
        );
        path = path.replace(&place, value);
    }
    ensure!(
        Path::new(&path).is_absolute() && !path.split('/').any(|part| part == ".."),
        "content {template:?} must be an absolute path without .."
    );
    Ok(path.into())
}

/// Fills `{KEY:sha256:DIGITS}`: drivers may call their files by what tells nobody the option.
fn hashed(path: &str, key: &str, value: &str) -> Result<String> {
    let place = format!("{{{key}:sha256:");
    let Some((before, after)) = path.split_once(&place) else {
        return Ok(path.to_owned());
    };
    let digits = after.split_once('}').and_then(|(digits, rest)| {
        let digits = digits.parse().ok().filter(|digits| *digits > 0)?;
        Some((digits, rest))
    });
    let (digits, rest) = digits.with_context(|| format!("{place} has no number of digits"))?;
    let digest: String = Sha256::digest(value)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let digest = digest.get(..digits).unwrap_or(&digest);
    Ok(format!("{before}{digest}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_may_be_called_by_an_options_digest() {
        let options = [("key".to_owned(), "abc".to_owned())].into();
        let content = |template| content(template, "name", &options, &Source::Callouts);
        // FIPS 180-4.
        let found = content("/pool/v-{key:sha256:8}.img").unwrap();
        assert_eq!(found, Path::new("/pool/v-ba7816bf.img"));
        for wrong in ["/{key:sha256:}", "/{key:sha256:0}", "/{key:sha256:8"] {
            assert!(content(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_option_leads_the_tester_out_of_the_contents_place() {
        let content = |template: &str, value: &str, source| {
            let options = [("key".to_owned(), value.to_owned())].into();
            content(template, "name", &options, &source)
        };
        let found = content("/pool/{name}/{key}", "value", Source::Callouts).unwrap();
        assert_eq!(found, Path::new("/pool/name/value"));
        for value in ["../../dev/sda", "..", "a/b", "/dev/sda", ""] {
            assert!(content("/pool/{key}", value, Source::Callouts).is_err());
            assert!(content("/pool/{key}", value, Source::Hooks).is_err());
        }
        assert!(content("{key}", "/dev/sda", Source::Callouts).is_err());
        let found = content("{key}", "/dev/vg/one", Source::Hooks).unwrap();
        assert_eq!(found, Path::new("/dev/vg/one"));
    }
}
