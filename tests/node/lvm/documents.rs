//! Follows the documents from a volume group to a volume that has grown, with their own commands.

use super::{GROUP, GROWN, NEEDS, SIZE, flexvol, group, lvm, output, run};
use crate::node::{MIB, fill, size_of_filesystem};
use flexvol_testing::{Driver, PersistentVolume, Pod, Points, disks, tests};
use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

tests! {
    "lvm: the documents' commands on a node with a volume group give a volume that grows", NEEDS
        => by_the_book;
    "lvm: a verb that names no driver is about the only one that is installed", NEEDS => unnamed;
}

const PAGE: &str = include_str!("../../../docs/operate/volume-groups.md");

/// kubelet's plugin directory.
const PLUGINS: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// The commands in the page.
fn commands() -> Vec<&'static str> {
    let block = PAGE.split("```").nth(1).unwrap();
    block
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .collect()
}

fn by_the_book(points: &Points) {
    // The page assumes a group `vg0` with free space.
    group(GROUP, &disks()[..2]);
    let sandbox = crate::sandbox();
    let bin = sandbox.path("bin");
    fs::create_dir(&bin).unwrap();
    symlink(crate::executable(), bin.join("flexvol")).unwrap();
    // kubelet has made it.
    fs::create_dir_all(PLUGINS).unwrap();
    let mut manifests = String::new();
    for command in commands() {
        // No Kubernetes runs here. The test uses the manifests as Kubernetes would.
        let (command, applied) = match command.split_once(" | kubectl apply") {
            Some((command, _)) => (command.replace("10Gi", "320Mi"), true),
            None => (command.to_owned(), false),
        };
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &command])
            .current_dir(sandbox.root());
        bash.env(
            "PATH",
            format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()),
        );
        let said = bash.output().unwrap();
        // Doctor also reports that there is no kubelet here.
        let is_doctor = command.ends_with("doctor");
        assert!(said.status.success() || is_doctor, "{command}: {said:?}");
        let text = String::from_utf8(said.stdout).unwrap();
        if is_doctor {
            let pool = text
                .lines()
                .find(|line| line.contains("pool default of example.com/lvm"));
            assert!(pool.is_some_and(|line| line.contains("ok")), "{text}");
        }
        if applied {
            manifests = text;
        }
        points.add(1);
    }

    let value = |key: &str| {
        let line = manifests
            .lines()
            .find_map(|line| line.trim().strip_prefix(key));
        line.unwrap().trim_matches([' ', '"']).to_owned()
    };
    let volume = PersistentVolume {
        name: "data".to_owned(),
        filesystem: "xfs",
        options: ["handle", "pool"]
            .map(|key| (key.to_owned(), value(&format!("{key}:"))))
            .into(),
    };
    assert!(
        manifests.contains("allowVolumeExpansion: true"),
        "{manifests}"
    );
    let executable = Path::new(PLUGINS).join("example.com~lvm/lvm");
    let driver = Driver::new(&value("driver:"), executable);
    let pod = Pod::new(&sandbox, &driver, &volume, "uid");
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    let before = size_of_filesystem(pod.dir());
    driver.call(&pod.expand_arguments(GROWN, SIZE)).success();
    assert!(size_of_filesystem(pod.dir()) >= before + 128 * MIB);
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    assert_eq!(lvm(&["lvs", "--noheadings", GROUP]), "");
}

fn unnamed(points: &Points) {
    group(GROUP, &disks()[..2]);
    flexvol(&["pool", "init", "--group", GROUP]);
    let sandbox = crate::sandbox();
    // Outside a driver's directory, without a configuration beside it.
    let program = sandbox.path("flexvol");
    symlink(crate::executable(), &program).unwrap();
    let program = program.to_str().unwrap();
    let refused = |words: &[&str]| {
        let said = output(program, words);
        assert!(!said.status.success(), "{words:?}: {said:?}");
        String::from_utf8(said.stderr).unwrap()
    };
    fs::create_dir_all(PLUGINS).unwrap();
    let said = refused(&["gc"]);
    assert!(said.contains("no driver is installed here"), "{said}");
    points.add(1);

    let config = sandbox.path("lvm.toml");
    let text =
        format!("backend = \"lvm\"\n[pools.default]\ngroup = \"{GROUP}\"\nkeep_deleted = \"1h\"\n");
    fs::write(&config, text).unwrap();
    let install = ["install", "--name", "example.com/lvm", "--config"];
    run(
        program,
        &[&install[..], &[config.to_str().unwrap()]].concat(),
    );
    run(program, &["create", "data", "--size", "320Mi"]);
    let listed = run(program, &["list"]);
    assert!(listed.contains("data"), "{listed}");
    assert!(run(program, &["config"]).contains("keep_deleted = \"1h"));
    let shown = run(program, &["show", "data", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let handle = shown["handle"].as_str().unwrap().to_owned();
    let volume = PersistentVolume {
        name: "data".to_owned(),
        filesystem: "xfs",
        options: [("handle", handle.as_str()), ("pool", "default")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    };
    let driver = Driver::new(
        "example.com/lvm",
        Path::new(PLUGINS).join("example.com~lvm/lvm"),
    );
    let pod = Pod::new(&sandbox, &driver, &volume, "uid");
    pod.mount("rw").success();
    pod.unmount().success();
    run(program, &["call", "delete", &volume.json("rw")]);
    // Kept according to the driver's configuration, not to the defaults.
    assert!(run(program, &["gc"]).contains("nothing was left behind"));
    assert!(run(program, &["undelete", &handle]).contains("is a volume again"));
    points.add(6);

    run(program, &["install", "--name", "example.com/loop"]);
    let said = refused(&["gc"]);
    assert!(
        said.contains("example.com/loop, example.com/lvm") && said.contains("--driver"),
        "{said}"
    );
    let listed = run(program, &["list", "--driver", "example.com/lvm"]);
    assert!(listed.contains("data"), "{listed}");
    run(program, &["config", "--driver", "example.com/loop"]);
    points.add(3);
}
