//! Values that are kept unchanged, or dropped.

use super::{Prune, State, TooLarge, ends_bare};

impl Prune {
    /// Consumes the available part of a value that is kept unchanged, or dropped.
    pub(super) fn whole(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
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
                // The byte after a number belongs to the enclosing value.
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
            if self.pay(taken) {
                out.extend_from_slice(bytes.get(..taken).unwrap_or_default());
            } else {
                // A truncated value is useless.
                self.failed = self.budget.as_ref().map(|budget| TooLarge(budget.most));
            }
        }
        if ended {
            self.ended();
        }
        taken
    }
}
