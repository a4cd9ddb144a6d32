//! Absurd arguments for the executable: each call must answer with one line, quickly. Meanwhile everything
//! outside the sandbox is write-protected.

use crate::{node::UID, sandbox};
use flexvol_testing::{
    Call, Driver, Need, Outcome, PersistentVolume, Pod, Points, Random, Sandbox, below, budget,
    request, tests,
};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

tests! {
    "whatever the arguments, the answer is one line, soon and without a secret", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => hostile;
}

const EXECUTIONS: usize = 100_000;
const SIZE: u64 = 300 << 20;
/// Limit for the median call. The others may make a file system or wait for a lock.
const SOON: Duration = Duration::from_millis(200);
const NEVER: Duration = Duration::from_secs(60);

/// The secret of every `mount`: its value in the pod and as kubelet sends it.
const SECRET: (&str, &str) = ("canary-7f3a", "Y2FuYXJ5LTdmM2E=");
const SECRET_KEY: &str = "kubernetes.io/secret/";

/// Replacements for parts of the arguments.
const WORDS: [&[u8]; 40] = [
    b"",
    b"/",
    b"..",
    b"/..",
    b"/../",
    b"//",
    b".",
    b"-",
    b"--",
    b"-1",
    b"0",
    b"1",
    b"1e9",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551616",
    b"{",
    b"}",
    b"{}",
    b"[]",
    b"null",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\n",
    b"\x7f",
    b"\xff",
    "é".as_bytes(),
    b",\"handle\":\"\"",
    b"\"pool\":\"x\",",
    b"\"size\":\"16Ei\",",
    b"\"kubernetes.io/fsType\":\"ext4\",",
    b"\"kubernetes.io/readwrite\":\"ro\",",
    b"kubernetes.io/secret/",
    b"kubernetes.io/",
    b"\"kubernetes.io/pod.namespace\":\"other\",",
    b"/dev/loop0",
    b"/proc/self/fd/0",
    b"%s%n",
];

/// Words that are neither callouts nor verbs.
const UNKNOWN: [&str; 5] = ["waitfordetach", "Mount", "", "mount ", "initx"];

fn hostile(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, "");
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", SIZE);
    let pod = Pod::new(&sandbox, &driver, &volume, UID);
    pod.mount("rw").success();
    pod.unmount().success();
    let templates = templates(&volume, &pod);
    // The thread has a mount namespace of its own, which its children share.
    let calls = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            write_protect_all_but(&sandbox);
            throw(&driver, &templates)
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    points.add(u64::try_from(calls).unwrap());
}

/// One call each of those that kubelet and the provisioner make.
fn templates(volume: &PersistentVolume, pod: &Pod<'_>) -> Vec<Vec<OsString>> {
    let (dir, json) = (pod.dir().to_str().unwrap().to_owned(), volume.json("rw"));
    let key = format!("{SECRET_KEY}key");
    let secret = volume.json_with("rw", &[(&key, SECRET.1)]);
    let mut calls = vec![
        pod.mount_arguments("rw"),
        pod.expand_arguments(SIZE + (4 << 20), SIZE),
    ];
    let new = request("new", SIZE);
    for call in [
        &["init"][..],
        &["getvolumename", &json],
        &["attach", &json, "node"],
        &["waitforattach", "", &json],
        &["isattached", &json, "node"],
        &["detach", "pv", "node"],
        &["mountdevice", &dir, "", &json],
        &["unmountdevice", &dir],
        &["mount", &dir, &secret],
        &["mount", "/nowhere", &secret],
        &["unmount", &dir],
        &["expandvolume", &json, &dir, "314572801", "314572800"],
        &["expandfs", "314572801", "314572800", &json],
        &["provision", &new],
        &["delete", &json],
        &["capacity", "{}"],
    ] {
        calls.push(call.iter().map(|&argument| argument.to_owned()).collect());
    }
    let owned = |call: Vec<String>| call.into_iter().map(OsString::from).collect();
    calls.into_iter().map(owned).collect()
}

