//! The lab's container images, made from local files: the host's busybox, or static executables that were just built.

use super::command::run;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

/// Path of a static busybox in Debian (package busybox-static).
const PROGRAM: &str = "/bin/busybox";

/// Image for pods of the tests.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.35";

/// Image of the containers that hold a pod's namespaces.
pub const PAUSE: &str = "flexvol.test/pause:1";

/// Writes an archive with both busybox images, in the format of `docker save` and `ctr images import`.
pub fn archive(work: &Path, to: &Path) -> Result<()> {
    let root = work.join("root");
    for dir in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        fs::create_dir_all(root.join(dir)).context("make the directories of an image")?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::copy(PROGRAM, root.join("bin/busybox")).with_context(|| format!("copy {PROGRAM}"))?;
    run(Command::new("chroot")
        .arg(&root)
        .args(["/bin/busybox", "true"]))
    .with_context(|| {
        format!("run {PROGRAM} without libraries; is it of package busybox-static?")
    })?;
    for applet in run(Command::new(PROGRAM).arg("--list"))?
        .lines()
        .filter(|applet| *applet != "busybox")
    {
        symlink("busybox", root.join("bin").join(applet)).context("make an applet")?;
    }
    let images = [
        (BUSYBOX, json!({"Cmd": ["sh"], "Env": ["PATH=/bin"]})),
        (
            PAUSE,
            json!({"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]}),
        ),
    ];
    pack(work, &root, &images, to)
}

/// Writes an archive with an image that contains only stripped executables, at its root.
pub fn of_executables(work: &Path, name: &str, executables: &[&Path], to: &Path) -> Result<()> {
    let root = work.join("root");
    fs::create_dir_all(&root).context("make the directory of an image")?;
    for executable in executables {
        let file = executable.file_name().context("an executable's name")?;
        run(Command::new("strip")
            .arg("-o")
            .arg(root.join(file))
            .arg(executable))?;
    }
    pack(work, &root, &[(name, json!({}))], to)
}

/// Writes an archive of images that all contain the files in `root`, and removes the temporary files in `work`.
fn pack(work: &Path, root: &Path, images: &[(&str, Value)], to: &Path) -> Result<()> {
    let packed = work.join("images");
    fs::create_dir_all(&packed)?;
    let layer = packed.join("layer.tar");
    run(Command::new("tar")
        .arg("-C")
        .arg(root)
        .arg("-cf")
        .arg(&layer)
        .args(["--owner=0", "--group=0", "."]))?;
    let digest = run(Command::new("sha256sum").arg(&layer))?;
    let digest = digest.split_whitespace().next().context("a digest")?;
    let mut manifest = Vec::new();
    for (number, (name, config)) in images.iter().enumerate() {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        let file = format!("{number}.json");
        fs::write(packed.join(&file), config.to_string())?;
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}));
    }
    fs::write(packed.join("manifest.json"), json!(manifest).to_string())?;
    run(Command::new("tar")
        .arg("-C")
        .arg(&packed)
        .arg("-cf")
        .arg(to)
        .arg("."))?;
    fs::remove_dir_all(work).context("remove the parts of the images")
}
