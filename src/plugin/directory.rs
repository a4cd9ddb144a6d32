//! The plugin directories of Kubernetes on this node.

use super::{name::DriverName, owned::expect_owned};
use crate::{
    installed::Installed,
    processes::{Component, DEFAULT, Process, configured, processes, with_kubelet_inside},
};
use anyhow::{Context, Result, anyhow, bail};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Usual plugin directories, including those of distributions with a read-only /usr.
const WELL_KNOWN: [&str; 4] = [
    DEFAULT,
    "/var/lib/kubelet/volumeplugins",
    "/etc/kubernetes/kubelet-plugins/volume/exec",
    "/home/kubernetes/flexvolume",
];

/// Kubelet's configuration as kubeadm writes it.
const KUBELET_CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// A directory in which Kubernetes looks for drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDir {
    pub path: PathBuf,
    /// How its path is known, for users.
    pub known_from: String,
}

/// The plugin directory of a process, as seen from this process.
enum Location {
    Here(PluginDir),
    /// In another file system; the error to report if there is no other.
    Elsewhere(anyhow::Error),
}

impl PluginDir {
    /// Returns the driver of that name, if it is installed here.
    ///
    /// # Errors
    /// When others than root may have written it.
    pub fn driver(&self, name: &DriverName) -> Result<Option<Installed>> {
        let directory = self.path.join(name.directory());
        let installed = Installed::at(&directory.join(name.driver()));
        expect_owned(&self.path)?;
        expect_whole(&directory, &installed)?;
        Ok(installed.executable().is_file().then_some(installed))
    }

    /// Returns the directory that the user named, or else the one that Kubernetes on this node uses.
    ///
    /// # Errors
    /// When the directory is unknown or ambiguous.
    pub fn find(named: Option<&Path>) -> Result<PluginDir> {
        if let Some(path) = named {
            if !path.is_absolute() {
                bail!("the plugin directory must be an absolute path");
            }
            return Ok(PluginDir {
                path: path.to_owned(),
                known_from: "--plugin-dir".to_owned(),
            });
        }
        let running = processes();
        let is_kubelet = |process: &&Process| process.component == Component::Kubelet;
        let mut callers: Vec<&Process> = running.iter().filter(is_kubelet).collect();
        // Prefer kubelet: a controller manager in a container may not see the plugin directory, and needs none for
        // drivers without attach.
        if callers.is_empty() {
            callers = running.iter().collect();
        }
        let mut found: Vec<PluginDir> = Vec::new();
        let mut elsewhere = None;
        for process in callers {
            match PluginDir::of(process) {
                Location::Here(dir) if found.iter().any(|known| known.path == dir.path) => {}
                Location::Here(dir) => found.push(dir),
                // Other clusters may run whole nodes in containers on this machine.
                Location::Elsewhere(error) => elsewhere = elsewhere.or(Some(error)),
            }
        }
        match (found.is_empty(), elsewhere) {
            (false, _) => only(found),
            (true, Some(error)) => Err(error),
            (true, None) => without_kubelet(),
        }
    }

    /// Returns where a process looks, and whether this process sees the same directory at that path.
    fn of(process: &Process) -> Location {
        let who = format!("{} (process {})", process.component.as_str(), process.pid);
        let path = &process.plugin_dir;
        let root = Path::new("/");
        let compare = || -> io::Result<bool> {
            let has_this_root = process.identity(root)? == identity(root)?;
            let ours = identity(path)?;
            let same = process.identity(path)? == ours;
            Ok(same && (ours.is_some() || has_this_root))
        };
        match compare() {
            Ok(true) => Location::Here(PluginDir {
                path: path.clone(),
                known_from: who,
            }),
            Ok(false) => Location::Elsewhere(anyhow!(
                "{who} looks into {}, which is another directory there than here; mount its directory into this container and name it with --plugin-dir",
                path.display()
            )),
            Err(error) => Location::Elsewhere(anyhow!(error).context(format!(
                "see which directory {who} looks into; name it with --plugin-dir"
            ))),
        }
    }
}

