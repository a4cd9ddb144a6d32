//! Removal of secrets from texts that others can read.

use crate::{Secret, argument::SECRET};
use std::ffi::OsString;

/// The texts that must not leave one exec.
pub(crate) struct Scrubber(Vec<String>);

impl Scrubber {
    pub(crate) const NONE: Scrubber = Scrubber(Vec::new());

    /// Collects the secrets among the arguments, even if these are malformed. Each is removed as sent, as decoded,
    /// and as `{:?}` prints it.
    pub(crate) fn of(arguments: &[OsString]) -> Self {
        let mut scrubber = Scrubber::NONE;
        for argument in arguments.iter().map(|argument| argument.to_string_lossy()) {
            for sent in argument.split(SECRET).skip(1).filter_map(value) {
                scrubber.0.push(sent.to_owned());
                if let Some(secret) = Secret::decode(sent) {
                    scrubber.learn_decoded(&secret);
                }
            }
        }
        scrubber.order();
        scrubber
    }

    /// Adds the secrets that the driver gets. JSON can escape a key or a value in ways that [`Scrubber::of`] does
    /// not find.
    pub(crate) fn learn<'a>(&mut self, secrets: impl Iterator<Item = &'a Secret>) {
        for secret in secrets {
            self.0.push(secret.encode());
            self.learn_decoded(secret);
        }
        self.order();
    }

    /// Adds one decoded secret. Bytes that are not UTF-8 are converted lossily, as a driver would print them.
    fn learn_decoded(&mut self, secret: &Secret) {
        let text = String::from_utf8_lossy(secret.expose());
        for text in [&*text, text.trim()] {
            let shown = format!("{text:?}");
            self.0.push(text.to_owned());
            self.0.push(shown[1..shown.len() - 1].to_owned());
        }
    }

    /// Sorts the longest first, so that replacing one secret never leaves a part of a longer one.
    fn order(&mut self) {
        self.0.retain(|text| !text.is_empty());
        self.0
            .sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.0.dedup();
    }

    /// Returns the text without the secrets. Replacements are not searched again, since a short secret may occur in
    /// them.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let secret = self.0.iter().find(|secret| rest.starts_with(*secret));
            let length = if let Some(secret) = secret {
                clean.push_str("[secret]");
                secret.len()
            } else {
                clean.push(next);
                next.len_utf8()
            };
            rest = &rest[length..];
        }
        clean
    }
}

/// Returns the string after the rest of a key, `KEY":"STRING"`. Base64 has no characters that JSON escapes.
fn value(rest: &str) -> Option<&str> {
    let (_, rest) = rest.split_once('"')?;
    let rest = rest.trim_start().strip_prefix(':')?;
    let rest = rest.trim_start().strip_prefix('"')?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_secret_stays() {
        let json = r#"{"kubernetes.io/secret/a":"aHVudGVyMgo=","kubernetes.io/secret/b":""}"#;
        let argv = ["mount", "/d", json].map(Into::into);
        let scrubber = Scrubber::of(&argv);
        let text = scrubber.clean("login hunter2 and hunter2\n or aHVudGVyMgo= failed");
        assert_eq!(text, "login [secret] and [secret] or [secret] failed");
        let quoted = ["mount", "/d", r#"{"kubernetes.io/secret/a":"cCB3ImQ="}"#].map(Into::into);
        let scrubber = Scrubber::of(&quoted);
        assert_eq!(
            scrubber.clean(r#"login "p w\"d" failed"#),
            r#"login "[secret]" failed"#
        );
        let broken = ["mount", r#"{"kubernetes.io/secret/a" : "no base64", "#].map(Into::into);
        let scrubber = Scrubber::of(&broken);
        assert_eq!(scrubber.clean("it is no base64"), "it is [secret]");
        assert_eq!(Scrubber::NONE.clean("as it was"), "as it was");
    }

    #[test]
    fn no_way_of_showing_a_secret_shows_it() {
        for (secret, shown) in [
            (&b"it's \"x\""[..], "it's \\\"x\\\""),
            (b"p\"w\n", "p\\\"w"),
            (b"hunter2\xff", "hunter2\u{fffd}"),
        ] {
            let sent = Secret::new(secret).encode();
            let json = format!(r#"{{"{SECRET}a":"{sent}"}}"#);
            let scrubber = Scrubber::of(&["mount".into(), json.into()]);
            assert_eq!(scrubber.clean(&format!("<{shown}>")), "<[secret]>");
        }
    }

    #[test]
    fn short_secrets_do_not_multiply() {
        let keys = "secrt[]".chars().enumerate().map(|(at, letter)| {
            let sent = Secret::new(letter.to_string()).encode();
            format!(r#""{SECRET}{at}":"{sent}""#)
        });
        let json = format!("{{{}}}", keys.collect::<Vec<_>>().join(","));
        let scrubber = Scrubber::of(&["mount".into(), json.into()]);
        assert_eq!(scrubber.clean("es ü"), "[secret][secret] ü");
    }
}
