//! Running machines.

use super::{
    channel::{Channel, ScriptOutput},
    emulator::{PAYLOAD_BYTES, Start},
    image::Image,
    monitor::Monitor,
    setup::{PAYLOAD, Setup},
};
use crate::command::run;
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;

/// Timeout of a start on a busy machine. A cold start takes six seconds on an idle one.
const START: Duration = Duration::from_secs(180);

/// Result of a script.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status; 128 and more after a signal.
    pub status: i32,
    /// Standard output and standard error, as one stream.
    pub output: String,
}

impl Outcome {
    /// Returns the output of a successful script.
    ///
    /// # Errors
    /// When the script failed, with its output.
    pub fn success(self) -> Result<String> {
        ensure!(
            self.status == 0,
            "status {}: {}",
            self.status,
            self.output.trim_end()
        );
        Ok(self.output)
    }
}

/// A machine. It is reset when dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct Machine {
    qemu: Child,
    channel: Channel,
    /// Number of bytes mounted from the disk for files.
    mounted: u64,
    /// Sockets, temporary disks, and the console.
    own: TempDir,
}

impl Machine {
    /// Boots an image. Returns the machine, and how many seconds its kernel ran until it was ready.
    pub(super) fn boot_image(setup: &Setup, image: &Image, words: &str) -> Result<(Self, f64)> {
        let mut machine = Machine::start_qemu(setup, image, words, None)?;
        let ready = machine.channel.wait_for("ready ", START);
        let seconds = machine.explain(ready)?;
        let seconds = seconds.trim().parse().context("how long the machine ran")?;
        Ok((machine, seconds))
    }

    pub(super) fn start_qemu(
        setup: &Setup,
        image: &Image,
        words: &str,
        state: Option<&Path>,
    ) -> Result<Self> {
        let own = tempfile::Builder::new()
            .prefix("vm-")
            .tempdir_in(&setup.directory)
            .context("make the machine's directory")?;
        let disks = setup.disks(own.path())?;
        let start = Start {
            image,
            words,
            directory: own.path(),
            disks: &disks,
            console: setup.console,
            state,
        };
        let mut qemu = start.spawn()?;
        let deadline = Instant::now() + START;
        // qemu listens as soon as it has read its command line.
        let channel = loop {
            match Channel::connect(&own.path().join("channel")) {
                Ok(channel) => break channel,
                Err(error) => {
                    let status = qemu.try_wait().context("look after qemu")?;
                    if let Some(status) = status {
                        bail!("qemu: {status}\n{}", last_words(own.path()));
                    }
                    if Instant::now() > deadline {
                        // Nothing else would end qemu.
                        let _ = qemu.kill();
                        return Err(error);
                    }
                }
            }
            thread::sleep(Duration::from_millis(10));
        };
        Ok(Machine {
            qemu,
            channel,
            mounted: 0,
            own,
        })
    }

    /// Sets the clock, and drops cached data of the snapshot's disks.
    pub(super) fn greet(&mut self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.context("read the clock")?.as_secs_f64();
        let script = format!(
            "date -s @{now:.3} >/dev/null && for disk in /dev/vd?; do blockdev --flushbufs $disk; done"
        );
        let outcome = self.run(&script, START).context("start the machine")?;
        outcome.success().context("set the machine's clock")?;
        Ok(())
    }

