//! Checks that do not apply to each of our drivers, with the reasons. No other check may be left out.

/// The beginning of checks' names, and the reason that the tester gives.
pub type Reason = (&'static str, &'static str);

/// None of our drivers supports a callout that kubelet has not needed since 1.6.5.
pub const NAMELESS: &[Reason] = &[("gvn.", "getvolumename is Not supported")];

/// kubelet changes the files' group, except for directory volumes, whose driver does that itself.
pub const GROUPED: &[Reason] = &[(
    "mnt.fsgroup-both-keys",
    "init says fsGroup: true: kubelet gives the files to the group",
)];

/// Local volumes without attach.
pub const NOT_ATTACHED: &[Reason] = &[
    ("att.", "init says attach: false"),
    ("wfa.", "init says attach: false"),
    ("isa.", "init says attach: false"),
    ("det.", "init says attach: false"),
];

/// A local volume cannot be on another node.
pub const ALWAYS_HERE: &[Reason] = &[("isa.", "isattached is Not supported")];

/// Volumes without limits share what is free.
pub const WITHOUT_LIMITS: &[Reason] = &[(
    "cap.goes-down",
    "each volume may fill the whole file system: provision reserves nothing",
)];

/// A directory volume has no device of its own.
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
