//! Running `lvm`.

use crate::{
    exec::{AtDeadline, Limits, Output, Tool},
    lock,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result, leftover::LeftoverNote};
use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Timeout of a report. A report changes nothing, so it may be killed: it waits for LVM's locks, which a hanging
/// program may hold for ever.
const REPORT: Duration = Duration::from_secs(45);

/// Timeout of a change. After it the change goes on, with the volume's lock: `lvextend`, killed between suspending and
/// resuming a volume, would leave it suspended, and every reader would hang.
const CHANGE: Duration = Duration::from_secs(90);

/// Maximum length of a report. It grows by half a kilobyte for each volume of the group.
const LONGEST_REPORT: Bytes = Bytes(32 << 20);

/// Settings that override lvm.conf. The reports depend on those of their format, and changes on waiting for each other;
/// a volume that lost a disk must not be activated with a hole. JSON makes other report settings irrelevant, and units
/// and format are arguments. LVM's archive would store the whole group's metadata for each change, for thirty days, on
/// the node's root file system.
const SETTINGS: &str = "report{compact_output=0 compact_output_cols=\"\" list_item_separator=\",\" binary_values_as_numeric=0 prefixes=0 quoted=1 columns_as_rows=0 headings=1 mark_hidden_devices=1} log{report_command_log=0 command_names=0 prefix=\"  \" indent=0} global{wait_for_locks=1} activation/activation_mode=degraded backup/archive=0";

/// Settings for a process that udev does not serve: LVM would wait for device nodes for ever, and the monitoring daemon
/// cannot be started.
const WITHOUT_UDEV: &str = " activation{udev_sync=0 udev_rules=0 monitoring=0}";

/// Files in which an administrator says which disks LVM reads.
const CHOICES: [&str; 2] = ["/etc/lvm/lvm.conf", "/etc/lvm/devices/system.devices"];

/// udev's socket (`UDEV_ROOT_RUN` in systemd's src/udev/udev-ctrl.c).
const UDEV: &str = "/run/udev/control";

/// The initial IPC namespace (`PROC_IPC_INIT_INO` in the kernel's include/linux/proc_ns.h), in which udev runs. LVM and
/// udev synchronise with a semaphore. In another IPC namespace LVM would wait for ever, with the group locked.
const FIRST_IPC: &str = "ipc:[4026531839]";

static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Returns how many changes of metadata this process made, or began and left to LVM. Reports from before the last one
/// may be stale.
#[must_use]
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Relaxed)
}

/// Counts a change of metadata that is about to be made.
pub(super) fn count_change() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

fn udev_hears() -> bool {
    let namespace = fs::read_link("/proc/self/ns/ipc");
    Path::new(UDEV).exists() && namespace.is_ok_and(|it| it == Path::new(FIRST_IPC))
}

/// Runs a report about a group on these disks, or on all disks if `disks` is empty. It is killed at its timeout. One that
/// stays at a disk that does not answer is the only one of its group.
pub(super) fn report(group: &str, arguments: &[&str], disks: &[String]) -> Result<Output> {
    let limits = Limits {
        deadline: REPORT,
        at_deadline: AtDeadline::Kill,
        inherit: &[],
    };
    run(arguments, disks, &limits, Some(leftover_note(group)))
}

/// Returns the note of a report about this group. Once an administrator has LVM read other disks, what was left behind
/// says nothing any more.
fn leftover_note(group: &str) -> LeftoverNote {
    let state = |file: &str| {
        let file = fs::metadata(file).ok()?;
        Some((file.ino(), file.ctime(), file.ctime_nsec()))
    };
    LeftoverNote::of(("lvm", group, CHOICES.map(state)))
}