    /// Returns qemu's process id.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.qemu.id()
    }

    pub(super) fn monitor(&self) -> Result<Monitor> {
        Monitor::connect(&self.own.path().join("monitor"))
    }

    /// Runs a bash script to completion.
    ///
    /// # Errors
    /// When it takes longer than `limit`, after which the machine is unusable, or when the machine ends.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Outcome> {
        self.start(script)?;
        let deadline = Instant::now() + limit;
        let mut output = String::new();
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now()))? {
                ScriptOutput::Line(line) => output += &format!("{line}\n"),
                ScriptOutput::End(status) => return Ok(Outcome { status, output }),
            }
        }
    }

    /// Starts a bash script. [`Machine::next`] returns its output.
    ///
    /// # Errors
    /// When the machine has ended, or another script is running.
    pub fn start(&mut self, script: &str) -> Result<()> {
        let started = self.channel.start(script);
        self.explain(started)
    }

    /// Returns the script's next line, or its end.
    ///
    /// # Errors
    /// When there is none in time, or the machine has ended.
    pub fn next(&mut self, limit: Duration) -> Result<ScriptOutput> {
        let output = self.channel.next(limit);
        self.explain(output)
    }

    /// Copies a file or directory from the host into the machine, with its mode.
    ///
    /// # Errors
    /// When it cannot be read on the host or written in the machine.
    pub fn put(&mut self, from: &Path, to: &str) -> Result<()> {
        if from.is_dir() {
            let archive = self.own.path().join("archive");
            let mut tar = Command::new("tar");
            run(tar.arg("-C").arg(from).arg("-cf").arg(&archive).arg("."))?;
            let to = quoted(to);
            return self.send(&archive, &format!("mkdir -p {to} && tar -C {to} -x"));
        }
        let found = fs::metadata(from).with_context(|| format!("look at {}", from.display()))?;
        let (mode, to) = (found.permissions().mode() & 0o7777, quoted(to));
        let script = format!("mkdir -p \"$(dirname {to})\" && cat >{to} && chmod {mode:o} {to}");
        self.send(from, &script)
    }

    /// Copies an executable without its symbols, which are most of it.
    ///
    /// # Errors
    /// When it cannot be read on the host or written in the machine.
    pub fn put_executable(&mut self, from: &Path, to: &str) -> Result<()> {
        let stripped = self.own.path().join("executable");
        run(Command::new("strip").arg("-o").arg(&stripped).arg(from))?;
        self.put(&stripped, to)
    }

    /// Mounts a file system image read-only at a directory of the machine: the fastest way to bring in a lot of data of
    /// which only a part is read.
    ///
    /// # Errors
    /// When it cannot be read on the host or mounted in the machine, or an image is mounted already.
    pub fn mount(&mut self, image: &Path, at: &str) -> Result<()> {
        ensure!(self.mounted == 0, "an image is mounted already");
        let bytes = self.load(image)?;
        let at = quoted(at);
        let mount = format!("mkdir -p {at} && mount -o ro /dev/vde {at}");
        let mounted = self.run(&mount, START)?.success();
        mounted.with_context(|| format!("mount {} in the machine", image.display()))?;
        self.mounted = bytes.next_multiple_of(4096);
        Ok(())
    }

    /// Copies a file of the host to the disk for files, behind the mounted image.
    fn load(&self, file: &Path) -> Result<u64> {
        let copy = || -> Result<u64> {
            let disk = OpenOptions::new()
                .write(true)
                .open(self.own.path().join(PAYLOAD));
            let mut disk = disk.context("open the disk for files")?;
            disk.seek(SeekFrom::Start(self.mounted))
                .context("find a place on it")?;
            let mut input = File::open(file).context("open it")?;
            let bytes = input.metadata().context("measure it")?.len();
            ensure!(
                bytes <= PAYLOAD_BYTES - self.mounted,
                "it has more than {PAYLOAD_BYTES} bytes"
            );
            io::copy(&mut input, &mut disk).context("write the disk for files")
        };
        copy().with_context(|| format!("send {}", file.display()))
    }

    /// Runs a script with a file of the host as its input. The file comes on a disk, which is many times faster than
    /// the channel.
    fn send(&mut self, file: &Path, script: &str) -> Result<()> {
        let bytes = self.load(file)?;
        // Direct I/O, because the kernel's cache may have the former content.
        let read = "dd if=/dev/vde bs=1M iflag=direct,count_bytes,skip_bytes status=none";
        let (start, whole) = (self.mounted, bytes.next_multiple_of(4096));
        let script =
            format!("{read} skip={start} count={whole} | head -c {bytes} | {{ {script}; }}");
        let sent = self.run(&script, START)?.success();
        sent.with_context(|| format!("copy {} into the machine", file.display()))?;
        Ok(())
    }

    /// Copies a file from the machine to the host.
    ///
    /// # Errors
    /// When it cannot be read in the machine or written on the host.
    pub fn get(&mut self, from: &str, to: &Path) -> Result<()> {
        self.start(&format!("cat {}", quoted(from)))?;
        let answer = self.channel.bytes(START);
        let (bytes, status) = self.explain(answer)?;
        ensure!(
            status == 0,
            "read {from} in the machine: {}",
            String::from_utf8_lossy(&bytes).trim_end()
        );
        fs::write(to, bytes).with_context(|| format!("write {}", to.display()))
    }

    /// Resets the machine. All its writes until then are on its disks, even those that were not flushed; a record of
    /// the writes tells what a power cut might have lost.
    pub fn cut(self) {}

    /// Lets the machine sync its disks and power off.
    ///
    /// # Errors
    /// When the machine does not power off.
    pub fn shut_down(mut self) -> Result<()> {
        self.start("sync; echo o >/proc/sysrq-trigger; sleep 60")?;
        let deadline = Instant::now() + START;
        while self.qemu.try_wait().context("wait for qemu")?.is_none() {
            ensure!(Instant::now() < deadline, "the machine does not power off");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Adds the last output of the machine's kernel and of qemu to an error.
    fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let words = last_words(self.own.path());
            if words.is_empty() {
                return error;
            }
            error.context(format!("the machine's console, at its end:\n{words}"))
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // qemu may have ended by itself.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn last_words(own: &Path) -> String {
    let mut words = String::new();
    for name in ["console", "errors"] {
        // A console on the terminal has no file.
        let bytes = fs::read(own.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(30)..] {
            words += &format!("  {}\n", line.trim_end());
        }
    }
    words
}

/// Quotes a word for a shell script.
#[must_use]
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_scripts_mean_themselves() {
        let word = r#"a 'b' "$c" \d"#;
        let echoed = run(Command::new("bash").args(["-c", &format!("printf %s {}", quoted(word))]));
        assert_eq!(echoed.unwrap(), word);
    }
}
