//! Kubelet's configuration file.

use std::ffi::OsString;

/// Returns `volumePluginDir` from a kubelet configuration in YAML or JSON. It is a top-level key, so in YAML its
/// line begins with it; the value is a plain or quoted scalar. Invalid UTF-8 in other lines does not matter.
pub fn configured(text: &[u8]) -> Option<OsString> {
    let text = String::from_utf8_lossy(text);
    configured_in(&text).map(OsString::from)
}

fn configured_in(text: &str) -> Option<String> {
    const KEY: &str = "volumePluginDir";
    if text.trim_start().starts_with('{') {
        let object: serde_json::Value = serde_json::from_str(text).ok()?;
        let value = object.get(KEY)?.as_str()?;
        return (!value.is_empty()).then(|| value.to_owned());
    }
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(KEY)?.trim_start().strip_prefix(':'))?
        .trim();
    let value = match value.chars().next()? {
        quote @ ('"' | '\'') => value[1..].split(quote).next()?,
        _ => value.split(" #").next()?.trim_end(),
    };
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn kubelets_configuration_is_understood() {
        for (text, value) in [
            (
                "kind: KubeletConfiguration\nvolumePluginDir: /a/b\n",
                Some("/a/b"),
            ),
            ("volumePluginDir: \"/a b\" # why\n", Some("/a b")),
            ("volumePluginDir: '/a'\n", Some("/a")),
            ("volumePluginDir: /a # why\n", Some("/a")),
            ("volumePluginDir : /a\n", Some("/a")),
            ("volumePluginDir: \"\"\n", None),
            ("volumePluginDir:\n", None),
            ("nested:\n  volumePluginDir: /a\n", None),
            ("#volumePluginDir: /a\n", None),
            (r#"{"volumePluginDir":"/j"}"#, Some("/j")),
            (r#"{"volumePluginDir":1}"#, None),
            ("", None),
        ] {
            let found = configured(text.as_bytes());
            assert_eq!(found.as_deref(), value.map(OsStr::new), "{text:?}");
        }
    }

    #[test]
    fn a_comment_that_is_no_text_does_not_hide_what_kubelet_is_told() {
        let text = b"# caf\xe9\nvolumePluginDir: /a\n";
        assert_eq!(configured(text).as_deref(), Some(OsStr::new("/a")));
    }
}
