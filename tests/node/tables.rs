//! Foreign mount tables that a callout reads: their size, their owners, and the memory that a callout takes for
//! them.

use crate::{
    node::{MIB, vendor},
    sandbox,
};
use flexvol_host::mountinfo;
use flexvol_testing::{Need, PersistentVolume, Pod, Points, Sandbox, tests};
use std::{
    fs::{self, File},
    io::Read,
    ops::ControlFlow,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

tests! {
    "a callout's memory does not depend on what others have mounted", &[Need::Root, Need::Tool("unshare", "util-linux")]
        => flood;
    "a volume that only a process with another root sees is in use", &[Need::Root, Need::Tool("unshare", "util-linux")]
        => other_root;
    "a volume below a root that another mount covers is in use", &[Need::Root, Need::Tool("unshare", "util-linux")]
        => covered_root;
    "a mount namespace is looked at as often, however many roots its processes have", &[Need::Root, Need::Tool("unshare", "util-linux"), Need::Tool("python3", "python3")]
        => many_roots;
    "a container whose first thread has ended keeps its volume", &[Need::Root, Need::Tool("unshare", "util-linux"), Need::Tool("python3", "python3")]
        => first_thread_ended;
    "a callout that inherits protection from the OOM killer lays it down", &[Need::Root, Need::SysResource, Need::Tool("mkfs.xfs", "xfsprogs")]
        => protection;
}

/// Processes in namespaces of their own, which end when their input does.
struct Others(Child);

impl Others {
    /// Starts `script`, whose children inherit its input, and waits until so many processes have written a line.
    fn new(processes: usize, namespaces: &[&str], script: &str, arguments: &[&Path]) -> Self {
        let mut child = Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-ec", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = child.stdout.as_mut().unwrap();
        let told = told.read_exact(&mut vec![0; processes]);
        told.expect("a namespace with its mounts");
        Others(child)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Makes a directory in which a namespace can mount without effect on others.
fn place(sandbox: &Sandbox) -> std::path::PathBuf {
    let place = sandbox.path("place");
    fs::create_dir(&place).unwrap();
    place
}

/// As every user with a user namespace can.
fn flood(points: &Points) {
    let sandbox = sandbox();
    let driver = vendor(&sandbox, "hello-directory");
    let volume = PersistentVolume::provision(&driver, "data", "", 64 * MIB);
    let place = place(&sandbox);
    let flood = r#"
        mount --rbind / "$0"
        mount -t tmpfs none "$0/mnt"
        mkdir "$0/mnt/a" "$0/mnt/b"
        mount -t tmpfs none "$0/mnt/a"
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
            mkdir "$0/mnt/a/$i"
        done
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
            mount --rbind "$0/mnt/a" "$0/mnt/b"
            mount --rbind "$0/mnt/b" "$0/mnt/a/$i"
            umount -l "$0/mnt/b"
        done
        exec 3<&0
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
            chroot "$0" sh -c 'echo; exec cat' <&3 &
        done
        exec chroot "$0" sh -c 'echo; exec cat'
    "#;
    let namespaces = [
        "--user",
        "--map-root-user",
        "--mount",
        "--propagation",
        "private",
    ];
    let _others = Others::new(31, &namespaces, flood, &[&place]);
    let limited = ["/bin/sh", "-c", "ulimit -v 49152 && exec \"$@\"", "sh"];
    let delete = driver.call_through(&limited, &["delete", &volume.json("rw")]);
    delete.success();
    assert!(!volume.image(&sandbox).exists());
    points.add(1);
}

/// The first of two processes sees nothing of the volume, and no process sees everything.
fn other_root(points: &Points) {
    in_use_below(points, "");
}

/// The topmost mount of the namespace's root hides it.
fn covered_root(points: &Points) {
    in_use_below(points, "mount -t tmpfs none /");
}

/// Mounts a volume below the root of only the second of two processes, and then runs `then` there.
fn in_use_below(points: &Points, then: &str) {
    let sandbox = sandbox();
    let driver = vendor(&sandbox, "hello-directory");
    let volume = PersistentVolume::provision(&driver, "data", "", 64 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let place = place(&sandbox);
    let rooted = format!(
        r#"
        mount -t tmpfs none "$0"
        mkdir "$0/one" "$0/two"
        mount --bind / "$0/one"
        mount --bind / "$0/two"
        mount --bind "$1" "$0/two/mnt"
        umount "$1"
        exec 3<&0
        chroot "$0/one" sh -c 'echo; exec cat' <&3 &
        {then}
        exec chroot "$0/two" sh -c 'echo; exec cat'
    "#
    );
    let others = Others::new(
        2,
        &["--mount", "--propagation", "private"],
        &rooted,
        &[&place, pod.dir()],
    );
    pod.unmount().success();
    let refused = driver.call(&["delete", &volume.json("rw")]);
    drop(others);
    assert!(refused.failure().contains("still mounted"), "{refused}");
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(1);
}

/// Many root directories, each of which shows the counted mount.
fn many_roots(points: &Points) {
    let sandbox = sandbox();
    let place = place(&sandbox);
    let roots = r#"
        mount -t tmpfs none "$0"
        mkdir -p "$0/1/2/3/4/5/6/7/8/9/counted"
        mount -t tmpfs none "$0/1/2/3/4/5/6/7/8/9/counted"
        exec python3 -c '
import os, sys
root = sys.argv[1]
for level in range(1, 10):
    root += "/%d" % level
    if level == 9 or os.fork() == 0:
        break
os.chroot(root)
os.write(1, b".")
os.read(0, 1)
' "$0"
    "#;
    let _others = Others::new(
        9,
        &["--mount", "--propagation", "private"],
        roots,
        &[&place],
    );
    let mut shown = 0;
    let all = mountinfo::find_anywhere(|line| {
        shown += u64::from(line.mount_point().ends_with("counted"));
        ControlFlow::Continue(())
    });
    assert!(!all.unwrap());
    // From the first root, and from the namespace's own.
    assert_eq!(shown, 2);
    points.add(1);
}

fn first_thread_ended(points: &Points) {
    let sandbox = sandbox();
    let driver = vendor(&sandbox, "hello-directory");
    let volume = PersistentVolume::provision(&driver, "data", "", 64 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    // SYS_exit ends only the calling thread, here after the other one has begun.
    let program = r#"
import ctypes, os, platform, sys, threading, time
def second():
    while "Z" not in open("/proc/self/stat").read().rsplit(")", 1)[1]:
        time.sleep(0.01)
    os.write(1, b"\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=second).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"#;
    // When a directory is removed, the kernel unmounts what is mounted on it in every namespace.
    let script = format!("mount --bind \"$1\" \"$0\"; exec python3 -c '{program}'");
    let place = place(&sandbox);
    let namespaces = ["--mount", "--propagation", "private"];
    let others = Others::new(1, &namespaces, &script, &[&place, pod.dir()]);
    pod.unmount().success();
    let refused = driver.call(&["delete", &volume.json("rw")]);
    drop(others);
    assert!(refused.failure().contains("still mounted"), "{refused}");
    driver.call(&["delete", &volume.json("rw")]).success();
    points.add(1);
}

/// kubelet's own `oom_score_adj` is inherited by its children.
fn protection(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/protected", false, "reserve = \"0%\"");
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(format!("/run/flexvol/lock/{}", volume.id()))
        .unwrap();
    // The callout waits for this lock while it is examined.
    lock.lock().unwrap();
    for (inherited, expected) in [("-999", "0"), ("500", "500")] {
        let script = format!("echo {inherited} > /proc/self/oom_score_adj && exec \"$@\"");
        let mut callout = Command::new("sh")
            .args(["-c", &script, "sh"])
            .arg(driver.executable())
            .args(pod.mount_arguments("rw"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let score = |process: &str| fs::read_to_string(format!("/proc/{process}/oom_score_adj"));
        let own = callout.id().to_string();
        let end = Instant::now() + Duration::from_secs(10);
        let scores = loop {
            let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
            let scores: Vec<String> = children
                .unwrap()
                .split_whitespace()
                .chain([&*own])
                .map(|process| score(process).unwrap().trim().to_owned())
                .collect();
            if scores.len() == 2 || Instant::now() > end {
                break scores;
            }
            thread::sleep(Duration::from_millis(10));
        };
        callout.kill().unwrap();
        callout.wait().unwrap();
        assert_eq!(scores, [expected; 2], "inherited {inherited}");
        points.add(1);
    }
    drop(lock);
    driver.call(&["delete", &volume.json("rw")]).success();
}
