//! Differences between correct drivers, each a word in `.broken`.

/// A difference that is no fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shape {
    /// Volumes are attached, and mounted by `mountdevice`.
    Attached,
    /// `mount` too, after `mountdevice`.
    ThreeStages,
    /// Neither `mount` nor `mountdevice`: kubelet formats and mounts the device.
    LeavesMounting,
    /// `attach` checks the volume and refuses it.
    RefusesAtAttach,
    /// `init` says that volumes cannot grow.
    FixedSize,
    /// The option `pool` has a default, and a volume is only in its own pool.
    Pooled,
    /// The backend makes volumes of 512 MiB, 1 GiB and so on.
    RoundsUp,
}

/// The shapes and their words.
const SHAPES: [(&str, Shape); 7] = [
    ("attached", Shape::Attached),
    ("three-stages", Shape::ThreeStages),
    ("leaves-mounting", Shape::LeavesMounting),
    ("refuses-at-attach", Shape::RefusesAtAttach),
    ("fixed-size", Shape::FixedSize),
    ("pooled", Shape::Pooled),
    ("rounds-up", Shape::RoundsUp),
];

/// The unit of a backend that rounds up.
pub const UNIT: u64 = 512 << 20;

impl Shape {
    pub fn of(word: &str) -> Option<Self> {
        let known = SHAPES.iter().find(|(name, _)| *name == word);
        known.map(|(_, shape)| *shape)
    }

    /// Whether volumes of this shape are attached.
    pub fn attaches(self) -> bool {
        use Shape::{
            Attached, FixedSize, LeavesMounting, Pooled, RefusesAtAttach, RoundsUp, ThreeStages,
        };
        match self {
            Attached | ThreeStages | LeavesMounting | RefusesAtAttach | Pooled => true,
            FixedSize | RoundsUp => false,
        }
    }
}
