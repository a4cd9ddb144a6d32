//! Installation of a driver where kubelet finds it.
//!
//! Kubelet watches the plugin directory and calls `init` on every event whose name does not begin with a dot
//! (`pkg/volume/flexvolume/probe.go`). So everything is completed under such a name and renamed: the whole
//! directory the first time, later each file, the executable last. Files that need no change are left alone, and
//! cause no event.

use super::{
    DriverName,
    files::{EXECUTABLE, clear, empty, lock, make_directory, set_mode, sync},
    owned::expect_owned,
    users::refuse_while_mounted,
};
use crate::{
    config::{Config, as_meant, is_lost_of},
    installed::Installed,
};
use anyhow::{Context, Result, bail, ensure};
use flexvol_storage::{
    host::exec::{AtDeadline, Limits, Tool},
    sdk::DriverStatus,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

const READABLE: u32 = 0o644;

/// Timeout of `init`, which reads one file. Kubelet does nothing else while it waits for it.
const INIT_DEADLINE: Duration = Duration::from_secs(10);

/// Directory in which files are completed, inside a driver's directory. Kubelet ignores it for its dot.
pub(super) const STAGE: &str = ".staged";

/// The intended state of a driver in a plugin directory.
#[derive(Debug)]
pub struct Deployment<'a> {
    plugin_dir: PathBuf,
    name: DriverName,
    executable: &'a [u8],
    /// The text of its configuration; `None` keeps the installed one.
    configuration: Option<String>,
    init_line: String,
    attach: bool,
}

/// One of the driver's files.
struct Part<'a> {
    name: OsString,
    content: &'a [u8],
    mode: u32,
}

impl<'a> Deployment<'a> {
    /// Checks the configuration. Nothing is written before it is valid.
    ///
    /// # Errors
    /// When the configuration has a mistake, or others than root can write the plugin directory.
    pub fn new(
        plugin_dir: &Path,
        name: &DriverName,
        executable: &'a [u8],
        configuration: Option<String>,
    ) -> Result<Self> {
        let home = plugin_dir.join(name.directory());
        let installed = Installed::at(&home.join(name.driver()));
        for path in [plugin_dir, &home] {
            expect_owned(path)?;
        }
        let config = match &configuration {
            Some(text) => Config::parse(text, name.driver())?,
            None => {
                expect_owned(&installed.configuration())?;
                Config::load(&installed)?
            }
        };
        // A lost configuration is not replaced by the defaults, which keep no deleted volumes.
        let had_one = installed.configuration().exists() || installed.init_line().exists();
        let configuration = configuration.or_else(|| (!had_one).then(String::new));
        let capabilities = (config.backend.capabilities)(config.attach);
        Ok(Deployment {
            plugin_dir: plugin_dir.to_owned(),
            name: name.clone(),
            executable,
            configuration: configuration.map(as_meant),
            init_line: DriverStatus::initialized(capabilities).to_line(),
            attach: config.attach,
        })
    }

    /// Returns the path at which kubelet finds the executable.
    pub fn executable(&self) -> PathBuf {
        self.home().join(self.name.driver())
    }

    /// Whether the driver's configuration was lost, and no new one is given.
    pub fn lost_configuration(&self) -> bool {
        self.configuration.is_none() && is_lost_of(&Installed::at(&self.executable()))
    }

