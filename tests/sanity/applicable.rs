//! What does not apply to each of our drivers, and why; nothing else may be left out.

/// A check, or all whose names begin so, and the reason the tester gives.
pub type Reason = (&'static str, &'static str);

/// All our drivers say so to what has had no use since 1.6.5.
pub const NAMELESS: &[Reason] = &[("gvn.", "getvolumename is Not supported")];

/// Kubelet gives the files to the group; directory volumes do it themselves.
pub const GROUPED: &[Reason] = &[(
    "mnt.fsgroup-both-keys",
    "init says fsGroup: true: kubelet gives the files to the group",
)];

/// Local volumes that need no controller.
pub const NOT_ATTACHED: &[Reason] = &[
    ("att.", "init says attach: false"),
    ("wfa.", "init says attach: false"),
    ("isa.", "init says attach: false"),
    ("det.", "init says attach: false"),
];

/// A local volume cannot be elsewhere, so there is nothing to ask.
pub const ALWAYS_HERE: &[Reason] = &[("isa.", "isattached is Not supported")];

/// A directory has no device of its own.
pub const DIRECTORIES: &[Reason] = &[
    (
        "fmt.",
        "the configuration says kind = \"directory\": nothing is formatted",
    ),
    (
        "umt.dead-server",
        "the configuration says kind = \"directory\", and no kill_server",
    ),
];