/// Makes all file systems read-only for this thread and its children, except the sandbox's and the test
/// executable's own tmpfs.
fn write_protect_all_but(sandbox: &Sandbox) {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    for mounted in below(Path::new("/")) {
        let ours = mounted.point.starts_with("/run") || mounted.point.starts_with(sandbox.root());
        if ours || mounted.read_only {
            continue;
        }
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        match mount(
            None::<&str>,
            &mounted.point,
            None::<&str>,
            flags,
            None::<&str>,
        ) {
            // Another mount covers it.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => panic!("write-protect {}: {error}", mounted.point.display()),
        }
    }
    for dir in ["/", "/usr", "/var"] {
        let probe = Path::new(dir).join(format!("flexvol-{}", std::process::id()));
        let error = fs::create_dir(&probe).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ReadOnlyFilesystem,
            "{dir}"
        );
    }
}

fn throw(driver: &Driver, templates: &[Vec<OsString>]) -> usize {
    let (started, seed) = (Instant::now(), budget().seed);
    let mut random = Random::new(seed);
    let (mut took, mut successes) = (Vec::new(), 0);
    while took.len() < EXECUTIONS && (took.is_empty() || budget().allows(started)) {
        let mut argv = templates[random.below(templates.len())].clone();
        for _ in 0..=random.below(4) {
            twist(&mut argv, &mut random);
        }
        let call = driver.call(&argv);
        let answer = check(&call, &argv);
        successes += usize::from(answer == Outcome::Success);
        took.push(call.took);
    }
    took.sort();
    let (half, last) = (took[took.len() / 2], took[took.len() - 1]);
    println!(
        "fuzz executable: {} executions, {successes} successes, half within {:.1} ms, all within {:.0} ms, seed {seed}",
        took.len(),
        half.as_secs_f64() * 1e3,
        last.as_secs_f64() * 1e3,
    );
    assert!(half < SOON, "half of the answers took longer than {half:?}");
    took.len()
}

fn twist(argv: &mut Vec<OsString>, random: &mut Random) {
    let at = random.below(argv.len());
    let other = argv[random.below(argv.len())].clone();
    match (random.below(8), at) {
        (0, 0) => argv[0] = UNKNOWN[random.below(UNKNOWN.len())].into(),
        (_, 0) => {}
        (1, _) => drop(argv.remove(at)),
        (2, _) => argv.insert(at, other),
        (3, _) => argv[at] = other,
        (4, _) => argv[at] = splice(&argv[at], random, 0),
        (5, _) => argv[at] = splice(&argv[at], random, 8),
        (6, _) => {
            let mut bytes = argv[at].as_bytes().to_vec();
            if !bytes.is_empty() {
                let place = random.below(bytes.len());
                bytes[place] = u8::try_from(1 + random.below(255)).unwrap();
            }
            argv[at] = OsStr::from_bytes(&bytes).to_owned();
        }
        _ => {
            let (bytes, turns) = (argv[at].as_bytes(), 1 << random.below(8));
            let many = bytes.repeat(turns);
            argv[at] = OsStr::from_bytes(&many[..many.len().min(100 << 10)]).to_owned();
        }
    }
}

/// Replaces at most `most` bytes of a text by a word.
fn splice(text: &OsStr, random: &mut Random, most: usize) -> OsString {
    let bytes = text.as_bytes();
    let from = random.below(bytes.len() + 1);
    let to = (from + random.below(most + 1)).min(bytes.len());
    let word = WORDS[random.below(WORDS.len())];
    OsStr::from_bytes(&[&bytes[..from], word, &bytes[to..]].concat()).to_owned()
}

fn check(call: &Call, argv: &[OsString]) -> Outcome {
    let has = |text: &str| {
        argv.iter()
            .any(|argument| contains(argument.as_bytes(), text))
    };
    assert!(call.took < NEVER, "{call}");
    let lines = call.output.iter().filter(|&&byte| byte == b'\n').count();
    assert!(call.output.ends_with(b"\n") && lines == 1, "{call}");
    let outcome = call.outcome();
    if let Outcome::Broken(why) = &outcome {
        panic!("{why}: {call}");
    }
    let failed = outcome != Outcome::Success && !has(SECRET_KEY);
    assert_eq!(call.exit, Some(i32::from(failed)), "{call}");
    if outcome == Outcome::Failure {
        let message = call.text("message");
        assert!(
            !message.is_empty() && !message.contains("panicked"),
            "{call}"
        );
        assert!(!call.text("errorClass").is_empty(), "{call}");
    }
    // If the key is intact, its value is a secret, wherever else the value occurs.
    if has(&format!("{SECRET_KEY}key\":\"{}\"", SECRET.1)) {
        assert!(!contains(&call.output, SECRET.0), "{call}");
        assert!(!contains(&call.output, SECRET.1), "{call}");
    }
    outcome
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}
