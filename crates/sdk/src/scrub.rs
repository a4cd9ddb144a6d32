//! Keeping secrets out of what other people read.

use crate::{Callout, MountRequest};

/// The texts of one exec that must not leave it.
pub(crate) struct Scrubber(Vec<String>);

impl Scrubber {
    pub(crate) const NONE: Scrubber = Scrubber(Vec::new());

    /// Everything secret among the arguments: as it is, as `{:?}` shows it, and as base64.
    pub(crate) fn of(callout: &Callout) -> Self {
        let mut texts = Vec::new();
        if let Callout::Mount(MountRequest { secrets, .. }) = callout {
            for secret in secrets.values() {
                texts.push(secret.encode());
                if let Ok(text) = str::from_utf8(secret.expose()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_secret_stays() {
        let json = r#"{"kubernetes.io/secret/a":"aHVudGVyMgo=","kubernetes.io/secret/b":""}"#;
        let argv = ["mount", "/d", json].map(Into::into);
        let scrubber = Scrubber::of(&Callout::parse(&argv).unwrap());
        let text = scrubber.clean("login hunter2 and hunter2\n or aHVudGVyMgo= failed");
        assert_eq!(text, "login [secret] and [secret] or [secret] failed");
        let quoted = ["mount", "/d", r#"{"kubernetes.io/secret/a":"cCB3ImQ="}"#].map(Into::into);
        let scrubber = Scrubber::of(&Callout::parse(&quoted).unwrap());
        assert_eq!(
            scrubber.clean(r#"login "p w\"d" failed"#),
            r#"login "[secret]" failed"#
        );
        assert_eq!(Scrubber::NONE.clean("as it was"), "as it was");
    }
}
