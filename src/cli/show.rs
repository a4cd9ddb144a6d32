//! `flexvol show`: everything about one volume.

use super::{driver_options::DriverOptions, output::Output, print, table::table, volume};
use crate::{installed::Installed, size::size};
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::{Subject, VolumeReport};

/// Show one volume
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol show data",
    "flexvol show data -o yaml",
))]
pub struct Show {
    /// A handle, the name of a persistent volume, or a directory the volume is mounted on
    #[arg(value_name = "HANDLE|NAME|DIR")]
    volume: String,
    /// table, wide, json, yaml (sizes in bytes) or name
    #[arg(
        long,
        short,
        value_enum,
        default_value = "table",
        hide_possible_values = true
    )]
    output: Output,
    #[command(flatten)]
    driver_options: DriverOptions,
}

impl Show {
    pub fn run(self, here: &Installed) -> Result<()> {
        let driver = self.driver_options.choose(here)?.maintenance();
        let found = driver
            .find(&Subject::parse(&self.volume)?)
            .with_context(|| format!("volume {}", self.volume))?;
        if self.output.structured(&volume::json(&found))? {
            return Ok(());
        }
        match self.output {
            Output::Name => print(format_args!("{}", volume::reference(&found))),
            _ => table(&[], &facts(&found)),
        }
    }
}

/// Returns the properties of a volume, one for each row.
pub fn facts(found: &VolumeReport) -> Vec<Vec<String>> {
    let mark = found.mark();
    let mut rows = vec![];
    let mut fact = |name: &str, value: String| rows.push(vec![format!("{name}:"), value]);
    let or_none = |text: Option<&str>| text.unwrap_or("none").to_owned();
    fact("Name", or_none(found.name().map(|name| name.as_str())));
    fact(
        "Namespace",
        or_none(mark.and_then(|mark| mark.namespace.as_deref())),
    );
    let handle = found.handle().map(|handle| handle.to_string());
    fact("Handle", or_none(handle.as_deref()));
    fact("Stored as", found.id.to_string());
    fact("Pool", found.pool.clone());
    fact("State", volume::state(found).to_owned());
    if let Some(growing) = mark.and_then(|mark| mark.growing) {
        fact("Asked", format!("{} (growth not finished)", size(growing)));
    }
    let kind = match (found.is_directory, found.asset.thin) {
        (true, false) => "a limit",
        (true, true) => "a limit, and not promised",
        (false, true) => "thin",
        (false, false) => "allocated",
    };
    fact("Storage", format!("{} ({kind})", size(found.asset.size)));
    fact(
        "Device",
        found.device.as_ref().map_or("none".to_owned(), |device| {
            format!("{}, {}", device.path.display(), size(device.size))
        }),
    );
    fact("File system", volume::content(found));
    if let Some(format) = mark.and_then(|mark| mark.format) {
        fact("UUID", format.uuid.to_string());
    }
    let mut name = "Mounts";
    let pod = |path| volume::pod(path).map_or(String::new(), |uid| format!(", pod {uid}"));
    for mount in &found.mounts {
        let mode = if mount.read_only { "ro" } else { "rw" };
        let path = mount.mount_point.as_path();
        fact(name, format!("{} ({mode}{})", path.display(), pod(path)));
        name = "";
    }
    for place in &found.elsewhere {
        let path = place.as_path();
        let text = format!("{} (another mount namespace{})", path.display(), pod(path));
        fact(name, text);
        name = "";
    }
    if name == "Mounts" {
        fact(name, "none".to_owned());
    }
    for row in &mut rows {
        if row[0] == ":" {
            row[0].clear();
        }
    }
    rows
}
