//! A node that exists for one demo: an installed driver, a pool, and the directories of a pod.

use super::print;
use crate::plugin::{Deployment, DriverName};
use anyhow::{Context, Result, ensure};
use flexvol_storage::{
    host::{callout, exec::Tool, namespace, pool::Pool},
    sdk::DriverStatus,
};
use nix::sys::stat::{Mode, umask};
use std::{
    ffi::OsStr,
    fs,
    io::{self, IsTerminal},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Locks, node-local state and the demo's own directory are below this, so that covering it
/// separates the demo from every other driver of the machine.
const RUN: &str = "/run";
const ROOT: &str = "/run/flexvol-demo";
const DRIVER: &str = "example.com/flexvol";
const POD: &str = "5f2c7a3e-9d41-4b86-a1c0-d3e8f7b69210";

#[derive(Debug)]
pub struct Node {
    driver: Tool,
    verbose: bool,
}

/// The arguments of a callout, as they are passed and as they are shown.
#[derive(Debug)]
pub struct Argument {
    text: String,
    shown: String,
}

impl Argument {
    /// A word or a number.
    pub fn plain(text: impl ToString) -> Self {
        let text = text.to_string();
        let shown = if text.is_empty() { "\"\"" } else { &text };
        Argument {
            shown: shown.to_owned(),
            text,
        }
    }

    /// The JSON argument.
    pub fn json(value: &serde_json::Value) -> Self {
        Argument {
            text: value.to_string(),
            shown: "{…}".to_owned(),
        }
    }

    /// A directory of the pod.
    pub fn directory(path: &Path) -> Self {
        let text = path.display().to_string();
        let shown = match path.strip_prefix(volumes()) {
            Ok(name) => format!("$POD/{}", name.display()),
            Err(_) => text.clone(),
        };
        Argument { text, shown }
    }
}

impl Node {
    pub fn new(verbose: bool) -> Result<Self> {
        // Whatever the caller's umask is: others may read what is installed, and only root write.
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        namespace::leave()?;
        namespace::cover(Path::new(RUN))?;
        let (pool, plugins) = (
            Path::new(ROOT).join("pool"),
            Path::new(ROOT).join("plugins"),
        );
        fs::create_dir(ROOT)
            .and_then(|()| fs::create_dir(&pool))
            .and_then(|()| fs::create_dir(&plugins))
            .and_then(|()| {
                let mut builder = fs::DirBuilder::new();
                builder.recursive(true).mode(0o750).create(volumes())
            })
            .context("make the demo's directories")?;
        Pool::init(&pool).context("make the demo's pool")?;
        let name: DriverName = DRIVER.parse()?;
        let executable = fs::read("/proc/self/exe").context("read this executable")?;
        // Thin, because it is in memory: allocating a volume there would take all of it at once.
        let configuration = format!(
            "backend = \"loop\"\n\n[pools.default]\npath = {:?}\nthin = true\nreserve = \"0%\"\n",
            pool.display().to_string()
        );
        let deployment = Deployment::new(&plugins, &name, &executable, Some(configuration))?;
        deployment.apply().context("install the driver")?;
        Ok(Node {
            driver: Tool::at(&deployment.executable())?,
            verbose,
        })
    }

    /// Says what follows, and what the short forms stand for.
    pub fn introduce(&self) -> Result<()> {
        print(format_args!(
            "The driver {DRIVER}, called as kubelet calls it.\n\
             POD={}\n",
            volumes().display()
        ))?;
        self.succeed(&[Argument::plain("init")]).map(drop)
    }

    /// The directory that kubelet would have for a volume of the pod.
    pub fn directory(&self, volume: &str) -> Result<PathBuf> {
        let dir = volumes().join(volume);
        if !dir.is_dir() {
            fs::create_dir(&dir).context("make the pod's directory")?;
        }
        Ok(dir)
    }

    /// One callout, with its reply and its time.
    pub fn call(&self, arguments: &[Argument]) -> Result<DriverStatus> {
        let shown: Vec<&str> = arguments
            .iter()
            .map(|argument| match self.verbose {
                true if argument.text.starts_with('{') => argument.text.as_str(),
                _ => argument.shown.as_str(),
            })
            .collect();
        print(format_args!("$ {}", strong(&shown.join(" "))))?;
        let arguments: Vec<&OsStr> = arguments
            .iter()
            .map(|argument| OsStr::new(&argument.text))
            .collect();
        let reply = callout::call(&self.driver, &arguments)?;
        let text = String::from_utf8_lossy(&reply.output);
        let milliseconds = reply.took.as_secs_f64() * 1000.0;
        print(format_args!("{milliseconds:9.1} ms  {}", text.trim_end()))?;
        serde_json::from_str(&text).context("read the driver's reply")
    }

    /// One callout that must succeed.
    pub fn succeed(&self, arguments: &[Argument]) -> Result<DriverStatus> {
        let reply = self.call(arguments)?;
        ensure!(
            reply.status == flexvol_storage::sdk::Status::Success,
            "the demo ends here, because this callout failed"
        );
        Ok(reply)
    }
}

/// Where kubelet would mount the pod's volumes (`GetPath` in pkg/volume/flexvolume/volume.go).
fn volumes() -> PathBuf {
    let driver = DRIVER.replace('/', "~");
    Path::new(ROOT).join(format!("kubelet/pods/{POD}/volumes/{driver}"))
}

/// Bold on a terminal, plain elsewhere.
pub fn strong(text: &str) -> String {
    if io::stdout().is_terminal() {
        format!("\x1b[1m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
