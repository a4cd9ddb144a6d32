//! qemu's monitor (QMP): one line of JSON for each request and answer.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// A connection to a machine's monitor.
#[derive(Debug)]
pub struct Monitor {
    socket: BufReader<UnixStream>,
}

impl Monitor {
    pub fn connect(path: &Path) -> Result<Self> {
        let socket = UnixStream::connect(path).context("connect to qemu's monitor")?;
        let limit = Some(Duration::from_secs(30));
        socket
            .set_read_timeout(limit)
            .context("limit the monitor's time")?;
        let mut monitor = Monitor {
            socket: BufReader::new(socket),
        };
        monitor.line().context("hear qemu's greeting")?;
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Returns the answer to a command. Events in between are skipped.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.socket.get_mut(), "{line}").context("ask qemu's monitor")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("qemu refuses {command}: {error}");
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.socket
            .read_line(&mut line)
            .context("hear qemu's monitor")?;
        serde_json::from_str(&line).with_context(|| format!("read qemu's answer {line:?}"))
    }
}
