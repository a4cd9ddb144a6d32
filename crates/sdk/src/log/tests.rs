use super::*;
use crate::Callout;
use ::log::Log as _;
use std::{fs, path::PathBuf, time::Duration};

/// A log daemon's socket in a directory of its own.
struct Daemon {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Daemon {
    fn listen(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join(name)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Daemon { dir, socket }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> Log {
        let path = |name| self.path(name).display().to_string();
        Log::at(path("journald"), path("syslog"))
    }

    fn heard(&self) -> Vec<String> {
        let mut buffer = vec![0; 64 << 10];
        std::iter::from_fn(|| {
            let length = self.socket.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
        })
        .collect()
    }
}

fn failure(log: &Log, detail: &str) -> Option<String> {
    log::set_max_level(log::LevelFilter::Info);
    log.conclude(&Conclusion {
        outcome: Status::Failure,
        kind: Some(ErrorKind::NotFound),
        detail,
        ended: SystemTime::UNIX_EPOCH + Duration::from_millis(12),
    })
}

fn begin(log: &Log) {
    let json = r#"{"kubernetes.io/pvOrVolumeName":"v","kubernetes.io/secret/a":"aHVudGVyMg=="}"#;
    let arguments = ["mount", "/d", json].map(Into::into);
    let mut exec = Exec::new("disk".to_owned(), "mount", SystemTime::UNIX_EPOCH);
    exec.scrubber = Scrubber::of(&arguments);
    log.begin(exec);
    let callout = Callout::parse(&arguments).unwrap();
    log.describe(callout.subject().map(Cow::into_owned));
}

#[test]
fn journald_gets_every_field_and_no_secret() {
    let daemon = Daemon::listen("journald");
    let log = daemon.log();
    begin(&log);
    step("attach");
    step("format");
    let id = failure(&log, "no such volume: hunter2").unwrap();
    let heard = daemon.heard();
    assert_eq!(
        heard,
        [format!(
            "SYSLOG_IDENTIFIER=disk\nPRIORITY=3\nFLEXVOL_TIME=1970-01-01T00:00:00.012Z\n\
             FLEXVOL_ID={id}\nFLEXVOL_CALLOUT=mount\nFLEXVOL_VOLUME=v\n\
             FLEXVOL_STEPS=attach,format\nFLEXVOL_OUTCOME=Failure\nFLEXVOL_KIND=NotFound\n\
             FLEXVOL_MS=12\nMESSAGE=mount: no such volume: [secret]\n"
        )]
    );
    assert_eq!(id.len(), 6);
}

#[test]
fn syslog_is_second_and_records_share_the_id() {
    let daemon = Daemon::listen("syslog");
    let log = daemon.log();
    begin(&log);
    log.log(
        &::log::Record::builder()
            .level(::log::Level::Warn)
            .args(format_args!("login with hunter2"))
            .build(),
    );
    let id = failure(&log, "refused").unwrap();
    let heard = daemon.heard();
    assert_eq!(heard.len(), 2);
    for line in &heard {
        assert!(
            line.contains(&format!(" id={id} callout=mount volume=v ")),
            "{line}"
        );
    }
    assert!(
        heard[0].ends_with(r#" message="login with [secret]""#),
        "{}",
        heard[0]
    );
}

#[test]
fn nothing_is_opened_before_there_is_something_to_tell() {
    let daemon = Daemon::listen("journald");
    let log = daemon.log();
    begin(&log);
    assert!(log.channel.get().is_none());
}

#[test]
fn a_log_that_is_gone_or_full_neither_blocks_nor_fails() {
    let nowhere = Log::nowhere();
    begin(&nowhere);
    assert_eq!(failure(&nowhere, "refused"), None);

    let daemon = Daemon::listen("journald");
    let log = daemon.log();
    begin(&log);
    let taken = (0..10_000)
        .take_while(|_| failure(&log, "refused").is_some())
        .count();
    assert!(taken < 10_000, "the socket never filled");
    daemon.heard();
    fs::remove_file(daemon.path("journald")).unwrap();
    let dir = daemon.dir;
    drop(daemon.socket);
    assert_eq!(failure(&log, "refused"), None);
    drop(dir);
}
