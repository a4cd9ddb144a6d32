//! A disk that answers nothing any more, beside one that is well.

use crate::{dead_server::Server, frozen::processes, sandbox};
use flexvol_testing::{Driver, Need, Points, Sandbox, eventually, patience, tests};
use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Filesystem("fuse"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("timeout", "coreutils"),
];

tests! {
    "what a callout left behind at a dead disk stops no other driver, and no pool that was moved", NEEDS => callout;
    "callouts of a healthy pool leave one process at a dead disk beside it", NEEDS => beside;
    "list, gc and doctor leave no second process at a dead disk", NEEDS => verbs;
}

/// The mounted ext4 of a disk that dies before anybody has looked into it. Who does waits in the kernel, and no signal
/// ends that.
struct Dead {
    server: Server,
    directory: PathBuf,
}

impl Dead {
    /// A disk with a pool `a`.
    fn new(sandbox: &Sandbox) -> Dead {
        let [content, directory] = ["dead.img", "dead"].map(|name| sandbox.path(name));
        let file = File::create_new(&content).unwrap();
        file.set_len(512 << 20).unwrap();
        fs::create_dir(&directory).unwrap();
        run("mkfs.ext4", &["-q", "-F"], &[&content]);
        let mount = |image: &Path| run("mount", &["-o", "loop"], &[image, &directory]);
        mount(&content);
        sandbox.make_pool(&directory.join("a"));
        umount2(&directory, MntFlags::empty()).unwrap();
        let file = File::options().read(true).write(true).open(&content);
        let server = Server::start(&sandbox.path("server"), file.unwrap());
        mount(&server.image());
        server.die();
        Dead { server, directory }
    }

    fn pool(&self) -> PathBuf {
        self.directory.join("a")
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        self.server.revive();
        let limit = Instant::now() + Duration::from_secs(10);
        // Until what was left behind has ended.
        while umount2(&self.directory, MntFlags::empty()) == Err(Errno::EBUSY) {
            if Instant::now() > limit {
                println!("{} stays mounted", self.directory.display());
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn run(program: &str, options: &[&str], paths: &[&Path]) {
    let ended = Command::new(program).args(options).args(paths).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{program}: {ended:?}");
}

fn install(sandbox: &Sandbox, name: &str, pools: &[(&str, &Path)]) -> Driver {
    let pools = pools
        .iter()
        .map(|(name, path)| format!("[pools.{name}]\npath = {path:?}\nreserve = \"0%\"\n"));
    let text = format!("backend = \"loop\"\n{}", pools.collect::<String>());
    sandbox.install_with(name, &text)
}

const CAPACITY: [&str; 2] = ["capacity", r#"{"pool":"default"}"#];

fn callout(points: &Points) {
    let sandbox = sandbox();
    let dead = Dead::new(&sandbox);
    let well = sandbox.pool();
    let driver = install(&sandbox, "example.com/disk", &[("default", &dead.pool())]);
    let other = install(&sandbox, "example.org/fast", &[("default", &well)]);
    for said in ["did not answer", "an earlier call"] {
        let call = driver.call(&CAPACITY);
        assert!(call.failure().contains(said), "{call}");
        assert_eq!(processes(&driver), 1, "{call}");
        points.add(1);
    }
    other.call(&CAPACITY).success();
    let moved = install(&sandbox, "example.com/disk", &[("default", &well)]);
    moved.call(&CAPACITY).success();
    points.add(2);
    drop(dead);
    expect_none_left(&driver);
}

fn beside(points: &Points) {
    let sandbox = sandbox();
    let dead = Dead::new(&sandbox);
    let pools: [(&str, &Path); 2] = [("a", &dead.pool()), ("default", &sandbox.pool())];
    let driver = install(&sandbox, "example.com/both", &pools);
    for _ in 0..3 {
        let call = driver.call(&CAPACITY).success();
        assert_eq!(processes(&driver), 1, "{call}");
        points.add(1);
    }
    drop(dead);
    expect_none_left(&driver);
    driver.call(&CAPACITY).success();
}

fn verbs(points: &Points) {
    let sandbox = sandbox();
    let dead = Dead::new(&sandbox);
    let pools: [(&str, &Path); 2] = [("a", &dead.pool()), ("default", &sandbox.pool())];
    let driver = install(&sandbox, "example.com/both", &pools);
    let plugins = sandbox.plugins();
    let doctor = ["doctor", "--plugin-dir", plugins.to_str().unwrap()];
    // `doctor` also asks whether the dead pool is beside the other one, and is left there once.
    let calls: [(&[&str], usize); 5] = [
        (&["list"], 1),
        (&["list"], 1),
        (&["gc"], 1),
        (&doctor, 2),
        (&doctor, 2),
    ];
    for (number, (arguments, left)) in calls.into_iter().enumerate() {
        let began = Instant::now();
        let output = verb(&driver, arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("does not answer"), "{arguments:?}: {text}");
        // The first one waits for ten seconds.
        let limit = Duration::from_secs(8) * patience();
        assert!(number == 0 || began.elapsed() < limit, "{arguments:?}");
        assert_eq!(processes(&driver), left, "{arguments:?}");
        points.add(1);
    }
    // What takes its place answers.
    umount2(&dead.directory, MntFlags::MNT_DETACH).unwrap();
    fs::create_dir(dead.pool()).unwrap();
    let init = ["pool", "init", "--replace"];
    run(
        driver.executable().to_str().unwrap(),
        &init,
        &[&dead.pool()],
    );
    let listed = verb(&driver, &["list"]);
    assert!(listed.status.success(), "{listed:?}");
    drop(dead);
    expect_none_left(&driver);
}

fn verb(driver: &Driver, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    let seconds = (30 * patience()).to_string();
    command.args(["--signal=KILL", &seconds]);
    command.arg(driver.executable()).args(arguments);
    command.output().unwrap()
}

fn expect_none_left(driver: &Driver) {
    eventually(
        Duration::from_secs(10) * patience(),
        "what was left behind to end",
        || processes(driver) == 0,
    );
}
