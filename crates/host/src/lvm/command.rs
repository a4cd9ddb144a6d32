//! Running `lvm`.

use crate::{
    exec::{AtDeadline, Limits, Output, Tool},
    lock,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::{
    ffi::OsStr,
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// A report changes nothing, so it may be killed: it waits for LVM's locks, which a program in
/// trouble may hold for ever.
const REPORT: Duration = Duration::from_secs(45);

/// A change is never killed: `lvextend` killed between suspending a volume and resuming it leaves
/// it suspended, and everybody who reads it waits. It goes on with the volume's lock.
const CHANGE: Duration = Duration::from_secs(90);

/// Reports grow with the volumes of a group, by half a kilobyte each.
const LONGEST_REPORT: Bytes = Bytes(32 << 20);

/// What administrators may have changed in lvm.conf: the reports below rely on the first, the changes
/// on waiting for each other, and a volume that lost a disk must not get a device with a hole. Of what
/// else a report looks like JSON leaves nothing, and units and the format are arguments. LVM's archive would have a
/// copy of the whole group's metadata for each change, for thirty days, on the node's root file system.
const SETTINGS: &str = "report{compact_output=0 compact_output_cols=\"\" list_item_separator=\",\" binary_values_as_numeric=0 prefixes=0 quoted=1 columns_as_rows=0 headings=1 mark_hidden_devices=1} log{report_command_log=0 command_names=0 prefix=\"  \" indent=0} global{wait_for_locks=1} activation/activation_mode=degraded backup/archive=0";

/// Where no udev hears it, nobody answers LVM when it waits for a device's node to be made, and
/// nobody starts the daemon that monitors.
const WITHOUT_UDEV: &str = " activation{udev_sync=0 udev_rules=0 monitoring=0}";

/// Where udev listens (`UDEV_ROOT_RUN` in systemd's src/udev/udev-ctrl.c).
const UDEV: &str = "/run/udev/control";

/// LVM and udev wait for each other by a semaphore, which is another one in another namespace: LVM
/// would wait for ever, with the group locked. This is the first namespace's number
/// (`PROC_IPC_INIT_INO` in the kernel's include/linux/proc_ns.h), in which udev runs.
const FIRST_IPC: &str = "ipc:[4026531839]";

static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How many changes this process has made, or begun and left to LVM: what was reported before the last one may not
/// be so any more.
#[must_use]
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Relaxed)
}

fn udev_hears() -> bool {
    let namespace = fs::read_link("/proc/self/ns/ipc");
    Path::new(UDEV).exists() && namespace.is_ok_and(|it| it == Path::new(FIRST_IPC))
}

/// Asks, of these disks only, or of all where none is named; what takes too long is killed.
pub(super) fn report(arguments: &[&str], disks: &[String]) -> Result<Output> {
    let limits = Limits {
        deadline: REPORT,
        at_deadline: AtDeadline::Kill,
        hold: &[],
    };
    run(arguments, disks, &limits)
}

/// Changes something on these disks, as [`attempt`] does.
pub(super) fn change(
    doing: &str,
    arguments: &[&str],
    disks: &[String],
    hold: &[BorrowedFd<'_>],
) -> Result<()> {
    expect_changed(doing, attempt(arguments, disks, hold)?)
}

/// Has LVM change something on these disks: it does not look at others, whatever they say by now. `hold`
/// and the locks of volumes that this process has stay locked until the change is made, also if
/// this process dies. [`expect_changed`] says what came of it.
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
        hold: &hold,
    };
    let output = run(arguments, disks, &limits);
    CHANGES.fetch_add(1, Ordering::Relaxed);
    output
}

/// Checks that LVM has made a change.
pub(super) fn expect_changed(doing: &str, output: Output) -> Result<()> {
    if lacks_room(&output) {
        return Err(Error::new(
            ErrorKind::Exhausted,
            format!("cannot {doing}: the volume group or its thin pool has no room for it"),
        )
        .because(said(&output)));
    }
    if lacks_metadata(&output) {
        return Err(Error::new(
            ErrorKind::Exhausted,
            format!(
                "cannot {doing}: the volume group's own metadata has no room for it; delete volumes, or use another group, made with `vgcreate --metadatasize 16m`"
            ),
        )
        .because(said(&output)));
    }
    if lacks_target(&output) {
        return Err(Error::new(
            ErrorKind::Storage,
            format!(
                "cannot {doing}: the node's kernel does not have what it needs (dm_mod, or dm_thin_pool for thin volumes); `flexvol doctor` on the node says more"
            ),
        )
        .because(said(&output)));
    }
    if is_in_use(&output) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!("cannot {doing}: a program on the node has it open; end that first"),
        )
        .because(said(&output)));
    }
    if is_moved(&output) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!("cannot {doing}: `pvmove` is moving its data; it is done when that has ended, or was ended by `pvmove --abort`"),
        )
        .because(said(&output)));
    }
    output.success(doing).map(drop)
}

