//! Eighteen ways in which data can lie on a non-blank device.

use super::{Content, length};

/// A change of an image that leaves it non-blank.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Description of the change.
    pub name: &'static str,
    /// Whether the file's blocks are allocated before it is written.
    pub allocated: bool,
    change: fn(&Content) -> Content,
}

impl Variant {
    /// Returns the changed image.
    #[must_use]
    pub fn apply(&self, content: &Content) -> Content {
        (self.change)(content)
    }
}

const MIB: u64 = 1 << 20;

/// All eighteen.
pub const VARIANTS: &[Variant] = &[
    variant("as it was made", Content::clone),
    Variant {
        name: "in an allocated file",
        allocated: true,
        change: Content::clone,
    },
    variant("at an odd size", |content| {
        content.map(content.size + 3 * 512, |at, byte| Some((at, byte)))
    }),
    variant("cut behind its first data", cut),
    variant("shifted by a sector", |content| shifted(content, 512)),
    variant("shifted behind the first MiB", |content| {
        shifted(content, MIB)
    }),
    variant("half of its first block wiped", half_wiped),
    variant("only a copy of its first block, at the end", copy_at_end),
    variant("only its last byte", |content| single(content, true)),
    variant("only its first byte", |content| single(content, false)),
    variant("every magic number changed in a bit", |content| {
        // A byte with only this bit would become zero, so it is changed otherwise.
        content.map(content.size, |at, byte| {
            Some((at, if byte == 0x10 { 0x30 } else { byte ^ 0x10 }))
        })
    }),
    variant("at the end of a larger device", |content| {
        let size = content.size + 4 * MIB;
        let (first, _) = content.nonzero().next().unwrap_or_default();
        let (last, _) = content.nonzero().next_back().unwrap_or_default();
        let up = size - 1 - last;
        debug_assert!(first + up < size);
        content.map(size, |at, byte| Some((at + up, byte)))
    }),
    Variant {
        name: "behind the first MiB of an allocated file",
        allocated: true,
        change: |content| shifted(content, MIB),
    },
    variant("shifted by a byte", |content| {
        // The image is enlarged, so that its last byte is kept.
        content.map(content.size + 512, |at, byte| Some((at + 1, byte)))
    }),
    variant("shifted by a page", |content| shifted(content, 4096)),
    variant("from its end to its beginning", mirrored),
    variant("every second byte cleared", |content| {
        let (first, _) = content.nonzero().next().unwrap_or_default();
        content.map(content.size, |at, byte| {
            ((at - first) % 2 == 0).then_some((at, byte))
        })
    }),
    variant("only a byte in its middle", |content| {
        let count = content.nonzero().count();
        let kept = content.nonzero().nth(count / 2).map(|(at, _)| at);
        content.map(content.size, |at, byte| {
            (Some(at) == kept).then_some((at, byte))
        })
    }),
];

const fn variant(name: &'static str, change: fn(&Content) -> Content) -> Variant {
    Variant {
        name,
        allocated: false,
        change,
    }
}

fn shifted(content: &Content, by: u64) -> Content {
    content.map(content.size + by, |at, byte| Some((at + by, byte)))
}

fn mirrored(content: &Content) -> Content {
    let mut mirrored = Content::new(content.size);
    for (offset, bytes) in content.parts.iter().rev() {
        let bytes: Vec<_> = bytes.iter().rev().copied().collect();
        let offset = content.size - offset - length(&bytes);
        mirrored = mirrored.with(offset, &bytes);
    }
    mirrored
}

fn first_part(content: &Content) -> (u64, &[u8]) {
    let (offset, bytes) = content.parts.first().expect("an image that is not blank");
    (*offset, bytes)
}

fn cut(content: &Content) -> Content {
    let (first, _) = content.nonzero().next().unwrap_or_default();
    let size = (first + 1).next_multiple_of(512);
    content.map(size, |at, byte| Some((at, byte)))
}

fn half_wiped(content: &Content) -> Content {
    let (offset, bytes) = first_part(content);
    let mut bytes_of = content
        .nonzero()
        .take_while(|(at, _)| *at < offset + length(bytes));
    let first = bytes_of.next().unwrap_or_default().0;
    let last = bytes_of.last().map_or(first, |(at, _)| at);
    // The half that remains if a device is wiped from its start; a single byte remains as a whole.
    let middle = first + (last - first).div_ceil(2);
    content.map(content.size, |at, byte| {
        (at >= middle).then_some((at, byte))
    })
}

fn copy_at_end(content: &Content) -> Content {
    let (offset, bytes) = first_part(content);
    let end = offset + length(bytes);
    let up = content.size - end;
    content.map(content.size, |at, byte| {
        (at < end).then_some((at + up, byte))
    })
}

fn single(content: &Content, last: bool) -> Content {
    let mut bytes = content.nonzero();
    let found = if last {
        bytes.next_back()
    } else {
        bytes.next()
    };
    let kept = found.map(|(at, _)| at);
    content.map(content.size, |at, byte| {
        (Some(at) == kept).then_some((at, byte))
    })
}
