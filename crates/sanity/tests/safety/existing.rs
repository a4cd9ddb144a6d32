//! Data, devices and settings from before the run.

use crate::{
    Verdict,
    interrupted::signal,
    vendor::{Running, Vendor, until},
};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn tool(name: &str, words: &[&str]) {
    let status = Command::new(name).args(words).status().unwrap();
    assert!(status.success(), "{name} {words:?}");
}

/// Mounts an image and runs `work` in it.
fn inside(image: &Path, at: &Path, work: impl FnOnce(&Path)) {
    fs::create_dir_all(at).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    tool("mount", &["-o", "loop", image, at]);
    work(Path::new(at));
    tool("umount", &[at]);
}

/// Makes a volume with a user's data.
fn somebodys(vendor: &Vendor) -> PathBuf {
    let image = vendor.path("image");
    let file = fs::File::create_new(&image).unwrap();
    file.set_len(320 << 20).unwrap();
    tool("mkfs.xfs", &["-q", image.to_str().unwrap()]);
    image
}

/// Counts the files in the volume.
fn files(vendor: &Vendor, image: &Path) -> usize {
    let mut count = 0;
    inside(image, &vendor.path("at"), |volume| {
        count = fs::read_dir(volume).unwrap().count();
    });
    count
}

/// Starts a run that leaves a file in the volume, ends it with this signal, and returns its stderr.
fn ended_by(vendor: &Vendor, image: &Path, which: Signal) -> String {
    let words = ["run", "--keep", "--filter", "mnt.happy-rw-data"];
    let mut command = vendor.tester(&words);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut said = BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("kept, until Ctrl-C"), "{line}");
    assert_eq!(files(vendor, image), 1, "the tester's directory");
    signal(&running, which);
    running.0.wait().unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    rest
}

