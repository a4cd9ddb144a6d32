//! A driver's answer, interpreted as Kubernetes does.

use serde_json::{Map, Value};
use std::time::Duration;

/// The caller's interpretation of an answer (`handleCmdResponse` in `pkg/volume/flexvolume/driver-call.go`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `Success` with exit code 0.
    Success,
    /// `Not supported`, with any exit code. The caller remembers it for the whole driver.
    NotSupported,
    /// Any other status.
    Failure,
    /// No valid answer: the output is not one JSON object with the right types, or `Success` came with another exit
    /// code. The text says which.
    Broken(String),
}

/// One finished callout.
#[derive(Clone, Debug)]
pub struct Call {
    /// The arguments, without the executable.
    pub argv: Vec<String>,
    /// Standard output and standard error, as one buffer.
    pub output: Vec<u8>,
    /// The exit code; `None` after a signal.
    pub exit: Option<i32>,
    /// Time from exec to the end of the process.
    pub took: Duration,
}

impl Call {
    /// Returns the printed object with lower-case keys, as Go's decoder ignores their case. The last of duplicate keys
    /// wins.
    ///
    /// # Errors
    /// The caller's error about the output.
    pub fn object(&self) -> Result<Map<String, Value>, String> {
        let value: Value = serde_json::from_slice(&self.output).map_err(|e| e.to_string())?;
        let Value::Object(object) = value else {
            return Err("not a JSON object".to_owned());
        };
        let object: Map<_, _> = object
            .into_iter()
            .map(|(key, value)| (key.to_lowercase(), value))
            .collect();
        for (key, value) in &object {
            let right = match key.as_str() {
                "status" | "message" | "device" | "volumename" => value.is_string(),
                "attached" => value.is_boolean(),
                "volumenewsize" => value.is_i64(),
                "capabilities" => value
                    .as_object()
                    .is_some_and(|all| all.values().all(Value::is_boolean)),
                _ => true,
            };
            if !right {
                return Err(format!("{key} has the wrong type: {value}"));
            }
        }
        Ok(object)
    }

    /// Returns the caller's interpretation of the answer.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let object = match self.object() {
            Ok(object) => object,
            Err(reason) => return Outcome::Broken(reason),
        };
        match (object.get("status").and_then(Value::as_str), self.exit) {
            (Some("Success"), Some(0)) => Outcome::Success,
            (Some("Success"), exit) => Outcome::Broken(format!("Success with exit code {exit:?}")),
            (Some("Not supported"), _) => Outcome::NotSupported,
            _ => Outcome::Failure,
        }
    }

    /// Returns a text in the reply, or an empty one if the key is missing.
    #[must_use]
    pub fn text(&self, key: &str) -> String {
        let object = self.object().unwrap_or_default();
        let value = object.get(&key.to_lowercase());
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Returns the call if it succeeded. Otherwise the test fails.
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(self.outcome(), Outcome::Success, "{self}");
        self
    }

    /// Returns the message of a well-formed failure: one line of JSON, no other output, a message and its class.
    /// Otherwise the test fails.
    #[track_caller]
    pub fn failure(&self) -> String {
        assert_eq!(self.outcome(), Outcome::Failure, "{self}");
        let lines = self.output.iter().filter(|&&byte| byte == b'\n').count();
        assert!(self.output.ends_with(b"\n") && lines == 1, "{self}");
        let has_secret = self.argv.iter().any(|arg| arg.contains("/secret/"));
        assert_eq!(self.exit, Some(i32::from(!has_secret)), "exit code: {self}");
        let message = self.text("message");
        assert!(!message.is_empty(), "a failure without a message: {self}");
        assert!(!self.text("errorClass").is_empty(), "no class: {self}");
        message
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let output = String::from_utf8_lossy(&self.output);
        let ms = self.took.as_secs_f64() * 1000.0;
        write!(f, "{}: {}", self.argv.join(" "), output.trim_end())?;
        write!(f, " (exit {:?}, {ms:.1} ms)", self.exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(output: &str, exit: i32) -> Call {
        Call {
            argv: vec!["init".to_owned()],
            output: output.into(),
            exit: Some(exit),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn answers_are_taken_as_kubernetes_takes_them() {
        for (output, exit, outcome) in [
            (r#"{"status":"Success"}"#, 0, Outcome::Success),
            ("\n {\"Status\":\"Success\"}\n", 0, Outcome::Success),
            (r#"{"status":"Not supported"}"#, 1, Outcome::NotSupported),
            (r#"{"status":"success"}"#, 0, Outcome::Failure),
            (r#"{"status":"Not Supported"}"#, 0, Outcome::Failure),
            ("{}", 0, Outcome::Failure),
        ] {
            assert_eq!(call(output, exit).outcome(), outcome, "{output}");
        }
    }

    #[test]
    fn what_kubernetes_cannot_read_is_broken() {
        for (output, exit) in [
            ("", 0),
            ("[]", 0),
            (r#"{"status":"Success"}"#, 1),
            (r#"{"status":"Success"} log"#, 0),
            (r#"log {"status":"Success"}"#, 0),
            (r#"{"status":"Success"}{"status":"Success"}"#, 0),
            (r#"{"status":"Success","attached":"true"}"#, 0),
            (r#"{"status":"Success","volumeNewSize":"1"}"#, 0),
            (r#"{"status":"Success","volumeNewSize":1.5e9}"#, 0),
            (r#"{"status":"Success","capabilities":null}"#, 0),
            (r#"{"status":"Success","capabilities":{"attach":"no"}}"#, 0),
        ] {
            let outcome = call(output, exit).outcome();
            assert!(matches!(outcome, Outcome::Broken(_)), "{output}");
        }
    }
}
