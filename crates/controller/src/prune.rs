//! Reading of an answer only what is needed, while it arrives: who may write a claim may write a mebibyte
//! of labels into it, and hundreds of objects come in one answer.
//!
//! JSON goes through byte by byte, so what is dropped is never in memory, not even one object of it. What
//! is no JSON comes out as no JSON.

/// What of a value is kept.
#[derive(Debug)]
pub(crate) enum Keep {
    /// All of it, as it is.
    All,
    /// All members of an object but these.
    But(&'static [&'static str]),
    /// These members of an object, or of each object of an array. A word or a number is kept.
    Members(&'static [(&'static str, Keep)]),
    /// The members of an object whose names begin so, or the words of an array that do.
    Begins(&'static [&'static str]),
    /// So of each element of an array, however many there are.
    Each(&'static Keep),
}

impl Keep {
    /// A word or a number.
    pub const WORD: Keep = Keep::Members(&[]);
}

/// No word that this program understands is longer. Of longer ones [`OVERLONG`] is kept: that there is
/// one, which is like no other.
const LONGEST: usize = 1024;
const OVERLONG: &[u8] = b"?";

/// Nothing of which we know has more elements.
const MOST: usize = 256;

/// An object or an array that has begun.
struct Open {
    object: bool,
    keep: &'static Keep,
    /// How many of its elements were kept.
    kept: usize,
    /// A name comes next.
    name: bool,
}

#[derive(Clone, Copy)]
enum State {
    Between,
    Name {
        escaped: bool,
    },
    Text {
        escaped: bool,
    },
    /// A number, or `true`.
    Bare,
    /// A value that is kept as it is, or dropped.
    Whole {
        kept: bool,
        depth: usize,
        text: bool,
        escaped: bool,
    },
}

/// What is between two parts of an answer.
pub(crate) struct Prune {
    root: &'static Keep,
    open: Vec<Open>,
    state: State,
    /// Of the member that is read, as it is written.
    name: Vec<u8>,
    text: Vec<u8>,
}

impl Prune {
    /// Of values, of which several may follow each other.
    pub fn new(root: &'static Keep) -> Self {
        Prune {
            root,
            open: Vec::new(),
            state: State::Between,
            name: Vec::new(),
            text: Vec::new(),
        }
    }

