//! A file on a server of the test's own (FUSE, linux/fuse.h): it may die, or be slow.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Serves one file, `img`, as long as it answers.
pub struct Server {
    directory: PathBuf,
    state: Arc<State>,
}

pub struct State {
    /// What is in the file.
    content: File,
    has_died: AtomicBool,
    /// How long a mebibyte takes that is written.
    milliseconds: AtomicU64,
}

impl Server {
    /// `directory` is made; what is written to the file is in `content`.
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
        let state = Arc::new(State {
            content,
            has_died: AtomicBool::default(),
            milliseconds: AtomicU64::default(),
        });
        let serves = state.clone();
        thread::spawn(move || serves.serve(&device));
        Server {
            directory: directory.to_owned(),
            state,
        }
    }

    pub fn file(&self) -> PathBuf {
        self.directory.join("img")
    }

    /// It answers nothing as long as this is there.
    pub fn dies(&self) -> Dead {
        self.state.has_died.store(true, Ordering::SeqCst);
        Dead(self.state.clone())
    }

    /// A mebibyte that is written takes so long from now on.
    pub fn slow(&self, mebibyte: Duration) {
        let milliseconds = u64::try_from(mebibyte.as_millis()).unwrap();
        self.state
            .milliseconds
            .store(milliseconds, Ordering::SeqCst);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
    }
}

/// A server that answers nothing.
pub struct Dead(Arc<State>);

impl Drop for Dead {
    fn drop(&mut self) {
        self.0.has_died.store(false, Ordering::SeqCst);
    }
}

/// An error of the kernel, by its number.
type Answer = Result<Vec<u8>, i32>;

impl State {
    fn serve(&self, mut device: &File) {
        let mut request = vec![0; 1 << 18];
        while let Ok(length) = device.read(&mut request) {
            while self.has_died.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(50));
            }
            let request = &request[..length];
            // FORGET and BATCH_FORGET want no answer.
            if length < 40 || [2, 42].contains(&word(request, 4)) {
                continue;
            }
            let (body, error) = match self.answer(request) {
                Ok(body) => (body, 0),
                Err(error) => (Vec::new(), -error),
            };
            let length = u32::try_from(16 + body.len()).unwrap();
            let head = [length.to_ne_bytes(), i32::to_ne_bytes(error)].concat();
            let reply = [head, request[8..16].to_vec(), body].concat();
            // Whoever asked may have been killed.
            let _ = device.write(&reply);
        }
    }

    fn answer(&self, request: &[u8]) -> Answer {
        match word(request, 4) {
            // LOOKUP, of the file and of nothing else.
            1 if request[40..].starts_with(b"img\0") => {
                Ok([words(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), self.attributes(2)].concat())
            }
            1 => Err(2),
            3 => Ok([words(&[0, 0, 0, 0]), self.attributes(long(request, 16))].concat()),
            // OPEN, OPENDIR, and what closes and flushes.
            14 | 27 => Ok(words(&[0, 0, 0, 0])),
            18 | 20 | 25 | 29 => Ok(Vec::new()),
            15 => {
                let mut read = vec![0; word(request, 56) as usize];
                let length = self.content.read_at(&mut read, long(request, 48));
                read.truncate(length.map_err(|_| 5)?);
                Ok(read)
            }
            16 => {
                let written = &request[80..][..word(request, 56) as usize];
                self.content
                    .write_all_at(written, long(request, 48))
                    .map_err(|_| 5)?;
                let micros = 1000 * self.milliseconds.load(Ordering::SeqCst);
                let length = u64::try_from(written.len()).unwrap();
                thread::sleep(Duration::from_micros(micros * length / (1 << 20)));
                Ok(words(&[word(request, 56), 0]))
            }
            // INIT: writes of more than a page.
            26 => Ok(words(&[
                7, 31, 65536, 0x20, 0, 65536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ])),
            _ => Err(38),
        }
    }

    /// `struct fuse_attr`.
    fn attributes(&self, inode: u64) -> Vec<u8> {
        let (size, mode) = match inode {
            1 => (0, 0o40755),
            _ => (self.content.metadata().unwrap().len(), 0o100_600),
        };
        let longs = [inode, size, size / 512, 0, 0, 0].map(u64::to_ne_bytes);
        let rest = words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]);
        [longs.concat(), rest].concat()
    }
}

fn word(request: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(request[at..at + 4].try_into().unwrap())
}

fn long(request: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(request[at..at + 8].try_into().unwrap())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
