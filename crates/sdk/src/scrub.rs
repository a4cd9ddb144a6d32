//! Keeping secrets out of what other people read.

use crate::{Secret, argument::SECRET};
use std::ffi::OsString;

/// The texts of one exec that must not leave it.
pub(crate) struct Scrubber(Vec<String>);

impl Scrubber {
    pub(crate) const NONE: Scrubber = Scrubber(Vec::new());

    /// Everything secret among the arguments, whether or not they can be understood: as it was
    /// sent, decoded, and as `{:?}` shows it.
    pub(crate) fn of(arguments: &[OsString]) -> Self {
        let mut texts = Vec::new();
        for argument in arguments.iter().map(|argument| argument.to_string_lossy()) {
            for sent in argument.split(SECRET).skip(1).filter_map(value) {
                texts.push(sent.to_owned());
                let secret = Secret::decode(sent);
                if let Some(Ok(text)) = secret.as_ref().map(|it| str::from_utf8(it.expose())) {
                    texts.push(text.to_owned());
                    texts.push(text.trim().to_owned());
                    texts.push(text.escape_debug().to_string());
                }
            }
        }
        texts.retain(|text| !text.is_empty());
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Scrubber(texts)
    }

    /// The text without them.
    pub(crate) fn clean(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| {
            text.replace(secret, "[secret]")
        })
    }
}

/// The string behind the rest of a key, `KEY":"STRING"`. Base64 has no character that JSON escapes.
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
}