/// Returns device and inode of the file that a path leads to here.
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists the drivers in a plugin directory that flexvol installed.
///
/// # Errors
/// When it cannot be listed, or others than root may have written one of them.
pub fn drivers(plugin_dir: &Path) -> Result<Vec<(DriverName, Installed)>> {
    expect_owned(plugin_dir)?;
    let entries = match fs::read_dir(plugin_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("list {}", plugin_dir.display())),
    };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_str()?.replace('~', "/");
            let name: DriverName = name.parse().ok()?;
            let installed = Installed::at(&entry.path().join(name.driver()));
            installed.init_line().exists().then_some((name, installed))
        })
        .collect();
    found.sort_by_key(|(name, _)| name.to_string());
    for (name, installed) in &found {
        expect_whole(&plugin_dir.join(name.directory()), installed)?;
    }
    Ok(found)
}

/// Fails unless a driver's directory and configuration are root's. Code that runs the executable checks that
/// itself.
fn expect_whole(directory: &Path, installed: &Installed) -> Result<()> {
    expect_owned(directory)?;
    expect_owned(&installed.configuration())?;
    expect_owned(&installed.init_line())
}

/// Returns the only directory. If there are several, the user must decide.
fn only(mut found: Vec<PluginDir>) -> Result<PluginDir> {
    if let [_] = found[..] {
        return Ok(found.remove(0));
    }
    let known: Vec<_> = found
        .iter()
        .map(|dir| format!("{} ({})", dir.path.display(), dir.known_from))
        .collect();
    bail!(
        "more than one plugin directory is in question: {}; name one with --plugin-dir",
        known.join(", ")
    )
}

fn without_kubelet() -> Result<PluginDir> {
    if let Ok(text) = fs::read(KUBELET_CONFIGURATION)
        && let Some(path) = configured(&text)
    {
        return Ok(PluginDir {
            path: path.into(),
            known_from: KUBELET_CONFIGURATION.to_owned(),
        });
    }
    let is_there = |path: &&&str| Path::new(path).is_dir();
    well_known(
        WELL_KNOWN.iter().filter(is_there).copied(),
        with_kubelet_inside().as_deref(),
    )
}

/// Returns the usual directory that exists. `around` is a program with kubelet inside.
fn well_known<'a>(there: impl Iterator<Item = &'a str>, around: Option<&str>) -> Result<PluginDir> {
    let known_from = match around {
        None => "it is there".to_owned(),
        Some(around) => format!(
            "it is there; the kubelet inside {around} may use another, to be named with --plugin-dir"
        ),
    };
    let there: Vec<PluginDir> = there
        .map(|path| PluginDir {
            path: path.into(),
            known_from: known_from.clone(),
        })
        .collect();
    if there.is_empty() {
        let kubelet = match around {
            None => "no kubelet runs here".to_owned(),
            Some(around) => format!("kubelet runs inside {around} and does not tell its own"),
        };
        bail!(
            "{kubelet} and none of the usual plugin directories is there ({}); name one with --plugin-dir",
            WELL_KNOWN.join(", ")
        );
    }
    only(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_inside_another_program_is_told_where_a_usual_directory_is_taken() {
        let around = Some("k3s-server (process 7)");
        let found = well_known([DEFAULT].into_iter(), around).unwrap();
        assert_eq!(found.path, Path::new(DEFAULT));
        assert!(found.known_from.contains("k3s-server (process 7)"));
        let found = well_known([DEFAULT].into_iter(), None).unwrap();
        assert_eq!(found.known_from, "it is there");
        for around in [around, None] {
            let error = well_known([].into_iter(), around).unwrap_err().to_string();
            assert!(error.contains(around.unwrap_or("no kubelet runs here")));
            assert!(error.contains("--plugin-dir"), "{error}");
        }
    }

    #[test]
    fn directories_that_disagree_are_left_to_a_person() {
        let dir = |path: &str| PluginDir {
            path: path.into(),
            known_from: "x".to_owned(),
        };
        assert_eq!(only(vec![dir("/a")]).unwrap(), dir("/a"));
        let error = only(vec![dir("/a"), dir("/b")]).unwrap_err().to_string();
        assert!(
            error.contains("/a (x), /b (x)") && error.contains("--plugin-dir"),
            "{error}"
        );
    }
}
