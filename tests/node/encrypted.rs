//! Directory volumes on an ext4 on which users can encrypt their directories (fscrypt).

use crate::{node::vendor, sandbox};
use flexvol_testing::{Need, PersistentVolume, Pod, Points, tests};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

tests! {
    "a directory volume with encrypted directories, whose key is gone, is deleted", &[Need::Root, Need::Tool("xfs_io", "xfsprogs"), Need::Tool("mkfs.ext4", "e2fsprogs")]
        => without_key;
}

fn run(program: &str, arguments: &[&str], path: &Path, input: &[u8]) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn without_key(points: &Points) {
    let mut sandbox = sandbox();
    let image = sandbox.path("encrypted.img");
    let file = fs::File::create_new(&image).unwrap();
    file.set_len(256 << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F", "-O", "encrypt"], &image, b"");
    sandbox.change_disk(&image);
    fs::create_dir(sandbox.pool()).unwrap();
    let executable = crate::executable();
    let executable = executable.to_str().unwrap();
    run(executable, &["pool", "init"], &sandbox.pool(), b"");
    let driver = vendor(&sandbox, "hello-directory");

    let volume = PersistentVolume::provision(&driver, "pv", "", 16 << 20);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let secret = pod.dir().join("secret");
    fs::create_dir(&secret).unwrap();
    let said = run("xfs_io", &["-r", "-c", "add_enckey"], &secret, &[7; 64]);
    let key = said.trim().rsplit(' ').next().unwrap().to_owned();
    let policy = format!("set_encpolicy -v 2 {key}");
    run("xfs_io", &["-r", "-c", &policy], &secret, b"");
    // Deeper than the driver keeps descriptors open, with siblings.
    for beside in 0..3 {
        let deep = secret.join(format!("{beside}/{}", "d/".repeat(40)));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "text").unwrap();
        fs::write(secret.join(format!("{beside}/d/file")), "text").unwrap();
    }
    pod.unmount().success();
    let root = volume.root(&sandbox);
    run("sync", &["--file-system"], &root, b"");
    let removal = format!("rm_enckey {key}");
    run("xfs_io", &["-r", "-c", &removal], &root, b"");
    let shown: Vec<_> = fs::read_dir(root.join("secret")).unwrap().collect();
    assert_eq!(shown.len(), 3);
    let create = fs::create_dir(root.join("secret/new")).unwrap_err();
    assert_eq!(
        create.raw_os_error(),
        Some(126),
        "the key is there: {create}"
    );
    points.add(1);

    driver.call(&["delete", &volume.json("rw")]).success();
    let left = fs::read_dir(sandbox.pool().join("volumes")).unwrap();
    assert_eq!(left.count(), 0);
    points.add(1);
}
