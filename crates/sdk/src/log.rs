//! Logging on the node, to journald or else to syslog.
//!
//! An exec with nothing to log opens no socket. Logging is best effort: a record that the socket does not accept at
//! once is lost. Nothing is written to standard error, since callers read it as part of the reply.

use crate::{ErrorKind, Secret, Status, scrub::Scrubber};
use std::{
    borrow::Cow,
    cell::RefCell,
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    os::unix::net::UnixDatagram,
    path::Path,
    process,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError},
    time::SystemTime,
};

mod wire;

/// The destination of events and of the records of the `log` crate.
///
/// Every event has the same journald fields: `FLEXVOL_TIME` (RFC 3339, UTC), `FLEXVOL_ID` (six hexadecimal digits
/// for each process), `FLEXVOL_CALLOUT`, `FLEXVOL_VOLUME`, `FLEXVOL_STEPS` (the names given to [`step`],
/// comma-separated), `FLEXVOL_OUTCOME` (the reply's status), `FLEXVOL_KIND` (an [`ErrorKind`]), `FLEXVOL_MS` and
/// `MESSAGE` (the error with its private causes). Syslog gets them as `key=value` pairs. A record of the `log`
/// crate has the first four and `MESSAGE`. Secrets of the exec are replaced in all of them.
pub struct Log {
    journald: Cow<'static, str>,
    syslog: Cow<'static, str>,
    channel: OnceLock<Option<Channel>>,
    exec: Mutex<Exec>,
}

struct Channel {
    socket: UnixDatagram,
    write: fn(&wire::Record<'_>) -> Vec<u8>,
}

/// State that all records of one exec share.
pub(crate) struct Exec {
    pub(crate) program: String,
    pub(crate) callout: &'static str,
    pub(crate) volume: Option<String>,
    pub(crate) started: SystemTime,
    pub(crate) scrubber: Scrubber,
    id: Option<String>,
    steps: Option<Steps>,
}

impl Exec {
    pub(crate) fn new(program: String, callout: &'static str, started: SystemTime) -> Self {
        Exec {
            program,
            callout,
            started,
            steps: Some(Steps::default()),
            ..Exec::NONE
        }
    }

    const NONE: Exec = Exec {
        program: String::new(),
        callout: "",
        volume: None,
        started: SystemTime::UNIX_EPOCH,
        scrubber: Scrubber::NONE,
        id: None,
        steps: None,
    };

    /// Returns the id of this exec's records, made on first use.
    fn id(&mut self) -> String {
        let id = || format!("{:06x}", RandomState::new().hash_one(process::id()) >> 40);
        self.id.get_or_insert_with(id).clone()
    }
}

/// The end of an exec, for its event.
pub(crate) struct Conclusion<'a> {
    pub(crate) outcome: Status,
    pub(crate) kind: Option<ErrorKind>,
    pub(crate) detail: &'a str,
    pub(crate) ended: SystemTime,
}

impl Log {
    /// Returns the log of this machine.
    #[must_use]
    pub const fn system() -> Self {
        Log::new(
            Cow::Borrowed("/run/systemd/journal/socket"),
            Cow::Borrowed("/dev/log"),
        )
    }

    /// Returns a log with other sockets, for tests: one that speaks journald's native protocol, and one that speaks
    /// syslog's, used if the first does not exist.
    #[must_use]
    pub fn at(journald: impl Into<String>, syslog: impl Into<String>) -> Self {
        Log::new(Cow::Owned(journald.into()), Cow::Owned(syslog.into()))
    }

    /// Returns a log that discards everything.
    #[must_use]
    pub const fn nowhere() -> Self {
        Log::new(Cow::Borrowed(""), Cow::Borrowed(""))
    }

    const fn new(journald: Cow<'static, str>, syslog: Cow<'static, str>) -> Self {
        Log {
            journald,
            syslog,
            channel: OnceLock::new(),
            exec: Mutex::new(Exec::NONE),
        }
    }

