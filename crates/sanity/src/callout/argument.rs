//! The JSON argument as Kubernetes writes it (`NewOptionsForDriver` in
//! `pkg/volume/flexvolume/driver-call.go`): flat, sorted, all values strings, `<`, `>` and `&`
//! escaped as Go does.

use std::collections::BTreeMap;

/// A volume's options, or the keys of one argument.
pub type Options = BTreeMap<String, String>;

pub const NAME: &str = "kubernetes.io/pvOrVolumeName";
pub const FS_TYPE: &str = "kubernetes.io/fsType";
pub const READ_WRITE: &str = "kubernetes.io/readwrite";
pub const NAMESPACE: &str = "kubernetes.io/pod.namespace";
pub const SECRET: &str = "kubernetes.io/secret/";
/// Key in Kubernetes 1.6 to 1.14.
pub const FS_GROUP_BEFORE: &str = "kubernetes.io/fsGroup";
/// Key since Kubernetes 1.15.
pub const FS_GROUP: &str = "kubernetes.io/mounterArgs.FsGroup";

pub fn object(members: &Options) -> String {
    let text = serde_json::Value::from_iter(members.clone()).to_string();
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// Base64 with padding, as Go's `StdEncoding`.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (place, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = LETTERS[(bits >> shift & 63) as usize];
            text.push(if place <= three.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_flat_sorted_and_escaped() {
        let members = [("b", "<&>"), ("a", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(
            object(&members.into()),
            r#"{"a":"","b":"\u003c\u0026\u003e"}"#
        );
    }

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