    /// What is kept of the next part.
    pub fn next(&mut self, part: &[u8]) -> Vec<u8> {
        let (mut rest, mut out) = (part, Vec::new());
        while let Some(&byte) = rest.first() {
            let taken = match self.state {
                State::Between => self.between(byte, &mut out),
                State::Name { escaped } => self.name(byte, escaped),
                State::Text { escaped } => self.text(byte, escaped, &mut out),
                State::Bare => self.bare(byte, &mut out),
                State::Whole { .. } => self.whole(rest, &mut out),
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        out
    }

    fn between(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        match (byte, self.open.last_mut()) {
            // Lines are what tells one value from the next.
            (_, None) if byte.is_ascii_whitespace() => out.push(byte),
            (b',', Some(open)) => open.name = open.object,
            (b':', Some(open)) => open.name = false,
            (b'}' | b']', Some(_)) => {
                self.open.pop();
                out.push(byte);
            }
            (b'"', Some(open)) if open.name => {
                self.name.clear();
                self.state = State::Name { escaped: false };
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => return self.begin(byte, out),
        }
        1
    }

    /// A value begins, and says how much of it was taken.
    fn begin(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        if ends_bare(byte) {
            out.push(byte);
            return 1;
        }
        let (kept, keep) = match self.chosen() {
            Some(Keep::All) => (true, None),
            None => (false, None),
            Some(keep) => (true, Some(keep)),
        };
        let object = byte == b'{';
        match keep {
            Some(_) if byte == b'"' => {
                self.text.clear();
                self.state = State::Text { escaped: false };
                return 1;
            }
            Some(keep) if object || byte == b'[' => {
                self.lead(out);
                out.push(byte);
                self.open.push(Open {
                    object,
                    keep,
                    kept: 0,
                    name: object,
                });
                return 1;
            }
            Some(_) => {
                self.lead(out);
                self.state = State::Bare;
            }
            None => {
                if kept {
                    self.lead(out);
                }
                self.state = State::Whole {
                    kept,
                    depth: 0,
                    text: false,
                    escaped: false,
                };
            }
        }
        0
    }

    /// What is kept of the value that begins.
    fn chosen(&self) -> Option<&'static Keep> {
        let Some(open) = self.open.last() else {
            return Some(self.root);
        };
        let few = open.kept < MOST;
        match open.keep {
            Keep::All => Some(&Keep::All),
            Keep::But(names) if open.object => {
                let named = names.iter().any(|name| name.as_bytes() == self.name);
                (!named).then_some(&Keep::All)
            }
            Keep::Members(members) if open.object => {
                let mut members = members.iter();
                let member = members.find(|(name, _)| name.as_bytes() == self.name);
                member.map(|(_, keep)| keep)
            }
            Keep::Begins(heads) if open.object => {
                (few && begins(&self.name, heads)).then_some(&Keep::WORD)
            }
            Keep::But(_) | Keep::Members(_) | Keep::Begins(_) => few.then_some(open.keep),
            Keep::Each(keep) => (!open.object).then_some(*keep),
        }
    }

    /// What stands before a value that is kept.
    fn lead(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        if open.kept > 0 {
            out.push(b',');
        }
        open.kept += 1;
        if open.object {
            out.push(b'"');
            out.extend_from_slice(&self.name);
            out.extend_from_slice(b"\":");
        }
    }

    fn name(&mut self, byte: u8, escaped: bool) -> usize {
        if byte == b'"' && !escaped {
            self.state = State::Between;
        } else {
            // A longer one is none that is looked for.
            if self.name.len() <= LONGEST {
                self.name.push(byte);
            }
            self.state = State::Name {
                escaped: byte == b'\\' && !escaped,
            };
        }
        1
    }

    fn text(&mut self, byte: u8, escaped: bool, out: &mut Vec<u8>) -> usize {
        if byte != b'"' || escaped {
            if self.text.len() <= LONGEST {
                self.text.push(byte);
            }
            self.state = State::Text {
                escaped: byte == b'\\' && !escaped,
            };
            return 1;
        }
        self.state = State::Between;
        let kept = match self.open.last() {
            Some(open) if !open.object => match open.keep {
                Keep::Begins(heads) => begins(&self.text, heads),
                _ => true,
            },
            _ => true,
        };
        if kept {
            self.lead(out);
            out.push(b'"');
            let text = Some(self.text.as_slice());
            let text = text.filter(|text| text.len() <= LONGEST);
            out.extend_from_slice(text.unwrap_or(OVERLONG));
            out.push(b'"');
        }
        1
    }

    fn bare(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        if ends_bare(byte) {
            self.state = State::Between;
            return 0;
        }
        out.push(byte);
        1
    }

    /// As much of a value that is kept as it is, or dropped, as there is.
    fn whole(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let State::Whole {
            kept,
            mut depth,
            mut text,
            mut escaped,
        } = self.state
        else {
            return 0;
        };
        let mut taken = 0;
        let mut ended = false;
        for &byte in bytes {
            if text {
                taken += 1;
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => text = false,
                    _ => continue,
                }
                ended = !text && depth == 0;
            } else {
                // After a number: it belongs to what is around it.
                ended = depth == 0 && ends_bare(byte);
                if ended {
                    break;
                }
                taken += 1;
                match byte {
                    b'"' => text = true,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        ended = depth == 0;
                    }
                    _ => {}
                }
            }
            if ended {
                break;
            }
        }
        self.state = if ended {
            State::Between
        } else {
            State::Whole {
                kept,
                depth,
                text,
                escaped,
            }
        };
        if kept {
            out.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        }
        taken
    }
}

fn ends_bare(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
}

