//! What went wrong, for three readers: the caller's machinery, a person, and the log.

use crate::limits::largest_file;
use std::{borrow::Cow, error, fmt, io};

/// The result of everything that can fail in a driver.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
///
/// There is no "not supported" here: kubelet remembers that answer for every volume of the
/// driver, so only a method that a driver does not have may give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is malformed or asks for something that cannot be.
    Invalid,
    /// The request is well formed and this caller may not have it.
    Denied,
    /// The volume, pool or directory is not there.
    NotFound,
    /// The volume is there, in a state or with properties that contradict the request.
    Conflict,
    /// Something else is using the volume now.
    Busy,
    /// The volume holds data that nobody here wrote; it was left alone.
    NotBlank,
    /// The storage answered a read with an error, so nothing is known about its content.
    Unreadable,
    /// There is no room left.
    Exhausted,
    /// The volume was grown as far as it goes, which is less than was asked.
    SizeNotReached,
    /// A program this operation needs is not installed on the node.
    ToolMissing,
    /// The kernel refuses this process the operation.
    CapabilityMissing,
    /// The operation did not end in time; it may still be running.
    TimedOut,
    /// The storage or the kernel failed.
    Storage,
    /// The driver is not configured, or its configuration is wrong.
    Configuration,
    /// The driver contradicts itself.
    Bug,
}

/// What a caller can do about an [`ErrorKind`]; the reply carries it as `errorClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The same call may succeed later.
    Retryable,
    /// The same call will never succeed; something must be changed first.
    Infeasible,
    /// The same call succeeds once there is room.
    Exhausted,
    /// Nobody knows how far it came; the call must be repeated before anything is concluded.
    Uncertain,
}

impl ErrorKind {
    /// What a caller can do about it.
    #[must_use]
    pub fn class(self) -> ErrorClass {
        match self {
            ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::NotBlank | ErrorKind::Conflict => {
                ErrorClass::Infeasible
            }
            ErrorKind::Exhausted => ErrorClass::Exhausted,
            ErrorKind::TimedOut => ErrorClass::Uncertain,
            _ => ErrorClass::Retryable,
        }
    }
}

impl ErrorClass {
    /// The word in the reply's `errorClass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorClass::Retryable => "retryable",
            ErrorClass::Infeasible => "infeasible",
            ErrorClass::Exhausted => "exhausted",
            ErrorClass::Uncertain => "uncertain",
        }
    }

    /// The class of a word; callers ignore words they do not know.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [
            ErrorClass::Retryable,
            ErrorClass::Infeasible,
            ErrorClass::Exhausted,
            ErrorClass::Uncertain,
        ]
        .into_iter()
        .find(|class| class.as_str() == word)
    }
}

/// Why an operation failed.
///
/// `Display` is the message of the reply. Kubelet copies it into pod events, which everybody
/// with access to the namespace reads, so it speaks of this volume, its sizes and the remedy and
/// of nothing else on the node. Paths, commands and other volumes belong into the source
/// (see [`Error::because`]), which only the log shows.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// Makes an error whose `message` is fit for a pod event: lower case, verb and object, no
    /// full stop, no path, no secret.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// A request that is wrong in itself.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Adds the cause, or any detail that only the node's log may show.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts what was being done, or what was asked and found, before the message.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    /// Puts what a person can do after the message.
    #[must_use]
    pub fn advise(mut self, remedy: impl fmt::Display) -> Self {
        self.message = format!("{}; {remedy}", self.message).into();
        self
    }

    /// Turns a failed system call into an error: `doing` names what was tried ("read the image"),
    /// the system's reason is appended and the kind follows from the error number.
    pub fn system(doing: &str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
            io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            io::ErrorKind::PermissionDenied => ErrorKind::CapabilityMissing,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            _ => ErrorKind::Storage,
        };
        if source.kind() == io::ErrorKind::FileTooLarge
            && let Some(limit) = largest_file()
        {
            return Error::new(
                ErrorKind::Configuration,
                format!(
                    "cannot {doing}: this process may make no file larger than {limit} (RLIMIT_FSIZE); raise LimitFSIZE of kubelet's unit, or `ulimit -f` of whoever starts the driver"
                ),
            )
            .because(source);
        }
        Error::new(kind, format!("cannot {doing}: {source}")).because(source)
    }

    /// What went wrong, as far as a caller can act on it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message followed by every cause: for the log and for people on the node.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = self.message.to_string();
        let mut cause = error::Error::source(self);
        while let Some(error) = cause {
            let next = error.to_string();
            if !text.ends_with(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_report_shows_the_cause() {
        let error = Error::new(ErrorKind::NotFound, "no such volume").because("/pool/volumes/x");
        assert_eq!(error.to_string(), "no such volume");
        assert_eq!(error.report(), "no such volume: /pool/volumes/x");
    }

    #[test]
    fn a_full_disk_is_exhausted_and_says_so_once() {
        let error = Error::system("allocate the image", io::Error::from_raw_os_error(28));
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert_eq!(error.report().matches("No space left").count(), 1);
    }
}
