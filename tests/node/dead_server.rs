//! A foreign loop device whose backing file is on a server that does not answer any more.

use crate::{
    by_hand::{error_of, stdout_of},
    frozen::processes,
    node::{Backend, Node},
};
use flexvol_testing::{Need, Points, patience, tests};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

tests! {
    "a loop device on a server that has died stops no volume, also with the number that a volume had",
        &[Need::Root, Need::Filesystem("fuse"), Need::Tool("losetup", "mount"), Need::Tool("mkfs.xfs", "xfsprogs")] => stale_hint;
    "adopt asks no loop device on a server that has died, though its file has the image's name, and names the image's own one",
        &[Need::Root, Need::Filesystem("fuse"), Need::Tool("losetup", "mount")] => adopted;
}

const SIZE: u64 = 64 << 20;

/// Serves one file, `img`, until it dies (linux/fuse.h).
pub struct Server {
    directory: PathBuf,
    /// The loop device on the file.
    attached: Option<String>,
    has_died: &'static AtomicBool,
}

impl Server {
    /// Serves the content of this file.
    pub fn start(directory: &Path, content: File) -> Server {
        fs::create_dir(directory).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let [source, kind] = ["server", "fuse"].map(Some);
        mount(
            source,
            directory,
            kind,
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .unwrap();
        let has_died: &AtomicBool = Box::leak(Box::default());
        thread::spawn(move || serve(&device, &content, has_died));
        Server {
            directory: directory.to_owned(),
            attached: None,
            has_died,
        }
    }

    pub fn image(&self) -> PathBuf {
        self.directory.join("img")
    }

    /// Whoever asks from now on waits, until this is revived or dropped.
    pub fn die(&self) {
        self.has_died.store(true, Ordering::SeqCst);
    }

    pub fn revive(&self) {
        self.has_died.store(false, Ordering::SeqCst);
    }

    /// Returns the name of a new loop device on the file.
    fn attach(&mut self) -> &str {
        self.attached.insert(attach(&self.image()))
    }
}

fn attach(image: &Path) -> String {
    let mut attaches = Command::new("losetup");
    let attached = attaches.args(["-f", "--show"]).arg(image).output().unwrap();
    assert!(attached.status.success(), "{attached:?}");
    let attached = String::from_utf8(attached.stdout).unwrap();
    attached.trim_end().to_owned()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.revive();
        if let Some(attached) = &self.attached {
            let detached = Command::new("losetup").args(["-d", attached]).status();
            if !detached.is_ok_and(|status| status.success()) {
                println!("{attached} stays attached");
            }
        }
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
    }
}

fn adopted(points: &Points) {
    let Node {
        sandbox, driver, ..
    } = Node::new(Backend::Loop);
    let zeros = tempfile::tempfile().unwrap();
    zeros.set_len(SIZE).unwrap();
    let mut server = Server::start(&sandbox.path("server"), zeros);
    server.attach();
    let image = sandbox.disk().join(server.image().file_name().unwrap());
    File::create_new(&image).unwrap().set_len(SIZE).unwrap();
    let own = attach(&image);
    server.die();
    let arguments = [
        "adopt",
        image.to_str().unwrap(),
        "--name",
        "taken",
        "--format",
    ];
    let refused = |part: &str| {
        let began = Instant::now();
        let why = error_of(&driver, &arguments);
        assert!(why.contains("is in use") && why.contains(part), "{why}");
        assert!(began.elapsed() < Duration::from_secs(10) * patience());
        assert_eq!(processes(&driver), 0);
        points.add(1);
    };
    refused(&format!("it is on {own}"));
    let opened = File::open(&image).unwrap();
    let detached = Command::new("losetup").args(["-d", &own]).status();
    assert!(detached.unwrap().success());
    refused("stop what has it open");
    drop(opened);
    stdout_of(&driver, &arguments);
    points.add(1);
}

fn serve(mut device: &File, content: &File, has_died: &AtomicBool) {
    let size = content.metadata().unwrap().len();
    let mut request = vec![0; 1 << 18];
    while let Ok(length) = device.read(&mut request) {
        while has_died.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(50));
        }
        if length < 40 {
            continue;
        }
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let body = match word(4) {
            // FORGET and BATCH_FORGET get no reply.
            2 | 42 => continue,
            // LOOKUP of the file, the only one.
            1 if request[40..].starts_with(b"img\0") => {
                Ok([words(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), attributes(2, size)].concat())
            }
            1 => Err(2),
            3 => Ok([words(&[0, 0, 0, 0]), attributes(long(16), size)].concat()),
            // OPEN, OPENDIR, READ, WRITE, and the requests that close.
            14 | 27 => Ok(words(&[0, 0, 0, 0])),
            15 => {
                let mut read = vec![0; word(56) as usize];
                let length = content.read_at(&mut read, long(48)).unwrap();
                read.truncate(length);
                Ok(read)
            }
            16 => {
                content
                    .write_all_at(&request[80..length], long(48))
                    .unwrap();
                Ok(words(&[word(56), 0]))
            }
            18 | 20 | 25 | 29 => Ok(Vec::new()),
            26 => Ok(words(&[
                7, 31, 65536, 0, 0, 65536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ])),
            _ => Err(38),
        };
        let (body, error) = match body {
            Ok(body) => (body, 0),
            Err(error) => (Vec::new(), -error),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = [length.to_ne_bytes(), i32::to_ne_bytes(error)].concat();
        let reply = [head, long(8).to_ne_bytes().to_vec(), body].concat();
        // The requesting process may have been killed.
        let _ = device.write(&reply);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct fuse_attr`.
fn attributes(inode: u64, size: u64) -> Vec<u8> {
    let (size, mode) = match inode {
        1 => (0, 0o40755),
        _ => (size, 0o100_600),
    };
    let longs = [inode, size, size / 512, 0, 0, 0].map(u64::to_ne_bytes);
    let rest = words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
    [longs.concat(), rest].concat()
}

fn stale_hint(points: &Points) {
    for backend in [Backend::Loop, Backend::HelloBlock] {
        beside(&Node::new(backend), points);
    }
}

fn beside(node: &Node, points: &Points) {
    let [volume, deleted] = ["pv", "deleted"].map(|name| node.volume(name));
    node.delete(&deleted).success();
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    pod.unmount().success();

    let zeros = tempfile::tempfile().unwrap();
    zeros.set_len(SIZE).unwrap();
    let mut server = Server::start(&node.sandbox.path("server"), zeros);
    // The volume's lock remembers the number of its last device.
    let lock = Path::new("/run/flexvol/lock").join(volume.id());
    let number = server.attach().trim_start_matches("/dev/loop");
    let lock = OpenOptions::new().write(true).open(lock).unwrap();
    lock.write_all_at(format!("{number:<10}\n").as_bytes(), 0)
        .unwrap();
    server.die();
    pod.mount("rw").success();
    node.expand(&volume, node.size() + (16 << 20)).success();
    pod.unmount().success();
    // A backup reads the image, so the driver has to look for the image's device under any number.
    let reader = File::open(volume.image(&node.sandbox)).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
    drop(reader);
    node.delete(&deleted).success();
    // The other driver has no verbs.
    let verbs: &[&str] = match node.backend {
        Backend::Loop => &["list", "gc"],
        _ => &[],
    };
    for verb in verbs {
        stdout_of(&node.driver, &[verb]);
    }
    // After a lazy unmount of the dead server, its file has no path any more.
    umount2(&server.directory, MntFlags::MNT_DETACH).unwrap();
    node.delete(&deleted).success();
    points.add(6);
    drop(server);
    node.delete(&volume).success();
}
