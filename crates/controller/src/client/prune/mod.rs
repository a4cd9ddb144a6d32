//! Streaming pruner of JSON responses: keeps only needed fields. The author of a claim can write a mebibyte of labels
//! into it, and one response contains hundreds of objects.
//!
//! JSON is processed byte by byte, so dropped data is never in memory, not even for a single object. Invalid JSON stays
//! invalid. An object costs at most its kind's limit in bytes, and that limit determines the page size.

mod budget;
mod checksum;
mod keep;
#[cfg(test)]
mod tests;
mod whole;

pub(crate) use checksum::checksum_of;
pub(crate) use keep::{Keep, TooLarge};

use budget::Budget;
use checksum::Members;
use k8s_openapi::jiff::Timestamp;
use keep::{DIGITS, MAX_LENGTH, MOST, OVERLONG, TRUNCATED, begins};

/// An open object or array.
struct Open {
    object: bool,
    keep: &'static Keep,
    /// Number of its elements that were kept.
    kept: usize,
    /// Whether a member's name comes next.
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
        keep: &'static Keep,
    },
    /// A number, or `true`.
    Bare,
    /// An object of which only a checksum is kept.
    Checksum,
    /// A value that is kept unchanged, or dropped.
    Whole {
        kept: bool,
        depth: usize,
        text: bool,
        escaped: bool,
    },
}

/// State of the pruner between two chunks of a response.
pub(crate) struct Prune {
    root: &'static Keep,
    open: Vec<Open>,
    state: State,
    /// Name of the current member, as written.
    name: Vec<u8>,
    text: Vec<u8>,
    members: Members,
    budget: Option<Budget>,
    failed: Option<TooLarge>,
}

impl Prune {
    /// Creates a pruner of one or several consecutive values.
    pub fn new(root: &'static Keep) -> Self {
        Prune {
            root,
            open: Vec::new(),
            state: State::Between,
            name: Vec::new(),
            text: Vec::new(),
            members: Members::new(),
            budget: None,
            failed: None,
        }
    }