fn begins(text: &[u8], heads: &[&str]) -> bool {
    heads.iter().any(|head| text.starts_with(head.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    static ANY: Keep = Keep::Members(&[
        ("a", Keep::WORD),
        ("b", Keep::All),
        ("c", Keep::Begins(&["x", "y"])),
        ("d", Keep::But(&["a", "b"])),
        (
            "e",
            Keep::Each(&Keep::Members(&[("a", Keep::WORD), ("e", Keep::All)])),
        ),
    ]);

    /// The same of a value that is in memory; none if nothing is kept.
    fn reference(value: &Value, keep: &'static Keep) -> Option<Value> {
        let short = |text: &str| {
            let written = json!(text).to_string().len() - 2;
            json!(if written <= LONGEST { text } else { "?" })
        };
        let pick = |object: &Map<String, Value>, of: &dyn Fn(&str) -> Option<&'static Keep>| {
            let kept = object.iter().filter_map(|(name, value)| {
                let value = reference(value, of(name)?)?;
                Some((name.clone(), value))
            });
            Value::Object(kept.collect())
        };
        Some(match (keep, value) {
            (Keep::All, value) => value.clone(),
            (_, Value::String(text)) => short(text),
            (Keep::But(names), Value::Object(object)) => pick(object, &|name| {
                (!names.contains(&name)).then_some(&Keep::All)
            }),
            (Keep::Members(members), Value::Object(object)) => pick(object, &|name| {
                let found = members.iter().find(|(known, _)| *known == name);
                found.map(|(_, keep)| keep)
            }),
            (Keep::Begins(heads), Value::Object(object)) => pick(object, &|name| {
                begins(name.as_bytes(), heads).then_some(&Keep::WORD)
            }),
            (Keep::Each(_), Value::Object(_)) => json!({}),
            (Keep::Each(keep), Value::Array(all)) => {
                let kept = all.iter().filter_map(|value| reference(value, keep));
                kept.collect()
            }
            (Keep::Begins(heads), Value::Array(all)) => {
                let kept = all.iter().filter(|value| {
                    let text = value.as_str();
                    text.is_none_or(|text| begins(text.as_bytes(), heads))
                });
                kept.filter_map(|value| reference(value, keep)).collect()
            }
            (_, Value::Array(all)) => {
                let kept = all.iter().filter_map(|value| reference(value, keep));
                kept.collect()
            }
            (_, bare) => bare.clone(),
        })
    }

    fn values() -> impl Strategy<Value = Value> {
        let name = || prop_oneof!["[a-e]", "[xyz][a-c]", Just("\"\\{".to_owned())];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[xy\\\\\"{}:,\\[\\]ä\u{1}]{0,5}".prop_map(Value::from),
            Just(Value::from("x".repeat(LONGEST + 1))),
        ];
        leaf.prop_recursive(5, 64, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((name(), inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_kept_does_not_depend_on_where_an_answer_is_cut(
            (all, size, pretty) in (prop::collection::vec(values(), 1..4), 1usize..40, any::<bool>())
        ) {
            let mut text = String::new();
            for value in &all {
                text += &if pretty { format!("{value:#}") } else { value.to_string() };
                text.push('\n');
            }
            let mut prune = Prune::new(&ANY);
            let parts = text.as_bytes().chunks(size);
            let kept: Vec<u8> = parts.flat_map(|part| prune.next(part)).collect();
            let read = serde_json::Deserializer::from_slice(&kept).into_iter();
            let read: Result<Vec<Value>, _> = read.collect();
            let wanted = all.iter().filter_map(|value| reference(value, &ANY));
            prop_assert_eq!(read.unwrap(), wanted.collect::<Vec<_>>());
        }

        #[test]
        fn what_is_no_json_harms_nobody(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Prune::new(&ANY).next(&bytes);
        }
    }

    #[test]
    fn however_much_there_is_little_is_kept() {
        let words =
            |head: &str| -> Vec<String> { (0..5000).map(|n| format!("{head}{n}")).collect() };
        let members: Map<String, Value> = words("x")
            .into_iter()
            .map(|name| (name, json!("v".repeat(2000))))
            .collect();
        for value in [
            json!({"a": words("x")}),
            json!({"c": words("x")}),
            json!({"c": members}),
            json!({"a": "x".repeat(1 << 20), "z": members}),
        ] {
            let kept = Prune::new(&ANY).next(value.to_string().as_bytes());
            assert!(kept.len() < 10_000, "{}", kept.len());
        }
    }
}
