//! Channel to the machine's first process, which runs scripts: see `init.sh`.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// Output of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptOutput {
    /// A line of standard output or standard error.
    Line(String),
    /// The exit status; 128 and more after a signal. Nothing follows.
    End(i32),
}

/// Connection to the machine.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    buffer: Vec<u8>,
    /// Token that ends the output of the running script.
    token: Option<String>,
    /// Whether the last line was empty: if the end follows, that line break belongs to the end marker.
    empty: bool,
    /// A line that was read ahead.
    next: Option<ScriptOutput>,
}

impl Channel {
    pub fn connect(path: &Path) -> Result<Self> {
        let socket = UnixStream::connect(path).context("connect to the machine")?;
        Ok(Channel {
            socket,
            buffer: Vec::new(),
            token: None,
            empty: false,
            next: None,
        })
    }

    /// Waits for a line with this prefix, and returns the rest of it.
    pub fn wait_for(&mut self, start: &str, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let line = self.line(deadline)?;
            if let Some(rest) = line.strip_prefix(start) {
                return Ok(rest.to_owned());
            }
        }
    }

    /// Starts a script.
    pub fn start(&mut self, script: &str) -> Result<()> {
        ensure!(self.token.is_none(), "another script still runs");
        let token = random()?;
        let request = format!("{token} {}\n{script}", script.len());
        let sent = self.socket.write_all(request.as_bytes());
        sent.context("send a script")?;
        self.token = Some(token);
        self.empty = false;
        Ok(())
    }

    /// Returns the script's next line, or its end.
    pub fn next(&mut self, limit: Duration) -> Result<ScriptOutput> {
        if let Some(output) = self.next.take() {
            return Ok(output);
        }
        let token = self.token.clone().context("no script runs")?;
        let deadline = Instant::now() + limit;
        loop {
            let line = self.line(deadline)?;
            if let Some(status) = line.strip_prefix(&token) {
                self.token = None;
                let status = status.trim().parse().context("read a script's status")?;
                return Ok(ScriptOutput::End(status));
            }
            let was_empty = std::mem::replace(&mut self.empty, line.is_empty());
            match (was_empty, line.is_empty()) {
                (true, true) => return Ok(ScriptOutput::Line(line)),
                (true, false) => {
                    self.next = Some(ScriptOutput::Line(line));
                    return Ok(ScriptOutput::Line(String::new()));
                }
                (false, true) => {}
                (false, false) => return Ok(ScriptOutput::Line(line)),
            }
        }
    }

    /// Returns the script's whole output as bytes, and its status.
    pub fn bytes(&mut self, limit: Duration) -> Result<(Vec<u8>, i32)> {
        let token = self.token.take().context("no script runs")?;
        let end = format!("\n{token} ");
        let deadline = Instant::now() + limit;
        let mut searched = 0;
        loop {
            let found = find(&self.buffer[searched..], end.as_bytes()).map(|at| at + searched);
            if let Some(at) = found
                && let Some(line) = find(&self.buffer[at + end.len()..], b"\n")
            {
                let status = at + end.len();
                let text = String::from_utf8_lossy(&self.buffer[status..status + line]);
                let status: i32 = text.trim().parse().context("read a script's status")?;
                let rest = self.buffer.split_off(at + end.len() + line + 1);
                let mut bytes = std::mem::replace(&mut self.buffer, rest);
                bytes.truncate(at);
                return Ok((bytes, status));
            }
            searched = self.buffer.len().saturating_sub(end.len() + 8);
            self.read(deadline)?;
        }
    }

    fn line(&mut self, deadline: Instant) -> Result<String> {
        let mut searched = 0;
        loop {
            if let Some(at) = find(&self.buffer[searched..], b"\n") {
                let rest = self.buffer.split_off(searched + at + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                return Ok(String::from_utf8_lossy(&line[..line.len() - 1]).into_owned());
            }
            searched = self.buffer.len();
            self.read(deadline)?;
        }
    }

    fn read(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the machine says nothing more in time");
        let timeout = self.socket.set_read_timeout(Some(left));
        timeout.context("limit the machine's time")?;
        let mut bytes = vec![0; 64 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => bail!("the machine has ended"),
            Ok(read) => self.buffer.extend_from_slice(&bytes[..read]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("hear the machine"),
        }
        Ok(())
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|part| part == wanted)
}

/// Returns 128 random bits as hexadecimal digits.
fn random() -> Result<String> {
    let mut bytes = [0; 16];
    let mut source = File::open("/dev/urandom").context("open /dev/urandom")?;
    source.read_exact(&mut bytes).context("read /dev/urandom")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a channel with a running script, and the machine's end of it, which has sent this output.
    fn channel_with(output: &str, status: i32) -> (Channel, UnixStream) {
        let (socket, mut machine) = UnixStream::pair().unwrap();
        let mut channel = Channel {
            socket,
            buffer: Vec::new(),
            token: None,
            empty: false,
            next: None,
        };
        channel.start("true").unwrap();
        let token = channel.token.clone().unwrap();
        let expected = format!("{token} 4\ntrue");
        let mut request = vec![0; expected.len()];
        machine.read_exact(&mut request).unwrap();
        assert_eq!(String::from_utf8(request).unwrap(), expected);
        write!(machine, "{output}\n{token} {status}\n").unwrap();
        (channel, machine)
    }

    #[test]
    fn a_script_is_heard_line_by_line_with_or_without_a_last_end_of_line() {
        for output in ["a\n\nb\n", "a\n\nb"] {
            let (mut channel, _machine) = channel_with(output, 3);
            for line in ["a", "", "b"] {
                let heard = channel.next(Duration::from_secs(1)).unwrap();
                assert_eq!(heard, ScriptOutput::Line(line.to_owned()), "{output:?}");
            }
            assert_eq!(
                channel.next(Duration::from_secs(1)).unwrap(),
                ScriptOutput::End(3)
            );
        }
    }

    #[test]
    fn bytes_come_as_they_were_written() {
        for output in ["", "\n", "a\n\n", "\u{0}b"] {
            let (mut channel, _machine) = channel_with(output, 0);
            let (bytes, status) = channel.bytes(Duration::from_secs(1)).unwrap();
            assert_eq!((&*bytes, status), (output.as_bytes(), 0));
        }
    }

    #[test]
    fn a_machine_that_ends_or_is_silent_is_an_error() {
        let (mut channel, machine) = channel_with("", 0);
        channel.next(Duration::from_secs(1)).unwrap();
        channel.token = Some("never".to_owned());
        let silent = channel.next(Duration::from_millis(10)).unwrap_err();
        assert_eq!(silent.to_string(), "the machine says nothing more in time");
        drop(machine);
        let ended = channel.next(Duration::from_secs(1)).unwrap_err();
        assert_eq!(ended.to_string(), "the machine has ended");
    }
}