    /// Installs the driver in the plugin directory. Returns the names of the files that were written; none if all
    /// were up to date.
    ///
    /// # Errors
    /// When the driver may not be changed now, does not work on this node, or cannot be written. Every earlier file
    /// is then still there and whole.
    pub fn apply(&self) -> Result<Vec<String>> {
        make_directory(&self.plugin_dir)?;
        let home = self.home();
        for path in [&self.plugin_dir, &home] {
            expect_owned(path)?;
        }
        let _lock = lock(&self.plugin_dir)?;
        let is_first = match fs::symlink_metadata(&home) {
            Ok(found) if found.is_dir() => false,
            Ok(_) => bail!(
                "{} is no directory; kubelet would not find a driver there after its restart",
                home.display()
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error).with_context(|| format!("find {}", home.display())),
        };
        let changes = self.changes(&home)?;
        if changes.is_empty() {
            return set_mode(&home, EXECUTABLE).map(|()| Vec::new());
        }
        self.allow_attach_mode(&home)?;
        let stage = if is_first {
            self.plugin_dir.join(format!(".{}", self.name.directory()))
        } else {
            home.join(STAGE)
        };
        self.stage(&stage)?;
        if is_first {
            fs::rename(&stage, &home)
                .with_context(|| format!("rename {} to {}", stage.display(), home.display()))?;
            sync(&self.plugin_dir)?;
        } else {
            for name in &changes {
                let (from, to) = (stage.join(name), home.join(name));
                fs::rename(&from, &to)
                    .with_context(|| format!("rename {} to {}", from.display(), to.display()))?;
                // Sync each rename, so that after a power failure no new executable is beside an old line.
                sync(&home)?;
            }
            clear(&stage)?;
            set_mode(&home, EXECUTABLE)?;
        }
        Ok(changes
            .iter()
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    fn home(&self) -> PathBuf {
        self.plugin_dir.join(self.name.directory())
    }

    /// Returns the files in the order in which they must change: kubelet calls `init` when the executable changes,
    /// and remembers the answer.
    fn parts(&self) -> Vec<Part<'_>> {
        let driver = self.name.driver();
        let configuration = self.configuration.as_ref().map(|text| Part {
            name: format!(".{driver}.toml").into(),
            content: text.as_bytes(),
            mode: READABLE,
        });
        let init_line = Part {
            name: format!(".{driver}.init").into(),
            content: self.init_line.as_bytes(),
            mode: READABLE,
        };
        let executable = Part {
            name: driver.into(),
            content: self.executable,
            mode: EXECUTABLE,
        };
        configuration
            .into_iter()
            .chain([init_line, executable])
            .collect()
    }

    fn changes(&self, home: &Path) -> Result<Vec<OsString>> {
        let mut changes = Vec::new();
        for part in self.parts() {
            let path = home.join(&part.name);
            let is_as_it_should_be = part
                .is_at(&path)
                .with_context(|| format!("compare {}", path.display()))?;
            // When the line changed, the executable is rewritten too, because only that makes kubelet call `init`
            // again. An interrupted installation may not have got that far.
            let is_asked_again = part.name == self.name.driver()
                && (changes.contains(&self.line()) || home.join(STAGE).exists());
            if !is_as_it_should_be || is_asked_again {
                changes.push(part.name);
            }
        }
        Ok(changes)
    }

    fn line(&self) -> OsString {
        format!(".{}.init", self.name.driver()).into()
    }

    /// Refuses to change `attach` while volumes are mounted: kubelet treats volumes of drivers with and without
    /// attach differently, and would lose track of them.
    fn allow_attach_mode(&self, home: &Path) -> Result<()> {
        let installed = Installed::at(&home.join(self.name.driver()));
        let before = match attach_of(&installed) {
            Ok(Some(before)) => before,
            Ok(None) => return Ok(()),
            Err(error) => {
                // Refusing would make repair impossible. If standard error is closed, nobody can be told.
                let _ = writeln!(
                    io::stderr(),
                    "flexvol: nothing tells which attach mode {} was installed with, so it is installed anew: {error:#}",
                    self.name
                );
                return Ok(());
            }
        };
        if before != self.attach {
            refuse_while_mounted(
                &self.name,
                &format!("change attach from {before} to {}", self.attach),
            )?;
        }
        Ok(())
    }

    /// Writes the driver into a directory that kubelet ignores, and runs its `init` there.
    fn stage(&self, stage: &Path) -> Result<()> {
        // Remove files of an interrupted installation, but keep the directory: if this installation is interrupted
        // too, the next one sees by it that kubelet must call `init` again.
        empty(stage)?;
        match DirBuilder::new().mode(EXECUTABLE).create(stage) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("make {}", stage.display()))?,
        }
        set_mode(stage, EXECUTABLE)?;
        for part in self.parts() {
            let path = stage.join(&part.name);
            part.write(&path)
                .with_context(|| format!("write {}", path.display()))?;
        }
        sync(stage)?;
        let answer = init_of(&stage.join(self.name.driver()))
            .context("the driver does not work on this node, nothing was installed")?;
        ensure!(
            answer == self.init_line,
            "the driver answers init with {} and should with {}; nothing was installed",
            answer.trim_end(),
            self.init_line.trim_end()
        );
        Ok(())
    }
}

impl Part<'_> {
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            result => result?,
        };
        let looks_right = metadata.is_file()
            && metadata.mode() & 0o7777 == self.mode
            && metadata.uid() == 0
            && Ok(metadata.len()) == u64::try_from(self.content.len());
        Ok(looks_right && fs::read(path)? == self.content)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create_new(path)?;
        file.write_all(self.content)?;
        file.set_permissions(Permissions::from_mode(self.mode))?;
        file.sync_all()
    }
}

/// Returns the attach mode that kubelet was told; `None` if there is no driver. If the line is lost or damaged, the
/// configuration has it; an executable alone answers the default.
fn attach_of(installed: &Installed) -> Result<Option<bool>> {
    if let Ok(line) = fs::read_to_string(installed.init_line())
        && let Some(attach) = told(&line)
    {
        return Ok(Some(attach));
    }
    if !installed.executable().exists() {
        return Ok(None);
    }
    match fs::read_to_string(installed.configuration()) {
        // Read `attach` even from a configuration with mistakes.
        Ok(text) => {
            let table: toml::Table = toml::from_str(&text)
                .with_context(|| format!("read {}", installed.configuration().display()))?;
            let attach = table.get("attach").and_then(toml::Value::as_bool);
            return Ok(Some(attach.unwrap_or_default()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("read the configuration that is installed"),
    }
    let answer = init_of(&installed.executable())
        .context("ask the driver that is installed for its attach mode")?;
    let attach = told(&answer).context("its answer to init is no line of a driver")?;
    Ok(Some(attach))
}

fn told(line: &str) -> Option<bool> {
    let status: DriverStatus = serde_json::from_str(line).ok()?;
    Some(status.capabilities?.attach)
}

/// Runs `init` of a driver and returns its answer.
pub fn init_of(executable: &Path) -> Result<String> {
    let limits = Limits {
        deadline: INIT_DEADLINE,
        at_deadline: AtDeadline::Kill,
        inherit: &[],
    };
    let output = Tool::at(executable)
        .and_then(|driver| driver.run(&[OsStr::new("init")], &limits))
        .and_then(|output| output.success("ask the driver what it can do"))
        .with_context(|| format!("run {} init", executable.display()))?;
    ensure!(
        output.stderr.is_empty(),
        "{} init writes to standard error, which spoils its answer",
        executable.display()
    );
    String::from_utf8(output.stdout).context("read the answer to init")
}
