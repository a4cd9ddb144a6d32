//! A driver in the style of classic scripts, and all its faults.

use crate::{executable, tester::run_through};
use flexvol_testing::{Need, Points, Sandbox, tests};
use std::{fs, path::Path};

tests! {
    "the faults of a classic script are found", &[Need::Root, Need::Tool("jq", "jq"), Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("losetup", "mount")]
        => classic;
}

/// Faults that drivers of this kind were seen to have.
const FAULTS: &[&str] = &[
    // A usage text, and unquoted arguments.
    "cli.no-args",
    "cli.missing-args",
    "cli.bad-json",
    "cli.json-not-object",
    "cli.spaces-in-paths",
    // echo -n.
    "out.newline",
    // {"status":"Success"} without capabilities.
    "init.success-all-capabilities",
    // Always true.
    "isa.false-is-success",
    // Data that blkid does not know is formatted.
    "fmt.unsigned-data-refused",
    "fmt.partition-table-refused",
    "fmt.ambivalent-refused",
    // kubernetes.io/readwrite is ignored.
    "mnt.ro-is-ro",
    // Anything that is mounted there is taken for the volume.
    "mnt.other-thing-mounted-there",
    // Two mkfs at once.
    "con.same-mount-8x",
    // mkfs -t $fs, which the shell splits at spaces.
    "cli.shell-metachars",
    // A failure to write the log is reported on standard error.
    "out.readonly-log-dir",
];

fn classic(points: &Points) {
    let sandbox = Sandbox::new(&executable());
    let directory = sandbox.plugins().join("example.com~classic-shell");
    fs::create_dir(&directory).unwrap();
    let driver = directory.join("classic-shell");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers/classic-shell/classic-shell");
    // Copies the mode as well.
    fs::copy(script, &driver).unwrap();
    let config = sandbox.path("sanity.toml");
    fs::write(
        &config,
        "fs_type = \"ext4\"\n[options]\nimage = \"{image}\"\n",
    )
    .unwrap();
    // Its log is on a tmpfs, which goes with the mount namespace.
    let log = "mount -t tmpfs none /var/log && exec \"$0\" \"$@\"";
    let own = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        log,
    ];
    let found = run_through(&own, &driver, &config, &[]);
    let failed = found.failed();
    let missed: Vec<_> = FAULTS
        .iter()
        .filter(|name| !failed.contains(*name))
        .collect();
    let about: Vec<_> = missed.iter().map(|name| found.about(name)).collect();
    assert!(
        missed.is_empty(),
        "not found: {}; found: {failed:?}",
        about.join("\n")
    );
    assert_eq!(found.exit, 1);
    points.add(FAULTS.len() as u64);
}