/// Starts another run and returns its stderr.
fn next(vendor: &Vendor) -> String {
    let next = vendor.tester(&["run", "--filter", "cli.no-args"]);
    let output = { next }.output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

pub fn interrupted() -> Verdict {
    let refuses = |when: &str| {
        let failure = r#"{"status":"Failure","message":"no"}"#;
        format!("mount) case \"$3\" in {when} echo '{failure}'; exit 0;; esac;;")
    };
    let without_secret = refuses("*secret/password*) ;; *)");
    for (words, arms) in [("attached", ""), ("", without_secret.as_str())] {
        for which in [Signal::SIGINT, Signal::SIGKILL] {
            let vendor = Vendor::new(words);
            vendor.instead(arms);
            let image = somebodys(&vendor);
            vendor.configure_as(&format!(
                "[options]\nimage = {image:?}\n[secrets]\npassword = 'x'"
            ));
            let said = ended_by(&vendor, &image, which);
            if which == Signal::SIGKILL {
                let said = next(&vendor);
                assert!(said.contains("undid what an interrupted run"), "{said}");
            }
            assert_eq!(files(&vendor, &image), 0, "{words} {which}: {said}");
        }
    }
    // What cannot be undone stays in the journal.
    let vendor = Vendor::new("");
    vendor.instead(&refuses("*sanity-last*)"));
    let image = somebodys(&vendor);
    vendor.configure_as(&format!("[options]\nimage = {image:?}"));
    let said = ended_by(&vendor, &image, Signal::SIGINT);
    assert!(said.contains("undo what was made"), "{said}");
    let said = next(&vendor);
    assert!(said.contains("an interrupted run is not undone"), "{said}");
    assert!(
        said.contains("remove the directory .flexvol-sanity-"),
        "{said}"
    );
    vendor.instead("");
    let said = next(&vendor);
    assert!(said.contains("undid what an interrupted run"), "{said}");
    assert_eq!(files(&vendor, &image), 0);
    until("no journal", || {
        vendor.left(Path::new("/nowhere")).is_empty()
    });
    Ok(())
}

/// Files that one check could not remove from an existing volume stay in the journal when the next check ends.
pub fn not_forgotten() -> Verdict {
    let vendor = Vendor::new("");
    let failure = r#"{"status":"Failure","message":"no"}"#;
    vendor.instead(&format!(
        "mount) case \"$3\" in *sanity-last*) echo '{failure}'; exit 0;; esac;;"
    ));
    let image = somebodys(&vendor);
    vendor.configure_as(&format!("[options]\nimage = {image:?}"));
    let ran = vendor.tester(&["run", "--filter", "mnt.happy-rw-data,mnt.repeat-no-stack"]);
    let said = String::from_utf8({ ran }.output().unwrap().stderr).unwrap();
    assert_eq!(files(&vendor, &image), 1, "the tester's directory: {said}");
    vendor.instead("");
    let said = next(&vendor);
    assert!(said.contains("undid what an interrupted run"), "{said}");
    assert_eq!(files(&vendor, &image), 0);
    Ok(())
}

/// The temporary directory is given by a symbolic link or a relative path.
pub fn temporary() -> Verdict {
    let vendor = Vendor::new("");
    vendor.configure("");
    let (real, link) = (vendor.path("real"), vendor.path("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    for name in [link.to_str().unwrap(), "real"] {
        let mut command = vendor.tester(&["run", "--filter", "mnt.happy-rw-data"]);
        command.env("TMPDIR", name).current_dir(vendor.path(""));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
    }
    Ok(())
}

pub fn untouched() -> Verdict {
    let vendor = Vendor::new("");
    let (image, at) = (somebodys(&vendor), vendor.path("at"));
    let precious = vendor.path("precious");
    fs::write(&precious, "mine").unwrap();
    // Names that the tester uses or used.
    let names = ["sanity", "kept", "open", "held", "life", "written", "once"];
    inside(&image, &at, |volume| {
        for name in names {
            symlink(&precious, volume.join(name)).unwrap();
        }
        fs::write(volume.join("data"), "theirs").unwrap();
    });
    vendor.configure_as(&format!("[options]\nimage = {image:?}"));
    let output = vendor
        .tester(&[
            "run",
            "--format",
            "json",
            "--filter",
            "mnt.,umt.,life.,kill.,out.",
        ])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["failed"], 0, "{report:#}");
    assert_eq!(report["errors"], 0, "{report:#}");
    let checks = report["checks"].as_array().unwrap();
    let passed = |name: &str| {
        let is = |check: &&Value| check["check"] == name && check["outcome"] == "passed";
        checks.iter().any(|check| is(&check))
    };
    assert!(passed("mnt.happy-rw-data") && passed("umt.keeps-data"));
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
    inside(&image, &at, |volume| {
        let mut found: Vec<_> = fs::read_dir(volume)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        let mut expected = names.map(str::to_owned).to_vec();
        expected.push("data".to_owned());
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(fs::read(volume.join("data")).unwrap(), b"theirs");
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(volume).unwrap().gid(), 0, "it keeps its group");
    });
    Ok(())
}

pub fn content() -> Verdict {
    let vendor = Vendor::new("");
    let precious = vendor.path("precious");
    fs::write(&precious, vec![7; 64 << 20]).unwrap();
    let lie = vendor.script(
        "lie",
        "echo '{\"image\":\"/nowhere\",\"handle\":\"../precious\"}'",
    );
    let lie_not_blank = vendor.script(
        "full",
        "echo '{\"image\":\"/nowhere\",\"handle\":\"precious\"}'",
    );
    let nothing = vendor.script("nothing", "true");
    for (create, why) in [
        (lie, "leads out of the content's place"),
        (lie_not_blank, "a blank volume"),
    ] {
        vendor.configure_as(&format!(
            "[volume]\ncreate = [{create:?}]\nremove = [{nothing:?}]\ncontent = \"{}\"",
            vendor.path("{handle}").display()
        ));
        let output = vendor
            .tester(&["run", "--format", "json", "--filter", "fmt.unsigned"])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let reason = report["checks"][0]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(why), "{report:#}");
        let now = fs::read(&precious).unwrap();
        assert!(now.iter().all(|byte| *byte == 7), "it was written to");
    }
    Ok(())
}

/// A file that is removed on drop, whoever made it.
struct Canary(PathBuf);

impl Drop for Canary {
    fn drop(&mut self) {
        // Usually it does not exist.
        let _ = fs::remove_file(&self.0);
    }
}