/// `devices/use_devicesfile` is left to the node's lvm.conf: where that says 1 and the file is
/// missing, LVM uses all devices; where the file is there, an administrator chose which devices
/// LVM may touch, and `disks` are of those that it showed.
fn run(arguments: &[&str], disks: &[String], limits: &Limits<'_>) -> Result<Output> {
    let udev = udev_hears();
    let tool = find("lvm", udev)?
        .with_longest_output(LONGEST_REPORT)
        // "If others are found, they get closed": lvm(8).
        .that_closes_descriptors();
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

/// Before 2.03.12 there is no such option, which is told before anything is read (`EINVALID_CMD_LINE`
/// in LVM's tools/errors.h is 3).
fn knows_no_devices(output: &Output) -> bool {
    output.status.code() == Some(3) && said(output).contains("--devices")
}

/// The setting that is as good as `--devices` where that is missing. A disk may have several names, of
/// which LVM reports one; a filter accepts it by any.
fn filter(disks: &[String]) -> String {
    let quoted = |disk: &String| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "/_-:".contains(letter);
        // LVM's regular expressions have no other way to say a letter that may mean something.
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
        // For libdevmapper, which reads no lvm.conf.
        false => tool.with_variable("DM_DISABLE_UDEV", "1"),
    })
}

/// Removes a device of device-mapper that LVM does not know.
///
/// # Errors
/// [`ErrorKind::Busy`] where it is open.
pub(super) fn remove_mapping(uuid: &str) -> Result<()> {
    let locks = lock::held();
    let hold: Vec<_> = locks.iter().map(|lock| lock.as_fd()).collect();
    let limits = Limits {
        deadline: CHANGE,
        at_deadline: AtDeadline::Leave,
        hold: &hold,
    };
    let words = ["remove", "--uuid", uuid].map(OsStr::new);
    let output = find("dmsetup", udev_hears())?.run(&words, &limits)?;
    // As the C library says `EBUSY`.
    if !output.status.success() && said(&output).contains("resource busy") {
        return Err(
            Error::new(ErrorKind::Busy, "cannot remove the device: it is open")
                .because(said(&output)),
        );
    }
    output.success("remove the device").map(drop)
}

/// What a program said on its standard error.
pub(super) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

fn says(output: &Output, words: &[&str]) -> bool {
    let said = said(output);
    words.iter().any(|words| said.contains(words))
}

/// LVM's exit status is 5 for everything (`ECMD_FAILED`), so its words must tell.
fn failed_saying(output: &Output, words: &[&str]) -> bool {
    !output.status.success() && says(output, words)
}

/// In LVM's lib/activate/activate.c (`lv_check_not_in_use`).
fn is_in_use(output: &Output) -> bool {
    failed_saying(output, &[" in use.", " is used by another device."])
}

/// Whether LVM did not find a disk of the group among those that it was shown: `Couldn't find device with uuid`,
/// `is missing PV`, `Device for PV %s not found` in LVM's lib/metadata/metadata.c and lib/cache/lvmcache.c.
pub(super) fn misses_a_disk(output: &Output) -> bool {
    says(
        output,
        &["find device with uuid", " is missing PV ", "evice for PV "],
    )
}

/// `Can't resize locked logical volume`, once `locked LV`, in LVM's lib/metadata/lv_manip.c: while its data are
/// moved.
fn is_moved(output: &Output) -> bool {
    failed_saying(output, &["Can't resize locked "])
}

/// `Required device-mapper target(s) not detected in your kernel` and `target support missing from
/// kernel?` in LVM's lib/activate, `Is device-mapper driver missing from kernel?` in its libdm.
fn lacks_target(output: &Output) -> bool {
    failed_saying(
        output,
        &["not detected in your kernel", "missing from kernel"],
    )
}

/// In LVM's lib/format_text/format-text.c (`_vg_write_raw`), before anything is committed.
fn lacks_metadata(output: &Output) -> bool {
    failed_saying(
        output,
        &[
            "too large for circular buffer",
            "exceeds maximum metadata size",
        ],
    )
}

/// `Insufficient free space` in lib/metadata/lv_manip.c, `Insufficient suitable allocatable extents` there too, now and
/// then within a sentence; `is above threshold` in lib/metadata/thin_manip.c; making a thin volume says `reached
/// threshold`.
fn lacks_room(output: &Output) -> bool {
    failed_saying(
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