/// Changes something on these disks, as [`attempt`] does, and checks the result.
pub(super) fn change(
    doing: &str,
    arguments: &[&str],
    disks: &[String],
    hold: &[BorrowedFd<'_>],
) -> Result<()> {
    expect_changed(doing, attempt(arguments, disks, hold)?)
}

/// Runs a change on these disks; LVM does not read others, which may have changed meanwhile. `hold` and the volume
/// locks of this process stay locked until the change ends, even if this process dies. The caller checks the output
/// with [`expect_changed`].
pub(super) fn attempt(
    arguments: &[&str],
    disks: &[String],
    hold: &[BorrowedFd<'_>],
) -> Result<Output> {
    let locks = lock::held();
    let hold: Vec<_> = locks
        .iter()
        .map(|lock| lock.as_fd())
        .chain(hold.iter().copied())
        .collect();
    let limits = Limits {
        deadline: CHANGE,
        at_deadline: AtDeadline::Leave,
        inherit: &hold,
    };
    run(arguments, disks, &limits, None)
}

/// Checks that LVM made a change.
pub(super) fn expect_changed(doing: &str, output: Output) -> Result<()> {
    if lacks_room(&output) {
        return Err(Error::new(
            ErrorKind::Exhausted,
            format!("cannot {doing}: the volume group or its thin pool has no room for it"),
        )
        .because(stderr_text(&output)));
    }
    if lacks_metadata(&output) {
        return Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "cannot {doing}: the volume group's own metadata has no room for it; delete volumes, or use another group, made with `vgcreate --metadatasize 16m`"
            ),
        )
        .because(stderr_text(&output)));
    }
    if lacks_target(&output) {
        return Err(Error::new(
            ErrorKind::Storage,
            format!(
                "cannot {doing}: the node's kernel does not have what it needs (dm_mod, or dm_thin_pool for thin volumes); `flexvol doctor` on the node says more"
            ),
        )
        .because(stderr_text(&output)));
    }
    if is_in_use(&output) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!("cannot {doing}: a program on the node has it open; end that first"),
        )
        .because(stderr_text(&output)));
    }
    if is_moved(&output) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!("cannot {doing}: `pvmove` is moving its data; it is done when that has ended, or was ended by `pvmove --abort`"),
        )
        .because(stderr_text(&output)));
    }
    output.success(doing).map(drop)
}

/// Runs `lvm`. The node's lvm.conf decides about `devices/use_devicesfile`: if it is 1 and the file is missing, LVM
/// uses all devices; if the file exists, an administrator chose LVM's devices, and `disks` are among those.
fn run(
    arguments: &[&str],
    disks: &[String],
    limits: &Limits<'_>,
    left: Option<LeftoverNote>,
) -> Result<Output> {
    let udev = udev_hears();
    let mut tool = find("lvm", udev)?
        .with_longest_output(LONGEST_REPORT)
        // "If others are found, they get closed": lvm(8).
        .closing_inherited_fds();
    if let Some(left) = left {
        tool = tool.noted(left);
    }
    let config = match udev {
        true => SETTINGS.to_owned(),
        false => format!("{SETTINGS}{WITHOUT_UDEV}"),
    };
    let (verb, rest) = arguments.split_first().unwrap_or((&"version", &[]));
    let run = |config: &str, devices: &[&str]| {
        let words: Vec<&OsStr> = [verb, "-qq", "--config", config]
            .into_iter()
            .chain(devices.iter().copied())
            .chain(rest.iter().copied())
            .map(OsStr::new)
            .collect();
        tool.run(&words, limits)
    };
    if disks.is_empty() {
        return run(&config, &[]);
    }
    let output = run(&config, &["--devices", &disks.join(",")])?;
    if knows_no_devices(&output) {
        return run(&format!("{config} {}", filter(disks)), &[]);
    }
    Ok(output)
}

/// Whether this LVM lacks the option `--devices`, which exists since 2.03.12. LVM reports that before it reads any disk
/// (`EINVALID_CMD_LINE` in LVM's tools/errors.h is 3).
fn knows_no_devices(output: &Output) -> bool {
    output.status.code() == Some(3) && stderr_text(output).contains("--devices")
}

/// Returns the filter setting that replaces `--devices` where that is missing. A disk may have several names, of which
/// LVM reports one; a filter accepts the disk by any of them.
fn filter(disks: &[String]) -> String {
    let quoted = |disk: &String| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "/_-:".contains(letter);
        // LVM's regular expressions have no escape for special characters.
        let name: String = disk
            .chars()
            .map(|letter| if plain(letter) { letter } else { '.' })
            .collect();
        format!("\"a|^{name}$|\"")
    };
    let accepted: Vec<_> = disks.iter().map(quoted).collect();
    format!("devices/filter=[{},\"r|.*|\"]", accepted.join(","))
}

