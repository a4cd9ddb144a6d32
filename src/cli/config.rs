//! `flexvol config`: shows a driver's configuration, and any mistake in it.

use super::{installed_driver::InstalledDriver, print};
use crate::{
    config::{self, Config, is_lost},
    installed::Installed,
    plugin::DriverName,
};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use flexvol_storage::sdk::DriverStatus;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Print the effective configuration, or the first mistake in it
///
/// What is printed is a configuration again, with the default of everything that was not said.
/// Comments tell where it comes from, and whether kubelet was told something else about the driver
/// when it was installed. With a mistake the exit code is 1.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol config --driver example.com/disk",
    "flexvol config --file disk.toml",
))]
pub struct Show {
    #[command(flatten)]
    driver: InstalledDriver,

    /// A file that is not installed yet. A driver that is named need not be installed then
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Show {
    pub fn run(self, here: &Installed) -> Result<()> {
        let Some(file) = &self.file else {
            let installed = self.driver.installed(here)?;
            return show(
                &installed.configuration(),
                installed.name(),
                Some(&installed),
            );
        };
        // A file can be checked without an installed driver.
        let name = self.driver.name().map_or(here.name(), DriverName::driver);
        show(file, name, None)
    }
}

/// Shows the configuration at `path` of the driver called `name`. For an `installed` driver also shows what kubelet
/// was told about it.
fn show(path: &Path, name: &str, installed: Option<&Installed>) -> Result<()> {
    let text = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound && installed.is_some() => None,
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    let config = match &text {
        Some(text) => {
            let config = Config::parse(text, name).map_err(|mistake| {
                anyhow!("{}: {mistake}; until it is mended a driver with this configuration only unmounts", path.display())
            });
            config?
        }
        None => Config::default_for(name)?,
    };
    let shown = path.display();
    match text {
        Some(text) if is_lost(&text) => print(format_args!(
            "# {shown} says nothing, and how long deleted volumes are kept is not known; these are the defaults"
        ))?,
        Some(_) => print(format_args!("# {shown}, completed with the defaults"))?,
        None => print(format_args!(
            "# there is no {shown}; these are the defaults"
        ))?,
    }
    if let Some(installed) = installed {
        print(format_args!("# {}", init_of(installed, &config)?))?;
    }
    let text = config::effective(&config);
    print(format_args!("{}", text.trim_end()))
}

/// Compares what kubelet was told with what the configuration says now.
fn init_of(installed: &Installed, config: &Config) -> Result<String> {
    let says = DriverStatus::initialized((config.backend.capabilities)(config.attach)).to_line();
    let line = installed.init_line();
    Ok(match fs::read_to_string(&line) {
        Ok(told) if told == says => "init answers what this configuration says".to_owned(),
        Ok(told) => format!(
            "DRIFT: init answers {}, and this configuration says {}; run `flexvol install` again",
            told.trim_end(),
            says.trim_end()
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!(
                "init answers the backend's default: there is no {}; run `flexvol install`",
                line.display()
            )
        }
        Err(error) => return Err(error).with_context(|| format!("read {}", line.display())),
    })
}
