//! A mounted ext4 on a disk that may stop to answer, and what is left of processes that waited for it.

use crate::{dead_server::Server, frozen::processes};
use flexvol_testing::{Driver, eventually};
use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// A mounted ext4.
pub struct Disk(pub PathBuf);

impl Disk {
    /// A new one, in a new image.
    pub fn new(image: &Path, directory: PathBuf) -> Disk {
        let file = File::create_new(image).unwrap();
        file.set_len(512 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F"], &[image]);
        fs::create_dir(&directory).unwrap();
        Disk::mount(image, directory)
    }

    fn mount(image: &Path, directory: PathBuf) -> Disk {
        run("mount", &["-o", "loop"], &[image, &directory]);
        Disk(directory)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let limit = Instant::now() + Duration::from_secs(10);
        // Until what was left behind has ended.
        while umount2(&self.0, MntFlags::empty()) == Err(Errno::EBUSY) {
            if Instant::now() > limit {
                println!("{} stays mounted", self.0.display());
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The disk, and the server of its image, which can die. A process that waits for it then is not ended by a signal.
pub struct Dying {
    pub disk: Disk,
    pub server: Server,
}

impl Dying {
    /// Mounts an image by a server in the directory `at`.
    pub fn mount(image: &Path, at: &Path, directory: PathBuf) -> Dying {
        let file = File::options().read(true).write(true).open(image);
        let server = Server::start(at, file.unwrap());
        let disk = Disk::mount(&server.image(), directory);
        Dying { disk, server }
    }
}

impl Drop for Dying {
    fn drop(&mut self) {
        // The disk cannot be unmounted before.
        self.server.revive();
    }
}

pub fn run(program: &str, options: &[&str], paths: &[&Path]) {
    let ended = Command::new(program).args(options).args(paths).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{program}: {ended:?}");
}

pub fn expect_none_left(driver: &Driver) {
    eventually(
        Duration::from_secs(10),
        "what was left behind to end",
        || processes(driver) == 0,
    );
}
