//! Results of `doctor`'s checks.

use serde::Serialize;

/// The severity of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything is as it should be.
    Ok,
    /// Something does not work, or not well, but may not be needed.
    Warn,
    /// Volumes do not work.
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

/// One check: its subject, what was found, and a remedy.
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
