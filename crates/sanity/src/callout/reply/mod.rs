//! Decodes a reply as Go's `encoding/json` does in kubelet (`handleCmdResponse` in
//! `pkg/volume/flexvolume/driver-call.go`, 1.6 to 1.37): names match in any case, the last duplicate counts,
//! `null` changes nothing, unknown members are ignored, and one member of a wrong type invalidates the reply.
//! `go.tsv` has Go's results for 160 replies; `go/main.go` prints it, and CI compares.

mod capabilities;
mod text;

pub use capabilities::{Capabilities, DeclaredCapabilities};
use std::collections::BTreeMap;
use text::Text;

/// The member `status`. Every word except these two counts as a failure.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Status {
    Success,
    NotSupported,
    /// Has the word as the driver wrote it.
    Failure(String),
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: Status,
    pub message: String,
    pub device: Option<String>,
    pub attached: Option<bool>,
    pub volume_name: Option<String>,
    pub volume_new_size: Option<i64>,
    pub capabilities: DeclaredCapabilities,
    /// The options of the new volume in the reply to `provision`; what else than an object of strings there is.
    pub options: Result<BTreeMap<String, String>, String>,
    /// Bytes, in the replies to `provision` and `capacity`. Kubernetes does not read it: anything but a whole
    /// number counts as not told.
    pub capacity: Option<u64>,
    /// The file system of the new volume in the reply to `provision`.
    pub fs_type: Option<String>,
    /// What the reply to `capacity` tells of the pool.
    pub pool: Pool,
}

/// A pool's space in bytes, each member as far as the driver tells it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pool {
    pub size: Option<u64>,
    pub free: Option<u64>,
    pub promised: Option<u64>,
}

/// Decodes the whole output of a driver.
///
/// # Errors
/// The reason why Go would reject the output.
pub fn decode(output: &[u8]) -> Result<Reply, String> {
    if output.is_empty() {
        return Err("nothing was written, where kubelet expects one JSON object".to_owned());
    }
    let members = match text::parse(output)? {
        Text::Object(members) => members,
        // In Go `null` leaves all members unchanged.
        Text::Null => Vec::new(),
        other => return Err(format!("the reply is {}, not an object", other.kind())),
    };
    let mut reply = Reply {
        status: Status::Failure(String::new()),
        message: String::new(),
        device: None,
        attached: None,
        volume_name: None,
        volume_new_size: None,
        capabilities: DeclaredCapabilities::Nothing,
        options: Ok(BTreeMap::new()),
        capacity: None,
        fs_type: None,
        pool: Pool::default(),
    };
    for (name, value) in members {
        match folded(&name).as_str() {
            "status" => {
                if let Some(word) = string("status", value)? {
                    reply.status = match word.as_str() {
                        "Success" => Status::Success,
                        "Not supported" => Status::NotSupported,
                        _ => Status::Failure(word),
                    };
                }
            }
            "message" => reply.message = string("message", value)?.unwrap_or(reply.message),
            "device" => reply.device = string("device", value)?.or(reply.device),
            "volumename" => reply.volume_name = string("volumeName", value)?.or(reply.volume_name),
            "attached" => reply.attached = boolean("attached", value)?.or(reply.attached),
            "volumenewsize" => {
                let size = whole("volumeNewSize", value)?;
                reply.volume_new_size = size.or(reply.volume_new_size);
            }
            "capabilities" => reply.capabilities = capabilities::decode(value, reply.capabilities)?,
            "options" => reply.options = options(value),
            "capacity" => reply.capacity = bytes(&value),
            "fstype" => reply.fs_type = string("fsType", value).ok().flatten(),
            "poolspace" => reply.pool = pool(value),
            _ => {}
        }
    }
    Ok(reply)
}

/// Checks that the output is exactly one JSON object, whatever its members are.
///
/// # Errors
/// The reason why it is not.
pub fn object(output: &[u8]) -> Result<(), String> {
    if output.is_empty() {
        return Err("nothing was written".to_owned());
    }
    match text::parse(output)? {
        Text::Object(_) => Ok(()),
        other => Err(format!("it is {}", other.kind())),
    }
}

