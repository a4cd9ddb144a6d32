//! The bytes of a volume below the driver: where they are, and whether they are blank.

use super::Source;
use crate::callout::argument::Options;
use anyhow::{Context, Result, ensure};
use nix::{
    fcntl::OFlag,
    unistd::{Whence, lseek},
};
use sha2::{Digest, Sha256};
use std::{
    fs::{File, OpenOptions},
    io::{Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Fills in `{KEY}`, `{KEY:sha256:DIGITS}` and `{name}` in the path of a volume's content.
///
/// # Errors
/// When a value would lead outside the template's directory, because it may come from the driver. Only a
/// vendor's command may return a whole path.
pub fn locate(template: &str, name: &str, options: &Options, source: &Source) -> Result<PathBuf> {
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

/// Fills in `{KEY:sha256:DIGITS}`. A driver may name files by a hash to hide the option's value.
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

/// Opens the content for writing: a file, or a device that is not in use.
pub fn open(content: &Path) -> Result<File> {
    let kind = std::fs::metadata(content)
        .with_context(|| format!("look at {}", content.display()))?
        .file_type();
    ensure!(
        kind.is_block_device() || kind.is_file(),
        "{} is neither a file nor a device",
        content.display()
    );
    // On a device O_EXCL fails if it is mounted or claimed by the kernel.
    let alone = if kind.is_block_device() {
        OFlag::O_EXCL
    } else {
        OFlag::O_NOFOLLOW
    };
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(alone.bits())
        .open(content)
        .with_context(|| format!("open {} for itself", content.display()))
}

pub fn open_to_read(content: &Path) -> Result<File> {
    File::open(content).with_context(|| format!("open {}", content.display()))
}

/// Whether the content is blank: all data of a file must be zero, and of a device both ends. The middle of a
/// device may still have data that was deleted long ago.
pub fn is_blank(content: &Path) -> Result<bool> {
    const END: u64 = 1 << 20;
    let mut file = open_to_read(content)?;
    let size = file
        .seek(SeekFrom::End(0))
        .context("measure the volume's content")?;
    let is_file = file.metadata().context("look at the content")?.is_file();
    let mut at = 0;
    let mut block = vec![0; 1 << 16];
    while at < size {
        if is_file {
            let from = i64::try_from(at).context("seek in the volume's content")?;
            match lseek(&file, from, Whence::SeekData) {
                Ok(data) => at = u64::try_from(data).unwrap_or(at),
                Err(nix::Error::ENXIO) => return Ok(true),
                Err(error) => return Err(error).context("seek in the volume's content"),
            }
        } else if at >= END && at < size.saturating_sub(END) {
            at = size - END;
        }
        let read = file
            .read_at(&mut block, at)
            .context("read the volume's content")?;
        if block[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += read.max(1) as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_may_be_called_by_an_options_digest() {
        let options = [("key".to_owned(), "abc".to_owned())].into();
        let content = |template| locate(template, "name", &options, &Source::Callouts);
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
            locate(template, "name", &options, &source)
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
