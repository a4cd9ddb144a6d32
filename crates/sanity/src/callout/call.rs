//! One callout as kubelet makes it (`DriverCall.Run` in `pkg/volume/flexvolume/driver-call.go`): the
//! arguments, an empty standard input, and stdout and stderr combined. The caller waits until both are
//! closed.

use crate::{
    callout::reply::{self, Reply, Status},
    redact::{masked, printable, quoted},
    system::command::{PATH, SignalTo},
};
use nix::sys::signal::Signal;
use std::{ffi::OsString, fmt::Write as _, path::PathBuf, time::Duration};

/// How a call differs from kubelet's usual one.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// A program with its arguments that is run in front of the driver's command line.
    pub wrapper: Vec<OsString>,
    /// Like `wrapper`, but only shown in reports, because the caller is already in that environment.
    pub shown_prefix: &'static [&'static str],
    /// The driver's environment, instead of [`PATH`] alone.
    pub environment: Option<Vec<(String, String)>>,
    /// A signal after this time, to the driver alone or to its whole process group.
    pub signal: Option<(Duration, Signal, SignalTo)>,
    /// A deadline that replaces the usual one.
    pub deadline: Option<Duration>,
}

impl CallOptions {
    /// All variables in the driver's environment.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let usual = self.environment.is_none().then_some(("PATH", PATH));
        let given = self.environment.iter().flatten();
        let given = given.map(|(key, value)| (key.as_str(), value.as_str()));
        usual.into_iter().chain(given)
    }
}

/// How the driver ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The driver reached the deadline, and was killed with its process group.
    Deadline,
}

/// A callout that was made, with its result.
#[derive(Clone, Debug)]
pub struct Call {
    pub executable: PathBuf,
    pub argv: Vec<String>,
    pub options: CallOptions,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Exit,
    pub took: Duration,
    /// How long stdout or stderr stayed open after the driver's end.
    pub lingered: Duration,
}

/// The result of a call as the caller understands it.
#[derive(Clone, Debug)]
pub enum Outcome {
    Success(Box<Reply>),
    NotSupported,
    /// The message of the driver.
    Failure(String),
    /// The output is not a valid reply, or contradicts the exit code. Has the reason.
    Broken(String),
}

impl Call {
    /// Stdout and stderr combined, as the caller gets them.
    pub fn output(&self) -> Vec<u8> {
        [self.stdout.as_slice(), self.stderr.as_slice()].concat()
    }

    /// The callout's name.
    pub fn callout(&self) -> &str {
        self.argv.first().map_or("", String::as_str)
    }

    pub fn decoded(&self) -> Result<Reply, String> {
        reply::decode(&self.output())
    }

    pub fn outcome(&self) -> Outcome {
        if self.exit == Exit::Deadline {
            return Outcome::Broken("no end before the deadline".to_owned());
        }
        match self.decoded() {
            Err(error) => Outcome::Broken(error),
            Ok(reply) => match reply.status {
                Status::NotSupported => Outcome::NotSupported,
                Status::Success if self.exit == Exit::Code(0) => Outcome::Success(Box::new(reply)),
                Status::Success => {
                    Outcome::Broken("Success, and an exit code that is not 0".to_owned())
                }
                Status::Failure(_) => Outcome::Failure(reply.message),
            },
        }
    }

    pub fn succeeded(&self) -> bool {
        matches!(self.outcome(), Outcome::Success(_))
    }

    pub fn not_supported(&self) -> bool {
        matches!(self.outcome(), Outcome::NotSupported)
    }

    /// Whether the driver answered with a Failure and a valid reply, as a driver should.
    pub fn failed(&self) -> bool {
        matches!(self.outcome(), Outcome::Failure(_))
    }

    /// Whether the driver was ended by SIGKILL.
    pub fn was_killed(&self) -> bool {
        self.exit == Exit::Signal(Signal::SIGKILL as i32)
    }

    /// Returns a command line to paste into a shell, with environment and signal. The words in `masks` are
    /// replaced.
    pub fn command(&self, masks: &[String]) -> String {
        let mut words = vec!["env".to_owned(), "-i".to_owned()];
        let variables = self.options.variables();
        words.extend(variables.map(|(key, value)| format!("{key}={value}")));
        let prefix = self.options.shown_prefix.iter();
        words.extend(prefix.map(|word| (*word).to_owned()));
        let wrapper = self.options.wrapper.iter();
        words.extend(wrapper.map(|word| word.to_string_lossy().into_owned()));
        words.push(self.executable.to_string_lossy().into_owned());
        words.extend(self.argv.iter().cloned());
        let words: Vec<_> = words
            .into_iter()
            .map(|word| quoted(&masked(word, masks)))
            .collect();
        let mut line = words.join(" ") + " </dev/null";
        if let Some((after, signal, to)) = self.options.signal {
            let whom = match to {
                SignalTo::Process => "it",
                SignalTo::Group => "its process group",
            };
            // Writing to a string does not fail.
            let _ = write!(line, " # {signal} to {whom} after {} ms", after.as_millis());
        }
        line
    }