    /// Starts an exec, to which all later records belong.
    pub(crate) fn begin(&self, exec: Exec) {
        STEPS.set(exec.steps.clone().unwrap_or_default());
        *self.exec() = exec;
    }

    /// Adds secrets to those that are removed from the exec's records.
    pub(crate) fn learn<'a>(&self, secrets: impl Iterator<Item = &'a Secret>) {
        self.exec().scrubber.learn(secrets);
    }

    /// Sets the volume, which is known only after the first records may have been written.
    pub(crate) fn describe(&self, volume: Option<String>) {
        self.exec().volume = volume;
    }

    /// Removes the exec's secrets from a text.
    pub(crate) fn clean(&self, text: &str) -> String {
        self.exec().scrubber.clean(text)
    }

    /// Logs the end of the exec: a failure as an error, a change as information, and a callout that changed nothing
    /// at debug level. Returns the id of the exec's records if the event was sent.
    pub(crate) fn conclude(&self, end: &Conclusion<'_>) -> Option<String> {
        let mut exec = self.exec();
        let steps = exec.steps.as_ref().map(|steps| locked(steps).join(","));
        let changed = steps.as_ref().is_some_and(|steps| !steps.is_empty());
        let priority = match end.outcome {
            Status::Failure => log::Level::Error,
            Status::Success if changed => log::Level::Info,
            Status::Success | Status::NotSupported => log::Level::Debug,
        };
        if priority > log::max_level() {
            return None;
        }
        let ms = end.ended.duration_since(exec.started).unwrap_or_default();
        let message = format!("{}: {}", exec.callout, exec.scrubber.clean(end.detail));
        let kind = end.kind.map(|kind| kind.as_str().to_owned());
        let fields = [
            ("steps", steps),
            ("outcome", Some(end.outcome.as_str().to_owned())),
            ("kind", kind),
            ("ms", Some(ms.as_millis().to_string())),
        ];
        let sent = self.send(&mut exec, end.ended, priority, &fields, &message);
        sent.then(|| exec.id())
    }

    fn send(
        &self,
        exec: &mut Exec,
        time: SystemTime,
        priority: log::Level,
        fields: &[(&'static str, Option<String>)],
        message: &str,
    ) -> bool {
        let Some(channel) = self.channel.get_or_init(|| self.open()) else {
            return false;
        };
        let mut all = vec![
            ("time", Some(wire::timestamp(time))),
            ("id", Some(exec.id())),
            ("callout", Some(exec.callout.to_owned())),
            ("volume", exec.volume.clone()),
        ];
        all.extend_from_slice(fields);
        let datagram = (channel.write)(&wire::Record {
            program: &exec.program,
            priority,
            fields: &all,
            message,
        });
        channel.socket.send(&datagram).is_ok()
    }

    fn open(&self) -> Option<Channel> {
        let connect = |path: &str| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            socket.connect(Path::new(path)).ok()?;
            Some(socket)
        };
        let channel = |path, write| connect(path).map(|socket| Channel { socket, write });
        channel(&self.journald, wire::journald).or_else(|| channel(&self.syslog, wire::syslog))
    }

    /// Whether a record is being written, perhaps by this very thread.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.exec.try_lock(), Err(TryLockError::WouldBlock))
    }

    fn exec(&self) -> MutexGuard<'_, Exec> {
        locked(&self.exec)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut message = String::new();
        let _ = write!(message, "{}", record.args());
        let mut exec = self.exec();
        let message = exec.scrubber.clean(&message);
        self.send(&mut exec, SystemTime::now(), record.level(), &[], &message);
    }

    fn flush(&self) {}
}

/// The steps of an exec. Shared, because a thread that answers in the exec's place reads them too.
type Steps = Arc<Mutex<Vec<&'static str>>>;

thread_local! {
    static STEPS: RefCell<Steps> = RefCell::default();
}

/// Records that this exec took a step towards its goal, such as "format" or "grow the device". The event at its end
/// lists all steps in order.
pub fn step(name: &'static str) {
    STEPS.with_borrow(|steps| locked(steps).push(name));
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
