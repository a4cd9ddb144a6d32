//! JSON values as YAML, as far as Kubernetes manifests need it.

use serde_json::Value;

/// Formats one document: keys in alphabetical order, two spaces for each level, lists as deep as their key.
pub fn document(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0);
    text
}

fn block(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                indent(text, depth);
                text.push_str(&scalar(key));
                text.push(':');
                match member {
                    Value::Object(inner) if !inner.is_empty() => {
                        text.push('\n');
                        block(text, member, depth + 1);
                    }
                    Value::Array(items) if !items.is_empty() => {
                        text.push('\n');
                        block(text, member, depth);
                    }
                    _ => line(text, member),
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                block(&mut inner, item, depth + 1);
                indent(text, depth);
                text.push_str("- ");
                text.push_str(inner.trim_start());
            }
        }
        _ => {
            indent(text, depth);
            text.push_str(line_of(value).trim_start());
            text.push('\n');
        }
    }
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

fn line(text: &mut String, value: &Value) {
    text.push_str(&line_of(value));
    text.push('\n');
}

fn line_of(value: &Value) -> String {
    match value {
        Value::String(string) => format!(" {}", scalar(string)),
        // Empty lists and objects, numbers, booleans and null look the same in both languages.
        other => format!(" {other}"),
    }
}

/// Quotes a string as JSON does, unless no version of YAML can take it for anything else: `0123` would be a number,
/// `no` a boolean and `1e10` both.
fn scalar(string: &str) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-._/".contains(&c);
    let is_plain = string
        .as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphabetic)
        && string.bytes().all(plain)
        && !RESERVED.contains(&string.to_ascii_lowercase().as_str());
    if is_plain {
        string.to_owned()
    } else {
        Value::from(string).to_string()
    }
}

const RESERVED: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_and_lists_nest() {
        let value = json!({
            "b": [{"x": "1", "a": [1, "two"]}, "plain"],
            "a": {"empty": {}, "none": [], "yes": true},
        });
        let text = "a:\n  empty: {}\n  none: []\n  \"yes\": true\n\
                    b:\n- a:\n  - 1\n  - two\n  x: \"1\"\n- plain\n";
        assert_eq!(document(&value), text);
    }

    #[test]
    fn what_might_be_something_else_is_quoted() {
        for string in [
            "", "1e10", "0x1", "10Gi", "no", "True", "a: b", "#", "-", "ä", "a\nb",
        ] {
            assert!(scalar(string).starts_with('"'), "{string:?}");
        }
        for string in ["xfs", "storage.k8s.io/v1", "pv-1", "kubernetes.io/hostname"] {
            assert_eq!(scalar(string), string);
        }
    }
}
