//! Kubernetes' programs, built from its published Go module and kept for the next time.

use super::{openapi, tool::run, version::Version};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// What a node and its control plane are made of.
const PROGRAMS: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
];

/// Where Debian puts the Go that old releases need (package golang-1.19-go).
const OLD_GO: &str = "/usr/lib/go-1.19/bin/go";

const KUBERNETES: &str = "k8s.io/kubernetes";

/// The programs of one release, in one directory.
#[derive(Clone, Debug)]
pub struct Programs {
    version: Version,
    home: PathBuf,
}

impl Programs {
    /// The programs of a release, built if they are not there yet.
    ///
    /// # Errors
    /// When the module cannot be had or does not build.
    pub fn of(version: Version) -> Result<Self> {
        let programs = Programs {
            version,
            home: cache()?.join(version.to_string()),
        };
        fs::create_dir_all(&programs.home).context("make the directory for builds")?;
        // Two builds of one release at once would write the same files.
        let lock =
            File::create(programs.home.join("lock")).context("make the lock of the build")?;
        lock.lock().context("wait for another build")?;
        if !programs.built() {
            programs.build()?;
        }
        Ok(programs)
    }

    /// The release.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The directory with the programs.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.home.join("bin")
    }

    fn built(&self) -> bool {
        PROGRAMS
            .iter()
            .all(|name| self.directory().join(name).is_file())
    }

    fn build(&self) -> Result<()> {
        let started = Instant::now();
        let module = self.home.join("module");
        let source = write_module(
            &module,
            self.version,
            &PROGRAMS.map(|name| format!("{KUBERNETES}/cmd/{name}")),
        )?;
        let mut flags = "-s -w".to_owned();
        // The API server says one of these two, by release; upstream stamps both.
        for stamp in [
            "k8s.io/component-base/version",
            "k8s.io/client-go/pkg/version",
        ] {
            let (version, minor) = (self.version, self.version.minor());
            flags += &format!(
                " -X {stamp}.gitVersion={version} -X {stamp}.gitMajor=1 -X {stamp}.gitMinor={minor}"
            );
        }
        let fresh = self.home.join("fresh");
        fs::create_dir_all(&fresh).context("make the directory of the build")?;
        let mut go = go(self.version, &module);
        // Before 1.24 and 1.31 these leave Docker and the cloud providers out; later they say nothing.
        go.args([
            "build",
            "-trimpath",
            "-tags",
            "dockerless,providerless",
            "-ldflags",
            &flags,
            "-o",
        ]);
        go.arg(&fresh);
        if openapi::is_missing(&source) {
            let command = || self::go(self.version, &module);
            go.arg("-overlay").arg(openapi::generate(
                command,
                &source,
                &self.home.join("generated"),
            )?);
            // Go's index of a module's files does not know of files that are put over them.
            go.env("GODEBUG", "goindex=0");
        }
        go.args(PROGRAMS.map(|name| format!("{KUBERNETES}/cmd/{name}")));
        run(&mut go).context("build Kubernetes")?;
        let bin = self.directory();
        if bin.exists() {
            fs::remove_dir_all(&bin).context("remove an older build")?;
        }
        fs::rename(&fresh, &bin).context("put the programs in their place")?;
        let seconds = started.elapsed().as_secs();
        fs::write(self.home.join("seconds"), format!("{seconds}\n"))
            .context("note the time it took")?;
        Ok(())
    }
}

/// Where builds are kept between runs.
fn cache() -> Result<PathBuf> {
    let named = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    Ok(base
        .context("find the cache directory: set HOME")?
        .join("flexvol-lab/kubernetes"))
}

/// A Go of the release's time.
fn go(version: Version, module: &Path) -> Command {
    let mut go = Command::new(if version.needs_old_go() { OLD_GO } else { "go" });
    go.current_dir(module)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOTOOLCHAIN", "local")
        .stdin(Stdio::null());
    go
}

