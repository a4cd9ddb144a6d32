//! Go code that describes Kubernetes' API, generated if the published module lacks it.
//!
//! Kubernetes' source has it since 1.24. Before, upstream's build generated it (`build/root/Makefile.generated_files`,
//! `gen_openapi`), and the Go module left it out.

use super::command::run;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Package of the generator. Every release requires the version it was built with.
pub const GENERATOR: &str = "k8s.io/kube-openapi/cmd/openapi-gen";

/// The only program of Kubernetes that contains the code.
const USER: &str = "k8s.io/kubernetes/cmd/kube-apiserver";

const PACKAGE: &str = "k8s.io/kubernetes/pkg/generated/openapi";

/// Path of the code in Kubernetes' source.
const FILE: &str = "pkg/generated/openapi/zz_generated.openapi.go";

/// Marker of packages whose types are described.
const MARK: &str = "+k8s:openapi-gen=true";

/// Whether Kubernetes' source lacks the code.
pub fn is_missing(source: &Path) -> bool {
    !source.join(FILE).exists()
}

/// Generates the code in `out`. Returns a file for `go build -overlay` that adds the code to the source, which Go keeps
/// read-only.
///
/// `go` returns a Go command in a module that requires Kubernetes and [`GENERATOR`].
pub fn generate(go: impl Fn() -> Command, source: &Path, out: &Path) -> Result<PathBuf> {
    let format = "{{.ImportPath}}\t{{.Dir}}";
    let packages = run(go().args(["list", "-deps", "-f", format, USER]))
        .context("list the packages of the API server")?;
    let mut described = Vec::new();
    for line in packages.lines() {
        let (name, dir) = line.split_once('\t').context("a package's directory")?;
        if is_marked(Path::new(dir))? {
            described.push(name);
        }
    }
    ensure!(!described.is_empty(), "no package is marked {MARK}");
    run(go()
        .args(["run", GENERATOR, "--input-dirs", &described.join(",")])
        .args(["--output-package", PACKAGE])
        .args(["--output-file-base", "zz_generated.openapi"])
        .arg("--output-base")
        .arg(out)
        // No licence header, and no report on API style.
        .args(["--go-header-file", "/dev/null"])
        .args(["--report-filename", "/dev/null"]))
    .context("generate the description of Kubernetes' API")?;
    let generated = out.join(PACKAGE).join("zz_generated.openapi.go");
    ensure!(generated.exists(), "the generator wrote no file");
    let overlay = out.join("overlay.json");
    let text = json!({"Replace": {source.join(FILE).display().to_string(): generated}});
    fs::write(&overlay, text.to_string()).context("write the overlay")?;
    Ok(overlay)
}

/// Whether a package has the marker.
fn is_marked(dir: &Path) -> Result<bool> {
    for entry in fs::read_dir(dir).context("read the directory of a package")? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "go")
            && has_mark(&fs::read(&file).context("read the code of a package")?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a comment is exactly the marker: other comments only mention it.
fn has_mark(code: &[u8]) -> bool {
    code.split(|byte| *byte == b'\n').any(|line| {
        line.strip_prefix(b"//")
            .is_some_and(|comment| comment.trim_ascii() == MARK.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comment_of_its_own_is_the_mark() {
        for code in [
            "// +k8s:openapi-gen=true\npackage v1\n",
            "package v1\n\n//+k8s:openapi-gen=true\ntype Type struct{}\n",
        ] {
            assert!(has_mark(code.as_bytes()), "{code}");
        }
        for code in [
            "// +k8s:openapi-gen=false\npackage v1\n",
            "// types with +k8s:openapi-gen=true are described\n",
            "var mark = \"// +k8s:openapi-gen=true\"\n",
            "",
        ] {
            assert!(!has_mark(code.as_bytes()), "{code}");
        }
    }
}
