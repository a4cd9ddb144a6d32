//! Kubernetes' programs, built from its published Go module and cached.

use super::{
    command::run,
    module::{KUBERNETES, go, kept, write_module},
    openapi,
    version::Version,
};
use anyhow::{Context, Result};
use std::{fs, fs::File, path::PathBuf, time::Instant};

/// Programs of a node and its control plane.
const PROGRAMS: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
];

/// The programs of one release, in one directory.
#[derive(Clone, Debug)]
pub struct Programs {
    version: Version,
    home: PathBuf,
}

impl Programs {
    /// Returns the programs of a release. Builds them if needed.
    ///
    /// # Errors
    /// When the module cannot be downloaded or built.
    pub fn of(version: Version) -> Result<Self> {
        let programs = Programs {
            version,
            home: kept(version)?,
        };
        fs::create_dir_all(&programs.home).context("make the directory for builds")?;
        // Concurrent builds of a release would write the same files.
        let lock =
            File::create(programs.home.join("lock")).context("make the lock of the build")?;
        lock.lock().context("wait for another build")?;
        if !programs.built() {
            programs.build()?;
        }
        Ok(programs)
    }

    /// Returns the release.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns how many seconds the build of a release took, if it was built.
    ///
    /// # Errors
    /// When the cache directory cannot be found.
    pub fn seconds(version: Version) -> Result<Option<u64>> {
        let noted = fs::read_to_string(kept(version)?.join("seconds")).unwrap_or_default();
        Ok(noted.trim().parse().ok())
    }

    /// Returns the directory with the programs.
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
        fs::create_dir_all(&module).context("make the Go module")?;
        let packages = PROGRAMS.map(|name| format!("\t_ \"{KUBERNETES}/cmd/{name}\"\n"));
        let generator = format!("\t_ {:?}\n", openapi::GENERATOR);
        let text = format!(
            "//go:build tools\n// +build tools\n\npackage lab\n\nimport (\n{}{generator})\n",
            packages.concat()
        );
        fs::write(module.join("tools.go"), text).context("write the Go file")?;
        let source = write_module(&module, self.version)?;
        let mut flags = "-s -w".to_owned();
        // The API server reports one of these two, depending on the release; upstream sets both.
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
        let mut build = go(self.version, &module);
        // Before 1.24 and 1.31 these tags leave out Docker and the cloud providers; later they have no effect.
        build.args([
            "build",
            "-trimpath",
            "-tags",
            "dockerless,providerless",
            "-ldflags",
            &flags,
            "-o",
        ]);
        build.arg(&fresh);
        if openapi::is_missing(&source) {
            let command = || go(self.version, &module);
            build.arg("-overlay").arg(openapi::generate(
                command,
                &source,
                &self.home.join("generated"),
            )?);
            // Go's index of a module ignores overlaid files.
            build.env("GODEBUG", "goindex=0");
        }
        build.args(PROGRAMS.map(|name| format!("{KUBERNETES}/cmd/{name}")));
        run(&mut build).context("build Kubernetes")?;
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