pub fn shielded() -> Verdict {
    let vendor = Vendor::new("");
    let canary = Canary(format!("/etc/flexvol-safety-{}", std::process::id()).into());
    let led = vendor.path("led");
    // The driver writes as root wherever a value points.
    let script = format!(
        "case \"$1 $3\" in\n\
         init*) echo '{{\"status\":\"Success\",\"capabilities\":{{\"attach\":false}}}}' ;;\n\
         mount*/etc*) echo led >> {led}; touch {canary} 2>/dev/null || true\n\
         echo '{{\"status\":\"Failure\",\"message\":\"no\"}}' ;;\n\
         *) echo '{{\"status\":\"Failure\",\"message\":\"no\"}}' ;;\n\
         esac",
        led = led.display(),
        canary = canary.0.display()
    );
    let driver = vendor.path("example.com~broken/broken");
    fs::remove_file(&driver).unwrap();
    vendor.script("example.com~broken/broken", &script);
    vendor.configure_as("[options]\nimage = \"{image}\"");
    let output = vendor
        .tester(&["run", "--format", "json", "--filter", "cli.path-traversal"])
        .output()
        .unwrap();
    assert!(output.status.code().is_some(), "{output:?}");
    assert!(led.exists(), "the driver was led there");
    assert!(!canary.0.exists(), "the machine was written to");
    Ok(())
}

pub fn first_init() -> Verdict {
    let vendor = Vendor::new("");
    let canary = Canary(format!("/tmp/flexvol-safety-init-{}", std::process::id()).into());
    let alone = vendor.path("alone");
    // Outside the driver's directory, and with the same content every time.
    let script = format!(
        "[ -e {canary} ] || echo \"$1\" >>{alone}\n\
         echo {canary} >{canary}\n\
         echo '{{\"status\":\"Success\",\"capabilities\":{{\"attach\":false}}}}'",
        canary = canary.0.display(),
        alone = alone.display(),
    );
    fs::remove_file(vendor.path("example.com~broken/broken")).unwrap();
    vendor.script("example.com~broken/broken", &script);
    vendor.configure_as("[options]\nimage = \"{image}\"");
    let config = fs::read_to_string(vendor.path("sanity.toml")).unwrap();
    let config = config.replace("writes = [", &format!("writes = [{:?}, ", vendor.path("")));
    fs::write(vendor.path("sanity.toml"), config).unwrap();
    let words = ["run", "--format", "json", "--filter", "init.no-side"];
    let output = vendor.tester(&words).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = &report["checks"][0];
    let reason = check["reason"].as_str().unwrap_or_default();
    assert_eq!(check["outcome"], "failed", "{report:#}");
    let named = format!("a file {} is new", canary.0.display());
    assert!(reason.contains(&named), "{report:#}");
    // One observed `init` and one usual one: the file of the first was in a private mount.
    let alone = fs::read_to_string(alone).unwrap();
    assert_eq!(alone, "init\ninit\n");
    Ok(())
}

pub fn secrets() -> Verdict {
    let vendor = Vendor::new("tells-the-secret");
    // A server that refuses every request.
    let create = vendor.script("create", "echo '{\"image\":\"/nowhere\"}'");
    let remove = vendor.script("remove", "true");
    vendor.configure_as(&format!(
        "[volume]\ncreate = [{create:?}]\nremove = [{remove:?}]"
    ));
    let secret = "it's a \"secret\"";
    fs::write(
        vendor.path("secrets.json"),
        serde_json::json!({ "password": secret }).to_string(),
    )
    .unwrap();
    let encoded = "aXQncyBhICJzZWNyZXQi";
    for format in ["pretty", "junit", "json"] {
        let output = vendor
            .tester(&["run", "--format", format, "--filter", "mnt.,umt.busy"])
            .arg("--secrets")
            .arg(vendor.path("secrets.json"))
            .arg("--report")
            .arg(vendor.path("report.md"))
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
            + &fs::read_to_string(vendor.path("report.md")).unwrap();
        assert!(printed.contains("mnt.happy-rw-data"), "{printed}");
        assert!(printed.contains("***"), "{printed}");
        for word in [secret, encoded, "it's a", "a \\\"secret"] {
            assert!(!printed.contains(word), "{format}: {word} is in {printed}");
        }
    }
    Ok(())
}