fn find(tool: &str, udev: bool) -> Result<Tool> {
    let tool = Tool::find(tool)?.with_variable("LVM_SUPPRESS_FD_WARNINGS", "1");
    Ok(match udev {
        true => tool,
        // For libdevmapper, which does not read lvm.conf.
        false => tool.with_variable("DM_DISABLE_UDEV", "1"),
    })
}

/// Removes a device-mapper device that LVM does not know.
///
/// # Errors
/// [`ErrorKind::Busy`] when the device is open.
pub(super) fn remove_mapping(uuid: &str) -> Result<()> {
    let locks = lock::held();
    let hold: Vec<_> = locks.iter().map(|lock| lock.as_fd()).collect();
    let limits = Limits {
        deadline: CHANGE,
        at_deadline: AtDeadline::Leave,
        inherit: &hold,
    };
    let words = ["remove", "--uuid", uuid].map(OsStr::new);
    let output = find("dmsetup", udev_hears())?.run(&words, &limits)?;
    // The text of `EBUSY` in the C library.
    if !output.status.success() && stderr_text(&output).contains("resource busy") {
        return Err(
            Error::new(ErrorKind::Busy, "cannot remove the device: it is open")
                .because(stderr_text(&output)),
        );
    }
    output.success("remove the device").map(drop)
}

/// Returns a program's standard error output.
pub(super) fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

fn stderr_contains(output: &Output, words: &[&str]) -> bool {
    let said = stderr_text(output);
    words.iter().any(|words| said.contains(words))
}

/// Whether the command failed with one of these messages. LVM's exit status is 5 for every failure (`ECMD_FAILED`).
fn failed_with(output: &Output, words: &[&str]) -> bool {
    !output.status.success() && stderr_contains(output, words)
}

/// Messages of LVM's lib/activate/activate.c (`lv_check_not_in_use`).
fn is_in_use(output: &Output) -> bool {
    failed_with(output, &[" in use.", " is used by another device."])
}

/// Whether LVM did not find a disk of the group among the disks it was given: `Couldn't find device with uuid`,
/// `is missing PV`, `Device for PV %s not found` in LVM's lib/metadata/metadata.c and lib/cache/lvmcache.c.
pub(super) fn misses_a_disk(output: &Output) -> bool {
    stderr_contains(
        output,
        &["find device with uuid", " is missing PV ", "evice for PV "],
    )
}

/// Whether `pvmove` is moving the volume's data: `Can't resize locked logical volume`, formerly `locked LV`, in LVM's
/// lib/metadata/lv_manip.c.
fn is_moved(output: &Output) -> bool {
    failed_with(output, &["Can't resize locked "])
}

/// Whether the kernel lacks a device-mapper target: `Required device-mapper target(s) not detected in your kernel` and
/// `target support missing from kernel?` in LVM's lib/activate, `Is device-mapper driver missing from kernel?` in its
/// libdm.
fn lacks_target(output: &Output) -> bool {
    failed_with(
        output,
        &["not detected in your kernel", "missing from kernel"],
    )
}

/// Whether the group's metadata area is full: LVM's lib/format_text/format-text.c (`_vg_write_raw`), before any commit.
fn lacks_metadata(output: &Output) -> bool {
    failed_with(
        output,
        &[
            "too large for circular buffer",
            "exceeds maximum metadata size",
        ],
    )
}

/// Whether the group or thin pool is full: `Insufficient free space` and, sometimes within a sentence,
/// `Insufficient suitable allocatable extents` in lib/metadata/lv_manip.c; `is above threshold` in
/// lib/metadata/thin_manip.c, or `reached threshold` when a thin volume is created.
fn lacks_room(output: &Output) -> bool {
    failed_with(
        output,
        &[
            "Insufficient ",
            "insufficient ",
            "above threshold",
            "reached threshold",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_lvm_is_given_the_same_disks_as_a_filter() {
        let disks = ["/dev/vda", "/dev/mapper/a.b|c", "/dev/disk/a+"].map(str::to_owned);
        let expected = r#"devices/filter=["a|^/dev/vda$|","a|^/dev/mapper/a.b.c$|","a|^/dev/disk/a.$|","r|.*|"]"#;
        assert_eq!(filter(&disks), expected);
    }
}
