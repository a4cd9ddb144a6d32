//! Reports about a configuration.

use crate::{doctor::Kubelet, flexvol};
use assert_cmd::assert::{Assert, OutputAssertExt};
use flexvol_testing::{Need, Points, arena, tests};
use std::{fs, path::Path};

tests! {
    "config: the first mistake is named with its line and column" => mistake;
    "config: what is printed is a configuration that means the same" => effective;
    "config --file: looks for no driver", &[Need::Root] => file_alone;
    "config: a configuration that is not what init says is told", &[Need::Root] => drift;
}

fn config(file: &Path) -> Assert {
    flexvol().args(["config", "--file"]).arg(file).assert()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn mistake(_: &Points) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    fs::write(&file, "log = \"info\"\natach = true\nlog = 3\n").unwrap();
    let says = |words: &str| {
        let assert = config(&file).failure().code(1).stdout("");
        let said = text(&assert.get_output().stderr);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("c.toml: line "), "{said}");
        assert!(said.contains(words), "{said:?} does not say {words:?}");
    };
    says("line 3, column 1: duplicate key");
    fs::write(&file, "attach = true\nlog = 3\n[pools.a]\npath = \"b\"\n").unwrap();
    says("line 2, column 7: ");
    fs::write(&file, "attach = true\n[pools.a]\npath = \"b\"\n").unwrap();
    says("line 3, column 8: pool \"a\", backend loop: path must be absolute; until");
    config(&dir.path().join("none")).failure().code(1);
}

fn effective(_: &Points) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    fs::write(
        &file,
        "attach = true\n[pools.a]\npath = \"/a\"\nthin = true\n",
    )
    .unwrap();
    let first = text(&config(&file).success().stderr("").get_output().stdout);
    assert!(first.contains("\nattach = true\n") && first.contains("\nreserve = \"15%\"\n"));
    fs::write(&file, &first).unwrap();
    let second = text(&config(&file).success().get_output().stdout);
    assert_eq!(second, first);
}

fn file_alone(_: &Points) {
    let dir = tempfile::tempdir_in(arena()).unwrap();
    let kubelet = Kubelet::start(dir.path());
    for name in ["example.net/loop", "example.net/dir"] {
        flexvol()
            .args(["install", "--name", name])
            .assert()
            .success();
    }
    flexvol().arg("config").assert().failure().code(1);
    let file = dir.path().join("c.toml");
    fs::write(&file, "attach = true\n").unwrap();
    let said = text(&config(&file).success().get_output().stdout);
    assert!(said.contains("backend = \"loop\""), "{said}");
    // The backend follows from the driver's name, even if the driver is not installed.
    for name in ["example.net/dir", "example.org/dir"] {
        let mut command = flexvol();
        command.args(["config", "--driver", name, "--file"]);
        let said = text(&command.arg(&file).assert().success().get_output().stdout);
        assert!(said.contains("backend = \"dir\""), "{said}");
    }
    drop(kubelet);
}

fn drift(_: &Points) {
    let dir = tempfile::tempdir_in(arena()).unwrap();
    let run = |verb: &str| {
        let mut command = flexvol();
        command.args([verb, "--name", "example.net/disk", "--plugin-dir"]);
        command.arg(dir.path()).assert()
    };
    run("config").failure().code(1);
    let file = dir.path().join("c.toml");
    fs::write(&file, "backend = \"loop\"\n").unwrap();
    let mut install = flexvol();
    install.args(["install", "--name", "example.net/disk", "--config"]);
    install.arg(&file).arg("--plugin-dir").arg(dir.path());
    install.assert().success();
    let said = text(&run("config").success().get_output().stdout);
    assert!(said.contains("init answers what this configuration says"));
    let installed = dir.path().join("example.net~disk/.disk.toml");
    fs::write(installed, "backend = \"loop\"\nattach = true\n").unwrap();
    let said = text(&run("config").success().get_output().stdout);
    assert!(
        said.contains("# DRIFT") && said.contains("flexvol install"),
        "{said}"
    );
}
