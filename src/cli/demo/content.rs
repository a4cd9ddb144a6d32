//! A file that must be the same, byte for byte, whatever happens to its volume.

use anyhow::{Context, Result, ensure};
use flexvol_storage::{
    host::exec::{AtDeadline, Limits, Tool},
    sdk::{Bytes, ErrorKind},
};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    path::Path,
    time::Duration,
};

pub const SIZE: Bytes = Bytes(32 << 20);
const CHUNK: usize = 64 << 10;

/// Bytes that no file system compresses or guesses (xorshift64; Marsaglia, 2003).
struct Noise(u64);

impl Noise {
    fn new() -> Self {
        Noise(0x9e37_79b9_7f4a_7c15)
    }

    fn fill(&mut self, chunk: &mut [u8]) {
        for word in chunk.chunks_exact_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes());
        }
    }
}

/// Writes the file and makes it durable.
pub fn write(path: &Path) -> Result<()> {
    let write = || {
        let mut file = BufWriter::new(File::create_new(path)?);
        let (mut noise, mut chunk) = (Noise::new(), [0; CHUNK]);
        for _ in 0..SIZE.0 / CHUNK as u64 {
            noise.fill(&mut chunk);
            file.write_all(&chunk)?;
        }
        file.into_inner()?.sync_all()
    };
    write().context("write the demo's file")
}

/// Reads the whole file and compares it with what was written.
pub fn verify(path: &Path) -> Result<()> {
    let compare = || -> std::io::Result<bool> {
        let mut file = BufReader::new(File::open(path)?);
        let (mut noise, mut expected, mut found) = (Noise::new(), [0; CHUNK], [0; CHUNK]);
        for _ in 0..SIZE.0 / CHUNK as u64 {
            noise.fill(&mut expected);
            file.read_exact(&mut found)?;
            if found != expected {
                return Ok(false);
            }
        }
        Ok(file.read(&mut found)? == 0)
    };
    let same = compare().context("read the demo's file")?;
    ensure!(same, "the demo's file is not what was written");
    Ok(())
}

/// What `sha256sum` says about the file; nothing where there is no such program.
pub fn checksum(path: &Path) -> Result<Option<String>> {
    let said = run("sha256sum", &[path.as_os_str()])?;
    let sum = said.and_then(|said| said.split_whitespace().next().map(str::to_owned));
    Ok(sum)
}

/// What `df` says about the file system, a line of titles and a line of numbers.
pub fn space(dir: &Path) -> Result<Option<String>> {
    let columns = "--output=fstype,size,used,avail,pcent".as_ref();
    run("df", &["-h".as_ref(), columns, dir.as_os_str()])
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<Option<String>> {
    let tool = match Tool::find(program) {
        Err(missing) if missing.kind() == ErrorKind::ToolMissing => return Ok(None),
        tool => tool?,
    };
    let limits = Limits {
        deadline: Duration::from_secs(60),
        at_deadline: AtDeadline::Kill,
        hold: &[],
    };
    let output = tool.run(arguments, &limits)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(output.status.success().then_some(said))
}
