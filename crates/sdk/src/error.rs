//! Errors, for three readers: the calling program, the user, and the node's log.

use crate::limits::largest_file;
use std::{borrow::Cow, error, fmt, io};

/// The result type of a driver's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, as far as a caller can act on it.
///
/// "Not supported" is not among them: kubelet remembers that answer for all volumes of the driver, so only a method
/// that the driver does not implement gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is malformed or asks for something impossible.
    Invalid,
    /// The request is well formed, but the caller is not allowed to make it.
    Denied,
    /// The volume, pool or directory does not exist.
    NotFound,
    /// The volume exists, but its state or properties contradict the request.
    Conflict,
    /// Something else is using the volume at the moment.
    Busy,
    /// The volume holds data that this driver did not write; it was left unchanged.
    NotBlank,
    /// The storage failed to read, so the volume's content is unknown.
    Unreadable,
    /// There is no space left.
    Exhausted,
    /// The volume was grown as far as possible, to less than the requested size.
    SizeNotReached,
    /// A program that the operation needs is not installed on the node.
    ToolMissing,
    /// The kernel denies this process the operation.
    CapabilityMissing,
    /// The operation did not end before its deadline; it may still be running.
    TimedOut,
    /// The storage or the kernel failed.
    Storage,
    /// The driver is not configured, or its configuration is wrong.
    Configuration,
    /// A bug: the driver contradicts itself.
    Bug,
}

/// What a caller can do about an [`ErrorKind`]; the reply carries it as `errorClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The same call may succeed later.
    Retryable,
    /// The same call can never succeed until something else is changed.
    Infeasible,
    /// The same call succeeds once there is space.
    Exhausted,
    /// The outcome is unknown; the call must be repeated before the caller draws conclusions.
    Uncertain,
}

impl ErrorKind {
    /// Returns its name in the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "Invalid",
            ErrorKind::Denied => "Denied",
            ErrorKind::NotFound => "NotFound",
            ErrorKind::Conflict => "Conflict",
            ErrorKind::Busy => "Busy",
            ErrorKind::NotBlank => "NotBlank",
            ErrorKind::Unreadable => "Unreadable",
            ErrorKind::Exhausted => "Exhausted",
            ErrorKind::SizeNotReached => "SizeNotReached",
            ErrorKind::ToolMissing => "ToolMissing",
            ErrorKind::CapabilityMissing => "CapabilityMissing",
            ErrorKind::TimedOut => "TimedOut",
            ErrorKind::Storage => "Storage",
            ErrorKind::Configuration => "Configuration",
            ErrorKind::Bug => "Bug",
        }
    }

    /// Returns what a caller can do about it.
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
    /// Returns the word for the reply's `errorClass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorClass::Retryable => "retryable",
            ErrorClass::Infeasible => "infeasible",
            ErrorClass::Exhausted => "exhausted",
            ErrorClass::Uncertain => "uncertain",
        }
    }

    /// Parses the word of an `errorClass`; callers ignore unknown words.
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

/// The failure of an operation.
///
/// `Display` gives the message of the reply. Kubelet copies it into pod events, which everybody with access to the
/// namespace can read. So it must mention only this volume, its sizes and the remedy. Paths, commands and other
/// volumes belong in the source (see [`Error::because`]), which only the log shows.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// Makes an error whose `message` is fit for a pod event: lower case, verb and object, no full stop, no path,
    /// no secret.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Makes an error about a request that is wrong in itself.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Adds the cause, or any other detail that only the node's log may show.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Prepends what was being done, or what was requested and found.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    /// Appends a remedy to the message.
    #[must_use]
    pub fn advise(mut self, remedy: impl fmt::Display) -> Self {
        self.message = format!("{}; {remedy}", self.message).into();
        self
    }

    /// Makes an error of a failed system call. `doing` names the attempt ("read the image"); the system's reason is
    /// appended, and the kind follows from the error number.
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

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message and all its causes, for the log and for administrators of the node.
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
