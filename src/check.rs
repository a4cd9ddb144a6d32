//! One thing that was looked at.

use serde::Serialize;

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Something will not work, or not as well, that nobody may need.
    Warn,
    /// Volumes will not work.
    Fail,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        }
    }
}

/// What was looked at, what was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    #[serde(rename = "check")]
    pub about: String,
    pub verdict: Verdict,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    pub fn ok(about: impl Into<String>, found: impl Into<String>) -> Check {
        Check {
            about: about.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    pub fn warn(
        about: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            verdict: Verdict::Warn,
            remedy: Some(remedy.into()),
            ..Check::ok(about, found)
        }
    }

    pub fn fail(
        about: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            verdict: Verdict::Fail,
            ..Check::warn(about, found, remedy)
        }
    }
}
