//! Images for volumes, and their loop devices.

use crate::{
    callout::argument::Options,
    system::{self, command},
};
use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// Makes a sparse image, and options that name it or its loop device.
pub fn make(directory: &Path, name: &str, bytes: u64, template: &Options) -> Result<Imaged> {
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
        // Through the device rather than the file, because the device caches what was read.
        content: path.clone().unwrap_or_else(|| image.clone()),
        device: held,
    })
}

/// The result of [`make`].
#[derive(Debug)]
pub struct Imaged {
    pub options: Options,
    /// The loop device, or the image if there is none.
    pub content: PathBuf,
    pub device: Option<File>,
}

/// Makes a loop device that goes when the last descriptor of it is closed, so that a killed run leaves
/// none.
fn loop_device(image: &Path) -> Result<(PathBuf, File)> {
    let arguments = ["--find".as_ref(), "--show".as_ref(), image.as_os_str()];
    let device = PathBuf::from(command::tool("losetup", &arguments)?.trim_end());
    let held = File::open(&device).with_context(|| format!("open {}", device.display()))?;
    let found = held.metadata().context("look at a loop device")?;
    ensure!(
        found.file_type().is_block_device(),
        "losetup named no device"
    );
    // While it is open, the kernel only sets autoclear.
    let words = ["--detach".as_ref(), device.as_os_str()];
    command::tool("losetup", &words)?;
    Ok((device, held))
}