    /// Returns output, exit code and seconds, for people.
    pub fn answer(&self, masks: &[String]) -> String {
        let output = String::from_utf8_lossy(&self.output()).into_owned();
        // Secrets are masked before the text is cut, because a cut secret would not be found.
        let mut text = masked(output.trim_end().to_owned(), masks);
        if text.len() > 2000 {
            text.truncate(
                (0..=2000)
                    .rev()
                    .find(|at| text.is_char_boundary(*at))
                    .unwrap_or(0),
            );
            text.push_str(" [...]");
        }
        let mut text = printable(&text);
        // Writing to a string does not fail.
        let _ = match self.exit {
            Exit::Code(code) => write!(text, " (exit {code}"),
            Exit::Signal(signal) => write!(text, " (ended by signal {signal}"),
            Exit::Deadline => write!(text, " (killed at the deadline"),
        };
        let _ = write!(text, ", {:.3} s)", self.took.as_secs_f64());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &[&str], options: CallOptions) -> Call {
        Call {
            executable: "/bin/driver".into(),
            argv: words.iter().map(|word| (*word).to_owned()).collect(),
            options,
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: Exit::Code(0),
            took: Duration::ZERO,
            lingered: Duration::ZERO,
        }
    }

    #[test]
    fn a_command_can_be_pasted_and_hides_secrets() {
        let words = [
            "mount",
            "/a b",
            "{\"x\":\"it's c2VjcmV0\"}",
            "",
            "\n",
            "pass'word",
        ];
        let masks = ["c2VjcmV0", "pass'word"].map(str::to_owned);
        assert_eq!(
            call(&words, CallOptions::default()).command(&masks),
            format!(
                r#"env -i PATH={PATH} /bin/driver mount '/a b' '{{"x":"it'\''s ***"}}' '' $'\x0a' '***' </dev/null"#
            )
        );
    }

    #[test]
    fn a_command_without_any_environment_says_so() {
        let options = CallOptions {
            environment: Some(Vec::new()),
            shown_prefix: &["unshare", "--mount"],
            ..CallOptions::default()
        };
        assert_eq!(
            call(&["init"], options).command(&[]),
            "env -i unshare --mount /bin/driver init </dev/null"
        );
    }

    #[test]
    fn an_answer_has_its_seconds_however_it_ended() {
        for (exit, text) in [
            (Exit::Code(1), "{} (exit 1, 0.250 s)"),
            (Exit::Signal(9), "{} (ended by signal 9, 0.250 s)"),
            (Exit::Deadline, "{} (killed at the deadline, 0.250 s)"),
        ] {
            let call = Call {
                stdout: b"{}\n".to_vec(),
                took: Duration::from_millis(250),
                exit,
                ..call(&["init"], CallOptions::default())
            };
            assert_eq!(call.answer(&[]), text);
        }
    }

    #[test]
    fn what_a_terminal_obeys_is_shown_and_no_part_of_a_secret_is_left_at_the_cut() {
        let secret = "c2VjcmV0";
        for before in 1990..2000 {
            let call = Call {
                stdout: format!("{}{secret}", "x".repeat(before)).into_bytes(),
                ..call(&["init"], CallOptions::default())
            };
            let answer = call.answer(&[secret.to_owned()]);
            assert!(!answer.contains("c2"), "{answer}");
        }
        let output = "\u{1b}[2Ja\r\nb\u{9b}1mc2VjcmV0";
        let call = Call {
            stdout: output.as_bytes().to_vec(),
            ..call(&["\u{9b}1m"], CallOptions::default())
        };
        let expected = "\\u{1b}[2Ja\\r\nb\\u{9b}1m*** (exit 0, 0.000 s)";
        assert_eq!(call.answer(&[secret.to_owned()]), expected);
        let command = format!(r"env -i PATH={PATH} /bin/driver $'\xc2\x9b1m' </dev/null");
        assert_eq!(call.command(&[]), command);
    }

    #[test]
    fn a_command_says_how_the_call_was_made() {
        let options = CallOptions {
            wrapper: ["sh", "-c", r#"exec "$0" <&-"#].map(OsString::from).into(),
            environment: Some(vec![("LANG".to_owned(), "tr_TR".to_owned())]),
            signal: Some((Duration::from_millis(7), Signal::SIGKILL, SignalTo::Group)),
            ..CallOptions::default()
        };
        assert_eq!(
            call(&["init"], options).command(&[]),
            r#"env -i LANG=tr_TR sh -c 'exec "$0" <&-' /bin/driver init </dev/null # SIGKILL to its process group after 7 ms"#
        );
    }
}
