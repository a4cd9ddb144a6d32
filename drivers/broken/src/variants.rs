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
    /// `capacity` stays, because more may be promised than there is; the pool tells what is promised.
    Thin,
    /// What is mounted is new each time.
    Ephemeral,
}

/// The variants and their words.
const VARIANTS: [(&str, Variant); 9] = [
    ("attached", Variant::Attached),
    ("three-stages", Variant::ThreeStages),
    ("leaves-mounting", Variant::LeavesMounting),
    ("refuses-at-attach", Variant::RefusesAtAttach),
    ("fixed-size", Variant::FixedSize),
    ("pooled", Variant::Pooled),
    ("rounds-up", Variant::RoundsUp),
    ("thin", Variant::Thin),
    ("ephemeral", Variant::Ephemeral),
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
            Attached, Ephemeral, FixedSize, LeavesMounting, Pooled, RefusesAtAttach, RoundsUp,
            Thin, ThreeStages,
        };
        match self {
            Attached | ThreeStages | LeavesMounting | RefusesAtAttach | Pooled => true,
            Ephemeral | FixedSize | RoundsUp | Thin => false,
        }
    }
}
