//! `flexvol-sanity` on backends with requirements that only the virtual machine meets: volume groups, quotas, and
//! devices with read errors.

#[path = "../sanity/applicable.rs"]
#[allow(
    dead_code,
    reason = "the other lists are for drivers that are not run here"
)]
pub mod applicable;
#[path = "../sanity/found.rs"]
#[allow(dead_code, reason = "which checks there are is asked elsewhere")]
mod found;

use crate::NEEDS;
use applicable::{ALWAYS_HERE, DIRECTORIES, GROUPED, NAMELESS, NOT_ATTACHED, Reason};
use flexvol_lab::vm::{Machine, Setup};
use flexvol_testing::{Points, Test, arena, budget, executable};
use found::{Found, passes};
use std::{fs, time::Duration};

pub const TESTS: &[Test] = &[
    Test {
        name: "the lvm driver passes where devices, growth and failing disks are tested",
        needs: NEEDS,
        run: |points| lvm(false, FOR_LVM, &[NAMELESS, GROUPED, NOT_ATTACHED], points),
    },
    Test {
        name: "the lvm driver with attach passes where its volumes are attached",
        needs: NEEDS,
        run: |points| {
            let lists = [NAMELESS, GROUPED, ALWAYS_HERE];
            lvm(true, FOR_ATTACHED, &lists, points);
        },
    },
    Test {
        name: "the dir driver passes where projects of an xfs are its limits",
        needs: NEEDS,
        run: dir,
    },
];

/// Timeout. A run takes a minute on this machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs the tester on the driver that the script configured in `/disk.toml`, with the tester's configuration in
/// `/sanity.toml`.
fn tested(script: &str, more: &str) -> Found {
    let mut machine = Machine::restore(&Setup::new(&arena())).unwrap();
    let driver = executable(env!("CARGO_BIN_EXE_flexvol"));
    machine.put_executable(&driver, "/opt/flexvol").unwrap();
    let tester = driver.with_file_name("flexvol-sanity");
    machine
        .put_executable(&tester, "/opt/flexvol-sanity")
        .unwrap();
    let script = format!(
        "set -e\nmkdir -p /plugins /var/log\n{script}\n\
         /opt/flexvol install --name example.com/disk --config /disk.toml --plugin-dir /plugins >&2\n\
         set +e\n\
         /opt/flexvol-sanity run --format json --jobs 2 --config /sanity.toml \
         --driver /plugins/example.com~disk/disk {more} >/report 2>/said\n\
         code=$?; cat /said; exit $code"
    );
    let ran = machine.run(&script, LIMIT).unwrap();
    let place = tempfile::tempdir().unwrap();
    let report = place.path().join("report");
    machine.get("/report", &report).unwrap();
    let report = fs::read_to_string(report).unwrap();
    Found::of(&report, ran.status).unwrap_or_else(|error| panic!("{error}: {}", ran.output))
}

/// A script after which reads of the volume fail, as on a worn-out disk.
const BREAK: &str = r#"
name=$(dmsetup info -c --noheadings -o name "$SANITY_CONTENT")
sectors=$(blockdev --getsz "$SANITY_CONTENT")
dmsetup suspend --noflush --nolockfs "$name"
echo "0 $sectors error" | dmsetup load "$name"
dmsetup resume "$name"
"#;

/// Checks for lvm, where every callout takes a second in this machine. Unless every point is tried, the rest is
/// left to other block volumes, and for directories to btrfs. Checks that do not apply cost nothing.
const FOR_LVM: &str =
    "fmt.uns,fmt.unr,mnt.happy,mnt.fsgroup,exp.grow,umt.dead,att.,wfa.,isa.,det.,gvn.";
const FOR_DIRECTORIES: &str =
    "mnt.happy,mnt.ro,mnt.fsgroup,exp.,umt.keeps,umt.dead,att.,wfa.,isa.,det.,gvn.,fmt.";
/// Checks with attach. The rest runs on volumes in files, with the same code.
const FOR_ATTACHED: &str =
    "att.happy,att.repeat,wfa.returns,isa.,det.happy,det.repeat,mnt.fsgroup,gvn.";

fn lvm(attach: bool, some: &str, lists: &[&[Reason]], points: &Points) {
    let script = format!(
        "vgcreate -q vg0 /dev/vda /dev/vdb /dev/vdc /dev/vdd >&2\n\
         /opt/flexvol pool init --group vg0 >&2\n\
         printf 'backend = \"lvm\"\\nattach = {attach}\\n[pools.default]\\ngroup = \"vg0\"\\n' >/disk.toml\n\
         cat >/break <<'X'\n#!/bin/bash\nset -e{BREAK}X\n\
         chmod +x /break\n\
         cat >/sanity.toml <<'X'\nsize = \"320Mi\"\ndeadline = 600\n[volume]\n\
         content = \"/dev/vg0/flexvol-{{handle:sha256:32}}\"\nbreak_reads = [\"/break\"]\nX\n"
    );
    passes(&tested(&script, &which(some)), lists, &[], points);
}

fn dir(points: &Points) {
    let script = "mkdir /pool\n\
         mkfs.xfs -q /dev/vda && mount -o prjquota /dev/vda /pool\n\
         /opt/flexvol pool init /pool >&2\n\
         printf 'backend = \"dir\"\\n[pools.default]\\npath = \"/pool\"\\n' >/disk.toml\n\
         printf 'size = \"64Mi\"\\ndeadline = 600\\n[volume]\\nkind = \"directory\"\\n' >/sanity.toml\n";
    let lists: &[&[Reason]] = &[NAMELESS, NOT_ATTACHED, DIRECTORIES];
    passes(&tested(script, &which(FOR_DIRECTORIES)), lists, &[], points);
}

/// Restricts the run to these checks, unless every point is tried.
fn which(some: &str) -> String {
    match budget().every_point {
        true => String::new(),
        false => format!("--filter {some}"),
    }
}
