//! Secrets of a pod reach the driver in its arguments, and appear nowhere else.

use crate::{node::UID, sandbox};
use flexvol_host::{VolumeId, lock};
use flexvol_testing::{
    Call, Driver, Need, PersistentVolume, Pod, Points, Sandbox, patience, tests,
};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use std::{
    cell::Cell,
    fs,
    os::unix::{net::UnixDatagram, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

tests! {
    "a secret is in no reply, no log, no file and no child's arguments", &[Need::Root, Need::Tool("strace", "strace"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => secrets;
    "a driver that crashes leaves no core file, whatever the node's limit is", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => crashed;
}

const SIZE: u64 = 300 << 20;

/// Secrets: each value as the pod has it and as kubelet sends it. The last one is not valid
/// base64.
const SECRETS: [(&str, &str, &str); 4] = [
    ("password", "canary-7f3a", "Y2FuYXJ5LTdmM2E="),
    ("token", "\"canary\\ 91c0\n", "ImNhbmFyeVwgOTFjMAo="),
    ("key", "canary&<>d2", "Y2FuYXJ5Jjw+ZDI="),
    ("broken", "canary!not*base64", "canary!not*base64"),
];

/// A socket in place of journald's, in this executable's own `/run`.
struct Journal(UnixDatagram);

impl Journal {
    const PATH: &str = "/run/systemd/journal/socket";

    fn open() -> Self {
        fs::create_dir_all(Path::new(Self::PATH).parent().unwrap()).unwrap();
        let socket = UnixDatagram::bind(Self::PATH).unwrap();
        socket.set_nonblocking(true).unwrap();
        Journal(socket)
    }

    fn read(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 256 << 10];
        while let Ok(length) = self.0.recv(&mut buffer) {
            all.extend_from_slice(&buffer[..length]);
        }
        all
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // It goes with the executable's own /run in any case.
        let _ = fs::remove_file(Self::PATH);
    }
}

fn secrets(points: &Points) {
    let journal = Journal::open();
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, "");
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", SIZE);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    let traced = Traced {
        heard: Cell::new(0),
        log: sandbox.path("execve.log"),
        driver: &driver,
        journal: &journal,
        sandbox: &sandbox,
    };
    for (key, _, sent) in SECRETS {
        let key = format!("kubernetes.io/secret/{key}");
        let with = |more: &[(&str, &str)]| {
            let more = [&[(key.as_str(), sent)], more].concat();
            let mut line = pod.mount_arguments("rw");
            let given: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&line[2]).unwrap();
            let given = given
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str().unwrap()));
            let merged: std::collections::BTreeMap<_, _> = given.chain(more).collect();
            line[2] = flexvol_testing::json(merged);
            line
        };
        // One failure of each kind: arguments, options, tenant, directory, a secret in a place
        // whose value the driver may want to repeat, and broken JSON.
        let mut broken = with(&[]);
        broken[2].pop();
        let mut extra = with(&[]);
        extra.push(sent.to_owned());
        let mut nowhere = with(&[]);
        nowhere[1] = format!("{}/{}", sandbox.path("nowhere").display(), "canary-path");
        for line in [
            broken,
            extra,
            nowhere,
            with(&[("pool", "elsewhere")]),
            with(&[("colour", sent)]),
            with(&[("handle", sent)]),
            with(&[("pool", sent)]),
            with(&[("kubernetes.io/fsType", sent)]),
            with(&[("kubernetes.io/pod.namespace", sent)]),
            with(&[("kubernetes.io/pvOrVolumeName", sent)]),
        ] {
            let call = traced.call(&line);
            // kubelet logs the arguments on any other exit code.
            assert_eq!(call.exit, Some(0), "{call}");
            points.add(1);
        }
        // The driver ignores secrets, so it mounts or refuses. The first call runs mkfs.
        let call = traced.call(&with(&[]));
        assert_eq!(call.exit, Some(0), "{call}");
        points.add(1);
        pod.unmount().success();
    }
    assert!(traced.heard.get() > 0, "nothing was logged at all");
}

fn crashed(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, "");
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", SIZE);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    // The driver waits for this lock, and has read its arguments.
    let id = VolumeId::parse(&volume.id()).unwrap();
    let lock = lock::volume(&id, Duration::ZERO).unwrap();
    let mut child = Command::new("/bin/sh")
        .args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"])
        .arg(driver.executable())
        .args(pod.mount_arguments("rw"))
        .current_dir(sandbox.disk())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let executable = fs::canonicalize(driver.executable()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5) * patience();
    let is_limited = || {
        let limits = fs::read_to_string(process.join("limits")).unwrap();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let is_shell = fs::read_link(process.join("exe")).unwrap() != executable;
        !is_shell && line.unwrap().split_whitespace().nth(4) == Some("0")
    };
    while !is_limited() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let limited = is_limited();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    // As a panic ends it. Rust's runtime handles the first SIGSEGV itself, to detect a stack
    // overflow.
    signal::kill(pid, Signal::SIGABRT).unwrap();
    let status = child.wait().unwrap();
    drop(lock);
    assert!(limited, "no limit while it waited; {status:?}");
    assert_eq!(status.signal(), Some(Signal::SIGABRT as i32));
    assert!(!status.core_dumped(), "{status:?}");
    points.add(1);
}

struct Traced<'a> {
    /// Number of bytes that were logged.
    heard: Cell<usize>,
    log: PathBuf,
    driver: &'a Driver,
    journal: &'a Journal,
    sandbox: &'a Sandbox,
}

impl Traced<'_> {
    /// Whether the trace contains the start of a program, because an empty trace would prove nothing.
    fn logged(&self) -> bool {
        fs::read_to_string(&self.log).unwrap().contains("execve(")
    }

    fn call(&self, line: &[String]) -> Call {
        let strace = [
            "/usr/bin/strace",
            "-f",
            "-qq",
            "-s",
            "65536",
            "-e",
            "trace=execve",
            "-o",
        ];
        let strace = [&strace[..], &[self.log.to_str().unwrap()]].concat();
        let call = self.driver.call_through(&strace, line);
        assert!(self.logged());
        let trace = fs::read_to_string(&self.log).unwrap();
        // The first line is the driver's own start, whose arguments contain the secrets.
        let children = trace.lines().skip(1).collect::<Vec<_>>().join("\n");
        let logged = self.journal.read();
        self.heard.update(|heard| heard + logged.len());
        let mut seen = vec![
            ("the reply", call.output.clone()),
            ("a child's arguments", children.into_bytes()),
            ("the log", logged),
        ];
        fs::remove_file(&self.log).unwrap();
        fs::write(&self.log, "execve(").unwrap();
        for root in [
            self.sandbox.plugins(),
            self.sandbox.pool(),
            "/run/flexvol".into(),
        ] {
            files(&root, &mut seen);
        }
        for (place, bytes) in seen {
            for (key, value, sent) in SECRETS {
                for secret in [value.trim(), sent] {
                    let found = bytes
                        .windows(secret.len())
                        .any(|window| window == secret.as_bytes());
                    assert!(!found, "{key} is in {place}: {call}");
                }
            }
        }
        call
    }
}

/// Reads every small file. Images of volumes are larger.
fn files(root: &Path, seen: &mut Vec<(&str, Vec<u8>)>) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let found = entry.metadata().unwrap();
        seen.push((
            "a file's name",
            entry.file_name().as_encoded_bytes().to_vec(),
        ));
        if found.is_dir() {
            files(&entry.path(), seen);
        } else if found.is_file() && found.len() < 1 << 20 {
            seen.push(("a file", fs::read(entry.path()).unwrap()));
        }
    }
}
