//! The node's log: journald where it listens, else syslog, else nothing.
//!
//! An exec that has nothing to tell opens nothing. One that cannot log works all the same: a
//! record that does not fit the socket at once is lost. Standard error is never written, since
//! callers read it as part of the reply.

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

/// Where events and the records of the `log` crate go.
///
/// Every event has the same fields: journald's `FLEXVOL_TIME` (RFC 3339, UTC), `FLEXVOL_ID`
/// (six hexadecimal digits, one a process), `FLEXVOL_CALLOUT`, `FLEXVOL_VOLUME`, `FLEXVOL_STEPS`
/// (what [`step`] was told, comma-separated), `FLEXVOL_OUTCOME` (the reply's status),
/// `FLEXVOL_KIND` (an [`ErrorKind`]), `FLEXVOL_MS` and `MESSAGE`, the error with its private
/// causes. Syslog has the same as `key=value` pairs. A record of the `log` crate has the first
/// four and `MESSAGE`. Secrets of the exec are replaced in all of them.
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

/// What all records of one exec share.
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

    /// Made when it is first needed.
    fn id(&mut self) -> String {
        let id = || format!("{:06x}", RandomState::new().hash_one(process::id()) >> 40);
        self.id.get_or_insert_with(id).clone()
    }
}

/// How an exec ended.
pub(crate) struct Conclusion<'a> {
    pub(crate) outcome: Status,
    pub(crate) kind: Option<ErrorKind>,
    pub(crate) detail: &'a str,
    pub(crate) ended: SystemTime,
}

impl Log {
    /// The log of this machine.
    #[must_use]
    pub const fn system() -> Self {
        Log::new(
            Cow::Borrowed("/run/systemd/journal/socket"),
            Cow::Borrowed("/dev/log"),
        )
    }

    /// A log with other sockets: one that speaks journald's native protocol and, where that is
    /// not there, one that speaks syslog's. For tests.
    #[must_use]
    pub fn at(journald: impl Into<String>, syslog: impl Into<String>) -> Self {
        Log::new(Cow::Owned(journald.into()), Cow::Owned(syslog.into()))
    }

    /// A log that keeps nothing.
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

    /// From here on records belong to this exec.
    pub(crate) fn begin(&self, exec: Exec) {
        STEPS.set(exec.steps.clone().unwrap_or_default());
        *self.exec() = exec;
    }

    /// These secrets must not leave this exec either.
    pub(crate) fn learn<'a>(&self, secrets: impl Iterator<Item = &'a Secret>) {
        self.exec().scrubber.learn(secrets);
    }

    /// The callout became known after the first records could be written.
    pub(crate) fn describe(&self, volume: Option<String>) {
        self.exec().volume = volume;
    }

    /// Removes the exec's secrets from a text.
    pub(crate) fn clean(&self, text: &str) -> String {
        self.exec().scrubber.clean(text)
    }

    /// Logs how the exec ended, as severe as it is: a failure is an error, a change is worth
    /// knowing, and what found everything as it was asked for only helps in a search. Returns the
    /// id of its records if somebody took the event.
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
        let kind = end.kind.map(|kind| format!("{kind:?}"));
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

    /// Somebody is writing a record, maybe this very thread.
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

/// The steps of an exec; a thread that answers in its place reads them too.
type Steps = Arc<Mutex<Vec<&'static str>>>;

thread_local! {
    static STEPS: RefCell<Steps> = RefCell::default();
}

/// Notes for the log that this exec took a step towards what was asked: "format", "grow the
/// device". The event at the end names all of them in order.
pub fn step(name: &'static str) {
    STEPS.with_borrow(|steps| locked(steps).push(name));
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
