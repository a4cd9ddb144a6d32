//! Differences between correct drivers, each a word in `.broken`.

/// A difference that is no fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Variant {
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

/// The variants and their words.
const VARIANTS: [(&str, Variant); 7] = [
    ("attached", Variant::Attached),
    ("three-stages", Variant::ThreeStages),
    ("leaves-mounting", Variant::LeavesMounting),
    ("refuses-at-attach", Variant::RefusesAtAttach),
    ("fixed-size", Variant::FixedSize),
    ("pooled", Variant::Pooled),
    ("rounds-up", Variant::RoundsUp),
];

/// The unit of a backend that rounds up.
pub const UNIT: u64 = 512 << 20;

impl Variant {
    pub fn of(word: &str) -> Option<Self> {
        let known = VARIANTS.iter().find(|(name, _)| *name == word);
        known.map(|(_, variant)| *variant)
    }

    /// Whether volumes of this variant are attached.
    pub fn attaches(self) -> bool {
        use Variant::{
            Attached, FixedSize, LeavesMounting, Pooled, RefusesAtAttach, RoundsUp, ThreeStages,
        };
        match self {
            Attached | ThreeStages | LeavesMounting | RefusesAtAttach | Pooled => true,
            FixedSize | RoundsUp => false,
        }
    }
}