fn options(value: Text) -> Result<BTreeMap<String, String>, String> {
    let members = match value {
        Text::Null => Vec::new(),
        Text::Object(members) => members,
        other => return Err(format!("options is {}, not an object", other.kind())),
    };
    let member = |(name, value)| match value {
        Text::String(text) => Ok((name, text)),
        other => Err(format!("option {name} is {}, not a string", other.kind())),
    };
    members.into_iter().map(member).collect()
}

fn bytes(value: &Text) -> Option<u64> {
    match value {
        Text::Number(text) => text.parse().ok(),
        _ => None,
    }
}

fn pool(value: Text) -> Pool {
    let mut pool = Pool::default();
    let members = match value {
        Text::Object(members) => members,
        _ => Vec::new(),
    };
    for (name, value) in members {
        match folded(&name).as_str() {
            "size" => pool.size = bytes(&value),
            "free" => pool.free = bytes(&value),
            "promised" => pool.promised = bytes(&value),
            _ => {}
        }
    }
    pool
}

/// Folds a name as Go does for comparison: two letters beyond ASCII fold into ASCII.
fn folded(name: &str) -> String {
    name.chars()
        .map(|letter| match letter {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

fn string(name: &str, value: Text) -> Result<Option<String>, String> {
    match value {
        Text::Null => Ok(None),
        Text::String(text) => Ok(Some(text)),
        other => Err(format!("{name} is {}, not a string", other.kind())),
    }
}

fn boolean(name: &str, value: Text) -> Result<Option<bool>, String> {
    match value {
        Text::Null => Ok(None),
        Text::Bool(truth) => Ok(Some(truth)),
        other => Err(format!("{name} is {}, not true or false", other.kind())),
    }
}

/// Reads an int64 as Go does: strings, fractions and exponents are errors.
fn whole(name: &str, value: Text) -> Result<Option<i64>, String> {
    match value {
        Text::Null => Ok(None),
        Text::Number(text) => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{name} is {text}, not a whole number of 64 bits")),
        },
        other => Err(format!("{name} is {}, not a number", other.kind())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_any_case_and_the_last_counts() {
        let reply = decode(
            br#"{"STATUS":"Failure","Status":"Success","\u017ftatu\u017f":"Not supported"}"#,
        )
        .unwrap();
        assert_eq!(reply.status, Status::NotSupported);
    }

    #[test]
    fn words_are_exact() {
        for word in ["success", "Not Supported", "Failed", ""] {
            let reply = decode(format!(r#"{{"status":"{word}"}}"#).as_bytes()).unwrap();
            assert_eq!(reply.status, Status::Failure(word.to_owned()));
        }
    }

    #[test]
    fn wrong_types_spoil_the_reply() {
        for member in [
            r#""status":1"#,
            r#""device":["x"]"#,
            r#""attached":"true""#,
            r#""volumeNewSize":"1""#,
            r#""volumeNewSize":1.5e9"#,
            r#""capabilities":[]"#,
            r#""capabilities":{"attach":"false"}"#,
        ] {
            assert!(
                decode(format!("{{{member}}}").as_bytes()).is_err(),
                "{member}"
            );
        }
    }

    #[test]
    fn null_is_nothing_but_for_capabilities() {
        let reply = decode(br#"{"status":"Success","device":null,"attached":null}"#).unwrap();
        assert_eq!((reply.device, reply.attached), (None, None));
        let reply = decode(br#"{"status":"Success","capabilities":null}"#).unwrap();
        assert_eq!(reply.capabilities, DeclaredCapabilities::Null);
    }

    #[test]
    fn what_is_not_told_has_its_default() {
        let reply = decode(br#"{"Capabilities":{"Attach":false,"x":1}}"#).unwrap();
        let expected = Capabilities {
            attach: false,
            ..Capabilities::default()
        };
        assert_eq!(reply.capabilities, DeclaredCapabilities::Some(1, expected));
    }

    #[test]
    fn one_object_and_nothing_else() {
        for output in ["", "{} {}", "log\n{}", "[]", "{}\u{feff}", "{\"a\":\"\n\"}"] {
            assert!(decode(output.as_bytes()).is_err(), "{output:?}");
        }
        assert!(decode(b" \n{\n}\n\n").is_ok());
    }

    /// Checks one line of the table: the output of a driver, and Go's result.
    fn agrees(line: &str) {
        let mut fields = line.split('\t');
        let input = unquoted(fields.next().unwrap());
        let expected: Vec<_> = fields.collect();
        let found = decode(&input);
        if expected == ["error"] {
            assert!(found.is_err(), "Go reads nothing of {line}: {found:?}");
            return;
        }
        let reply = found.unwrap_or_else(|error| panic!("Go reads {line}: {error}"));
        let word = match reply.status {
            Status::Success => "Success".to_owned(),
            Status::NotSupported => "Not supported".to_owned(),
            Status::Failure(word) => word,
        };
        let capabilities = match reply.capabilities {
            DeclaredCapabilities::Null => "null".to_owned(),
            DeclaredCapabilities::Nothing => bits(Capabilities::default()),
            DeclaredCapabilities::Some(_, known) => bits(known),
        };
        let text = |quoted: &str| String::from_utf8(unquoted(quoted)).unwrap();
        assert_eq!(word, text(expected[0]), "{line}");
        assert_eq!(reply.message, text(expected[1]), "{line}");
        assert_eq!(
            reply.device.unwrap_or_default(),
            text(expected[2]),
            "{line}"
        );
        assert_eq!(
            reply.volume_name.unwrap_or_default(),
            text(expected[3]),
            "{line}"
        );
        assert_eq!(
            reply.attached.unwrap_or_default().to_string(),
            expected[4],
            "{line}"
        );
        assert_eq!(capabilities, expected[5], "{line}");
        assert_eq!(
            reply.volume_new_size.unwrap_or_default().to_string(),
            expected[6],
            "{line}"
        );
    }

    fn bits(known: Capabilities) -> String {
        let all = [
            known.attach,
            known.selinux_relabel,
            known.supports_metrics,
            known.fs_group,
            known.requires_fs_resize,
        ];
        all.iter().map(|has| if *has { '1' } else { '0' }).collect()
    }

    /// Parses a string as Go's `strconv.Quote` writes it.
    fn unquoted(text: &str) -> Vec<u8> {
        let inner = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        let mut letters = inner.unwrap().chars();
        let mut bytes = Vec::new();
        while let Some(letter) = letters.next() {
            let escape = match letter {
                '\\' => letters.next().unwrap(),
                other => {
                    bytes.extend(other.to_string().bytes());
                    continue;
                }
            };
            let mut hex = |digits: usize| {
                let text: String = letters.by_ref().take(digits).collect();
                u32::from_str_radix(&text, 16).unwrap()
            };
            match escape {
                'n' => bytes.push(b'\n'),
                't' => bytes.push(b'\t'),
                'r' => bytes.push(b'\r'),
                'a' => bytes.push(7),
                'b' => bytes.push(8),
                'v' => bytes.push(11),
                'f' => bytes.push(12),
                'x' => bytes.push(u8::try_from(hex(2)).unwrap()),
                'u' => bytes.extend(char::from_u32(hex(4)).unwrap().to_string().bytes()),
                'U' => bytes.extend(char::from_u32(hex(8)).unwrap().to_string().bytes()),
                other => bytes.extend(other.to_string().bytes()),
            }
        }
        bytes
    }

    #[test]
    fn replies_are_read_as_go_reads_them() {
        let table = include_str!("go.tsv");
        assert!(table.lines().count() > 100);
        table.lines().for_each(agrees);
    }

    #[test]
    fn the_deepest_reply_is_as_deep_as_gos() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
            decode(format!("{{\"x\":{open}{close}}}").as_bytes())
        };
        assert!(nested(10_000).is_ok());
        assert!(nested(10_001).is_err());
    }
}