/// Writes a Go module that depends on Kubernetes and uses these of its packages; returns where Go
/// keeps Kubernetes' source.
///
/// Kubernetes' own `go.mod` replaces the modules that live in its source by directories, which
/// works only there. Everywhere else a module has to name their published versions.
fn write_module(dir: &Path, version: Version, packages: &[String]) -> Result<PathBuf> {
    fs::create_dir_all(dir).context("make the Go module")?;
    // Without its dependencies in order Go runs in no module that names them.
    fs::write(dir.join("go.mod"), "module flexvol.test/lab\n").context("write go.mod")?;
    let found = run(go(version, dir).args([
        "mod",
        "download",
        "-json",
        &format!("{KUBERNETES}@{version}"),
    ]))
    .with_context(|| format!("get the module {KUBERNETES}@{version}"))?;
    let found: Value = serde_json::from_str(&found).context("read what Go found")?;
    let source = PathBuf::from(found["Dir"].as_str().context("Kubernetes' source")?);
    let upstream = found["GoMod"].as_str().context("a go.mod of Kubernetes")?;
    let upstream = run(go(version, dir).args(["mod", "edit", "-json", upstream]))?;
    let upstream: Value = serde_json::from_str(&upstream).context("read Kubernetes' go.mod")?;
    fs::write(dir.join("go.mod"), module_text(version, &upstream)?).context("write go.mod")?;
    let generator = openapi::is_missing(&source).then_some(openapi::GENERATOR);
    let imports: String = packages
        .iter()
        .map(String::as_str)
        .chain(generator)
        .map(|package| format!("\t_ {package:?}\n"))
        .collect();
    let text =
        format!("//go:build tools\n// +build tools\n\npackage lab\n\nimport (\n{imports})\n");
    fs::write(dir.join("tools.go"), text).context("write the Go file")?;
    // Tests of dependencies may need what nobody publishes; they are not built.
    run(go(version, dir).args(["mod", "tidy", "-e"])).context("find the dependencies")?;
    Ok(source)
}

/// The text of a `go.mod` that requires Kubernetes, from Kubernetes' own as `go mod edit -json`
/// prints it.
fn module_text(version: Version, upstream: &Value) -> Result<String> {
    let go = upstream["Go"].as_str().unwrap_or("1.15");
    let mut text =
        format!("module flexvol.test/lab\n\ngo {go}\n\nrequire {KUBERNETES} {version}\n");
    let replaced = upstream["Replace"]
        .as_array()
        .context("modules that Kubernetes replaces")?;
    ensure!(!replaced.is_empty(), "Kubernetes replaces no module");
    for replace in replaced {
        let part =
            |side: &str, key: &str| replace[side][key].as_str().unwrap_or_default().to_owned();
        let (old, new) = (part("Old", "Path"), part("New", "Path"));
        if new.is_empty() || old.is_empty() {
            bail!("a replacement without a path in Kubernetes' go.mod");
        }
        let (new, of) = if new.starts_with("./") {
            (old.clone(), version.of_published_modules())
        } else {
            (new, part("New", "Version"))
        };
        // The one of 1.20 writes where it must not when built by Go 1.18 or newer, and crashes.
        let of = if old == "github.com/modern-go/reflect2" {
            "v1.0.2".to_owned()
        } else {
            of
        };
        text += &format!("replace {old} => {new} {of}\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn modules_inside_kubernetes_become_published_ones() {
        let version = "1.20.2".parse().unwrap();
        let upstream = json!({"Go": "1.15", "Replace": [
            {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}},
            {"Old": {"Path": "github.com/modern-go/reflect2"},
             "New": {"Path": "github.com/modern-go/reflect2", "Version": "v1.0.1"}},
            {"Old": {"Path": "a.example/b"}, "New": {"Path": "c.example/d", "Version": "v1.2.3"}},
        ]});
        assert_eq!(
            module_text(version, &upstream).unwrap(),
            "module flexvol.test/lab\n\ngo 1.15\n\nrequire k8s.io/kubernetes v1.20.2\n\
             replace k8s.io/api => k8s.io/api v0.20.2\n\
             replace github.com/modern-go/reflect2 => github.com/modern-go/reflect2 v1.0.2\n\
             replace a.example/b => c.example/d v1.2.3\n"
        );
    }
}
