//! Errors of the API server.

use crate::{Key, Kind};
use serde_json::{Value, json};
use std::fmt;

/// An error, answered as a `Status` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason; empty for a plain-text answer.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

impl Refused {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Refused {
            code,
            reason,
            message: message.into(),
        }
    }

    pub(crate) fn missing(key: &Key) -> Self {
        let message = format!("{} {:?} not found", key.kind().resource(), key.name);
        Refused::new(404, "NotFound", message)
    }

    pub(crate) fn there(key: &Key) -> Self {
        let message = format!("{} {:?} already exists", key.kind().resource(), key.name);
        Refused::new(409, "AlreadyExists", message)
    }

    pub(crate) fn conflict(key: &Key, why: &str) -> Self {
        let (resource, name) = (key.kind().resource(), &key.name);
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Refused::new(409, "Conflict", message)
    }

    pub(crate) fn changed(key: &Key) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Refused::conflict(key, why)
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is invalid: {why}", kind.kind);
        Refused::new(422, "Invalid", message)
    }

    pub(crate) fn expired(since: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {since} ({oldest})");
        Refused::new(410, "Expired", message)
    }

    /// Returns the error for a request that the double does not support.
    pub(crate) fn unknown(what: &str) -> Self {
        let message = format!("the double of the API server does not know {what}");
        Refused::new(501, "NotImplemented", message)
    }

    /// Returns the body of the answer.
    #[must_use]
    pub fn status(&self) -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Refused {}