    /// Prunes the next chunk.
    ///
    /// # Errors
    /// When an object exceeds its limit and is useless if it is truncated.
    pub fn next(&mut self, part: &[u8]) -> Result<Vec<u8>, TooLarge> {
        let (mut rest, mut out) = (part, Vec::new());
        while let Some(&byte) = rest.first() {
            let taken = match self.state {
                State::Between => self.between(byte, &mut out),
                State::Name { escaped } => self.name(byte, escaped),
                State::Text { .. } => self.text(byte, &mut out),
                State::Bare => self.bare(byte, &mut out),
                State::Checksum => self.checksum(byte, &mut out),
                State::Whole { .. } => self.whole(rest, &mut out),
            };
            if let Some(failed) = self.failed {
                return Err(failed);
            }
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(out)
    }

    fn between(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        match (byte, self.open.last_mut()) {
            // Newlines separate values.
            (_, None) if byte.is_ascii_whitespace() => out.push(byte),
            (b',', Some(open)) => open.name = open.object,
            (b':', Some(open)) => open.name = false,
            (b'}' | b']', Some(_)) => {
                let closed = self.open.pop();
                let is_truncated = self.ended();
                if let Some(closed) = closed.filter(|open| is_truncated && open.object) {
                    if closed.kept > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(TRUNCATED);
                }
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

    /// Begins a value. Returns the number of bytes that were consumed.
    fn begin(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        if ends_bare(byte) {
            out.push(byte);
            return 1;
        }
        let (opens, object) = (matches!(byte, b'{' | b'['), byte == b'{');
        let keep = match self.chosen() {
            Some(Keep::Within(most, keep)) => self.begin_budget(*most, keep, false),
            Some(Keep::Whole(most, keep)) => self.begin_budget(*most, keep, true),
            keep => keep,
        };
        match keep {
            Some(Keep::All) => {
                let kept = self.pay(self.lead_length());
                if kept {
                    self.lead(out);
                }
                self.begin_as_it_is(kept);
            }
            Some(Keep::Checksum) if object => self.begin_checksum(),
            Some(keep)
                if opens
                    && !matches!(
                        keep,
                        Keep::Text(_) | Keep::Time | Keep::Sure | Keep::Checksum
                    ) =>
            {
                if self.pay(self.lead_length() + 2) {
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
                self.begin_as_it_is(false);
            }
            Some(keep) if !opens => {
                self.text.clear();
                if byte == b'"' {
                    self.state = State::Text {
                        escaped: false,
                        keep,
                    };
                    return 1;
                }
                self.state = State::Bare;
            }
            _ => self.begin_as_it_is(false),
        }
        0
    }

    fn begin_as_it_is(&mut self, kept: bool) {
        self.state = State::Whole {
            kept,
            depth: 0,
            text: false,
            escaped: false,
        };
    }

    /// Returns the rule for the value that begins.
    fn chosen(&mut self) -> Option<&'static Keep> {
        let Some(open) = self.open.last() else {
            return Some(self.root);
        };
        let (few, named) = (open.kept < MOST, self.name.len() <= MAX_LENGTH);
        let (keep, fits) = match open.keep {
            Keep::All => (Some(&Keep::All), true),
            Keep::But(names) if open.object => {
                let left_out = names.iter().any(|name| name.as_bytes() == self.name);
                ((!left_out).then_some(&Keep::All), named)
            }
            Keep::Members(members) if open.object => {
                let mut members = members.iter();
                let member = members.find(|(name, _)| name.as_bytes() == self.name);
                (member.map(|(_, keep)| keep), named)
            }
            Keep::Begins(head, keep) if open.object => {
                (begins(&self.name, head).then_some(*keep), few && named)
            }
            Keep::Named(is_kept, keep) if open.object => {
                (is_kept(&self.name).then_some(*keep), few && named)
            }
            Keep::Words(_) | Keep::Text(_) | Keep::Time | Keep::Sure | Keep::Checksum
                if open.object =>
            {
                (None, true)
            }
            Keep::Each(keep) => (Some(*keep), !open.object || named),
            // Such a rule is never on the stack.
            Keep::Within(_, keep) | Keep::Whole(_, keep) => (Some(*keep), true),
            Keep::Text(_)
            | Keep::Time
            | Keep::Sure
            | Keep::Checksum
            | Keep::But(_)
            | Keep::Members(_)
            | Keep::Begins(..)
            | Keep::Named(..)
            | Keep::Words(_) => (Some(open.keep), few),
        };
        if keep.is_some() && !fits {
            self.mark_truncated();
            return None;
        }
        keep
    }

    /// Length of the separator and the name before a kept value.
    fn lead_length(&self) -> usize {
        match self.open.last() {
            Some(open) if open.object => self.name.len() + 4,
            Some(_) => 1,
            None => 0,
        }
    }

    /// Writes the separator and the name before a kept value.
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
            // A longer name matches no rule.
            if self.name.len() <= MAX_LENGTH {
                self.name.push(byte);
            }
            self.state = State::Name {
                escaped: byte == b'\\' && !escaped,
            };
        }
        1
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        let State::Text { escaped, keep } = self.state else {
            return 0;
        };
        let most = match keep {
            Keep::Text(most) => *most,
            _ => MAX_LENGTH,
        };
        if byte != b'"' || escaped {
            if self.text.len() <= most {
                self.text.push(byte);
            }
            self.state = State::Text {
                escaped: byte == b'\\' && !escaped,
                keep,
            };
            return 1;
        }
        self.state = State::Between;
        let kept = match (self.open.last().map(|open| open.keep), keep) {
            (Some(Keep::Words(words)), _) => words.iter().any(|word| word.as_bytes() == self.text),
            (_, Keep::Time) => is_time(&self.text),
            _ => true,
        };
        if self.text.len() > most {
            self.text = OVERLONG.to_vec();
        }
        if kept {
            self.text.insert(0, b'"');
            self.text.push(b'"');
            self.put_text(matches!(keep, Keep::Sure | Keep::Words(_)), out);
        }
        self.ended();
        1
    }

    fn bare(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        if !ends_bare(byte) {
            if self.text.len() <= DIGITS {
                self.text.push(byte);
            }
            return 1;
        }
        self.state = State::Between;
        if self.text.len() > DIGITS {
            self.text = b"null".to_vec();
        }
        self.put_text(false, out);
        self.ended();
        0
    }

    fn put_text(&mut self, sure: bool, out: &mut Vec<u8>) {
        if sure || self.pay(self.lead_length() + self.text.len()) {
            self.lead(out);
            out.extend_from_slice(&self.text);
        }
    }
}

fn is_time(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| text.parse::<Timestamp>().is_ok())
}

fn ends_bare(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
}
