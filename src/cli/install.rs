//! `flexvol install`: makes this executable a driver that kubelet finds.

use super::{print, terminal};
use crate::plugin::{Deployment, DriverName, PluginDir, every};
use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::sys::stat::{Mode, umask};
use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

/// Install this executable as a driver
///
/// Checks the configuration, writes the driver beside its final place, runs its init there, and
/// renames it, so that kubelet never meets half a driver. What is as it should be is left alone,
/// and kubelet notices nothing. Changing attach is refused while volumes of the driver are mounted.
/// Mounts are detected through /proc; in a container this requires hostPID and CAP_SYS_PTRACE.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol install --driver example.com/disk --config disk.toml",
    "flexvol install --driver example.com/disk --watch --interval 30",
))]
pub struct Install {
    /// The driver's name, as persistent volumes say it
    #[arg(long = "driver", alias = "name", value_name = "VENDOR/DRIVER")]
    name: DriverName,

    /// Kubelet's plugin directory [default: auto-detected; see `flexvol doctor`]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,

    /// The driver's configuration, a TOML file; one of comments alone means the defaults [default: the
    /// one that is installed, else the defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Keep running until SIGTERM or SIGINT; reinstall when the driver is removed or changed, or FILE
    /// changes
    #[arg(long)]
    watch: bool,

    /// How often --watch checks
    #[arg(long = "interval", alias = "every", value_name = "SECONDS", default_value_t = 10, requires = "watch",
          value_parser = clap::value_parser!(u16).range(1..))]
    every: u16,
}

impl Install {
    pub fn run(self) -> Result<()> {
        super::need_root("install a driver")?;
        // Others than root must be able to read the installed files, whatever the caller's umask.
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        let plugin_dir = PluginDir::find(self.plugin_dir.as_deref())?;
        let executable = fs::read("/proc/self/exe").context("read this executable")?;
        let mut seen = self.configuration()?;
        let mut deployment = self.deployment(&plugin_dir, &executable, seen.clone())?;
        say(&deployment, &deployment.apply()?, &plugin_dir)?;
        if !self.watch {
            return Ok(());
        }
        print(format_args!(
            "watching {}",
            deployment.executable().display()
        ))?;
        // A repeated error is reported once.
        let mut trouble = String::new();
        every(Duration::from_secs(self.every.into()), || {
            let configuration = self.configuration();
            // The file may still be being written, so it counts only if it is unchanged at the next look.
            if let Ok(text) = &configuration
                && *text != seen
            {
                seen.clone_from(text);
                return;
            }
            let outcome = configuration.and_then(|text| {
                if text.is_some() {
                    deployment = self.deployment(&plugin_dir, &executable, text)?;
                }
                let changes = deployment.apply()?;
                if !changes.is_empty() {
                    say(&deployment, &changes, &plugin_dir)?;
                }
                Ok(())
            });
            let report = outcome.err().map(|error| super::report(&error));
            let report = report.unwrap_or_default();
            if report != trouble {
                let now = if report.is_empty() {
                    "all is well again"
                } else {
                    &report
                };
                // If standard error is closed, nobody can be told.
                let _ = writeln!(io::stderr(), "flexvol: {}", terminal::lines(now));
                trouble = report;
            }
        })
    }

    /// Reads FILE. Refuses an empty one, which is more likely truncated than intended.
    fn configuration(&self) -> Result<Option<String>> {
        let Some(path) = &self.config else {
            return Ok(None);
        };
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
        ensure!(
            !text.trim().is_empty(),
            "{shown} is empty; write the configuration into it, or a comment to have the defaults"
        );
        Ok(Some(text))
    }

    fn deployment<'a>(
        &self,
        plugin_dir: &PluginDir,
        executable: &'a [u8],
        configuration: Option<String>,
    ) -> Result<Deployment<'a>> {
        let deployment = Deployment::new(&plugin_dir.path, &self.name, executable, configuration);
        deployment.with_context(|| match &self.config {
            Some(path) => format!("check {}", path.display()),
            None => format!("check the configuration of {}", self.name),
        })
    }
}

fn say(deployment: &Deployment<'_>, changes: &[String], plugin_dir: &PluginDir) -> Result<()> {
    let executable = deployment.executable();
    let (executable, known_from) = (executable.display(), &plugin_dir.known_from);
    if deployment.lost_configuration() {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(
            io::stderr(),
            "flexvol: the configuration of this driver is missing or empty, so it is not known how long deleted volumes are kept, and none is deleted; say --config FILE with the one it had, or with a comment to have the defaults"
        );
    }
    if changes.is_empty() {
        return print(format_args!(
            "unchanged: {executable} (plugin directory: {known_from})"
        ));
    }
    print(format_args!(
        "installed {executable} (plugin directory: {known_from}); written: {}",
        changes.join(", ")
    ))
}
