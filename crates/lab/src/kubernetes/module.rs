//! Go modules that import Kubernetes.

use super::{cache, command::run, version::Version};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Kubernetes' module path.
pub const KUBERNETES: &str = "k8s.io/kubernetes";

/// Path in Debian of the Go version that old releases need (package golang-1.19-go).
const OLD_GO: &str = "/usr/lib/go-1.19/bin/go";

/// Returns the cache directory of a release.
pub fn kept(version: Version) -> Result<PathBuf> {
    Ok(cache::directory("kubernetes")?.join(version.to_string()))
}

/// Flags of all builds, which so share one build of each package. Debug information is left out: nobody debugs these
/// programs, and a fifth of the compiler's time goes into it.
const FLAGS: &str = "-mod=mod -buildvcs=false -gcflags=all=-dwarf=false";

/// Returns a command of the Go version that a release needs.
pub fn go(version: Version, module: &Path) -> Command {
    let mut go = Command::new(if version.needs_old_go() { OLD_GO } else { "go" });
    go.current_dir(module)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", FLAGS)
        .env("GOTOOLCHAIN", "local")
        .stdin(Stdio::null());
    go
}

/// Writes a Go module that requires a release of Kubernetes, and resolves the dependencies of the Go files in its
/// directory. Returns the path of Kubernetes' source in Go's cache.
///
/// Kubernetes' own `go.mod` replaces its staging modules by local directories, which works only within its source.
/// Other modules must name the published versions.
pub fn write_module(dir: &Path, version: Version) -> Result<PathBuf> {
    fs::create_dir_all(dir).context("make the Go module")?;
    // Outside any module: a module named with its version needs none.
    let wanted = format!("{KUBERNETES}@{version}");
    let mut download = go(version, Path::new("/"));
    let found = run(download
        .env("GOFLAGS", "")
        .args(["mod", "download", "-json", &wanted]))
    .with_context(|| format!("get the module {wanted}"))?;
    let found: Value = serde_json::from_str(&found).context("read what Go found")?;
    let source = PathBuf::from(found["Dir"].as_str().context("Kubernetes' source")?);
    let upstream = found["GoMod"].as_str().context("a go.mod of Kubernetes")?;
    let upstream = run(go(version, Path::new("/")).args(["mod", "edit", "-json", upstream]))?;
    let upstream: Value = serde_json::from_str(&upstream).context("read Kubernetes' go.mod")?;
    fs::write(dir.join("go.mod"), module_text(version, &upstream)?).context("write go.mod")?;
    // `-e`: dependencies' tests may need unpublished modules, but they are not built.
    run(go(version, dir).args(["mod", "tidy", "-e"])).context("find the dependencies")?;
    Ok(source)
}

/// Returns the text of a `go.mod` that requires Kubernetes, derived from Kubernetes' own as printed by
/// `go mod edit -json`.
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
        // The version in 1.20 corrupts memory and crashes when built by Go 1.18 or newer.
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
