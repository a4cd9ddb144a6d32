//! The two container images of the lab, made from the machine's own busybox.

use super::tool::run;
use anyhow::{Context, Result};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

/// Where Debian puts a busybox without shared libraries (package busybox-static).
const PROGRAM: &str = "/bin/busybox";

/// The image that pods of the tests use.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.35";

/// The image that holds a pod's namespaces.
pub const PAUSE: &str = "flexvol.test/pause:1";

/// Writes an archive with both images, as `docker save` does and `ctr images import` reads.
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
    let packed = work.join("images");
    fs::create_dir_all(&packed)?;
    let layer = packed.join("layer.tar");
    run(Command::new("tar")
        .arg("-C")
        .arg(&root)
        .arg("-cf")
        .arg(&layer)
        .args(["--owner=0", "--group=0", "."]))?;
    let digest = run(Command::new("sha256sum").arg(&layer))?;
    let digest = digest.split_whitespace().next().context("a digest")?;
    let mut manifest = Vec::new();
    for (name, file, command) in [
        (BUSYBOX, "busybox.json", json!(["sh"])),
        (PAUSE, "pause.json", json!(["/bin/sleep", "2147483647"])),
    ] {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        fs::write(packed.join(file), config.to_string())?;
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
