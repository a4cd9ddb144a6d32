//! What right drivers may do differently from each other, each a word in `.broken`.

/// A difference that is no fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shape {
    /// Volumes are attached, and mounted by `mountdevice`.
    Attached,
    /// `mount` too, after `mountdevice`.
    ThreeStages,
    /// Neither: kubelet formats and mounts the device.
    LeavesMounting,
    /// A volume is looked at when it is attached, and refused then.
    RefusesAtAttach,
    /// `init` says that nothing grows.
    FixedSize,
    /// The option `pool` has a default, and volumes of one pool are not in another.
    Pooled,
    /// The backend makes volumes of 512 MiB, 1 GiB and so on.
    RoundsUp,
}

/// Each with its word.
const SHAPES: [(&str, Shape); 7] = [
    ("attached", Shape::Attached),
    ("three-stages", Shape::ThreeStages),
    ("leaves-mounting", Shape::LeavesMounting),
    ("refuses-at-attach", Shape::RefusesAtAttach),
    ("fixed-size", Shape::FixedSize),
    ("pooled", Shape::Pooled),
    ("rounds-up", Shape::RoundsUp),
];

/// What a backend that rounds up makes volumes of.
pub const UNIT: u64 = 512 << 20;

impl Shape {
    pub fn of(word: &str) -> Option<Self> {
        let known = SHAPES.iter().find(|(name, _)| *name == word);
        known.map(|(_, shape)| *shape)
    }

    /// Whether its volumes are attached.
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
