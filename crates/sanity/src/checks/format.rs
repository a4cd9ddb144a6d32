//! Checks of what a driver formats, and what it must never format.

use crate::{
    bench::{
        Bench,
        files::{self, TEXT},
    },
    callout::call::{Call, CallOptions},
    check::{Check, Level, Need},
    system::{block_devices, command},
    verdict::{Fault, Stop, Verdict, fault, wrong},
    volume::{
        Source, Volume, content,
        planted::{self, Planted},
    },
};
use anyhow::{Context, Result};
use std::{fs, path::Path};

/// Requirements of most checks of the group, and the source of their rules.
const NEEDS: &[Need] = &[Need::Root, Need::Block];
const SOURCE: &str = "GetDiskFormat and formatAndMountSensitive in k8s.io/mount-utils, mount_linux.go: kubelet's own way";

pub const CHECKS: &[Check] = &[
    Check {
        name: "fmt.blank-formats-once",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a blank volume is formatted at its first mount, and never again",
        why: "a second mkfs is the end of the data",
        broke: "two mkfs at a time by the example for LVM, of which both failed or both succeeded",
        mend: "format under a lock, and only what is proven blank",
        source: SOURCE,
        run: blank,
    },
    Check {
        name: "fmt.foreign-fs-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume with a file system on it is not formatted, whatever file system is asked for",
        why: "the wrong volume, or the wrong fsType in a new claim, then costs all data",
        broke: "a driver that formats if the file system is not the one asked for",
        mend: "Failure that names what was found and what was asked for",
        source: SOURCE,
        run: foreign,
    },
    Check {
        name: "fmt.unsigned-data-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume with data that no program knows is not formatted",
        why: "databases on raw devices, encrypted disks and damaged file systems have no signature",
        broke: "the example for LVM and all its copies: what blkid says nothing about is blank to them",
        mend: "read the device: blank is what is zero, not what is unknown",
        source: SOURCE,
        run: unsigned,
    },
    Check {
        name: "fmt.partition-table-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume with a partition table is not formatted",
        why: "it is a whole disk with somebody's partitions",
        broke: "the example for LVM and its copies: mke2fs asks before, but not without a terminal",
        mend: "look for partition tables too, as blkid -p does with PTTYPE",
        source: SOURCE,
        run: tables,
    },
    Check {
        name: "fmt.ambivalent-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume with signatures of two file systems is not formatted",
        why: "an old superblock beside a live file system is common; blkid then prints nothing and exits 8",
        broke: "all that take an empty answer of blkid or lsblk for blank",
        mend: "take every exit code of blkid -p but 2 for an error",
        source: SOURCE,
        run: ambivalent,
    },
    Check {
        name: "fmt.luks-lvm-raid-swap-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume that belongs to LUKS, LVM, RAID or swap is not formatted",
        why: "it is part of something larger, which is destroyed",
        broke: "drivers that ask for file systems alone, or wipe signatures first",
        mend: "treat every signature as somebody's data",
        source: SOURCE,
        run: containers,
    },
    Check {
        name: "fmt.unreadable-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume that cannot be read is not formatted",
        why: "a device with errors looks blank to blkid and is full of data",
        broke: "all that take a failed probe for blank; it has destroyed volumes for years",
        mend: "tell blank, found and unknown apart, and format blank alone",
        source: SOURCE,
        run: unreadable,
    },
    Check {
        name: "fmt.ro-never-formats",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a read-only mount writes nothing to a volume that the driver did not make itself",
        why: "another node may be writing it, and nobody expects a reader to write",
        broke: "drivers that format before they look at kubernetes.io/readwrite",
        mend: "Failure if a volume that is wanted read-only has no file system",
        source: SOURCE,
        run: read_only,
    },
];

fn blank(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    let volume = bench.volume()?;
    for round in 0..3 {
        let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
        if round > 0 && files::read(bench, &mount_point, "once").as_deref() != Some(TEXT) {
            let found = "it is gone: formatted again";
            return Err(fault("the file of the last mount", found));
        }
        files::write(bench, &mount_point, "once", TEXT)?;
        bench.unmount_and_detach(&mount_point)?;
    }
    Ok(())
}

/// Plants data, mounts the volume, and checks that the data is unchanged whatever the outcome.
fn spared(
    bench: &Bench,
    mode: &str,
    plant: impl FnOnce(&Path) -> Result<Planted, Stop>,
) -> Verdict {
    let (volume, content) = bench.block_volume()?;
    let planted = plant(&content)?;
    let attempt = attempt(bench, &volume, mode);
    settle(bench, &volume, &content)?;
    if let Some(changed) = planted.changed(&content)? {
        let expected = format!("{} stays as it is", planted.what);
        return Err(match attempt {
            Ok(call) => wrong(&call, expected, changed),
            Err(Stop::Fault(first)) => Stop::Fault(Box::new(Fault {
                expected,
                found: changed,
                call: first.call,
            })),
            Err(_) => fault(expected, changed),
        });
    }
    let call = attempt?;
    if !call.succeeded() && !call.failed() {
        let expected = "a Failure that says what was found";
        return Err(wrong(&call, expected, "no reply"));
    }
    bench.done_with(&volume)
}

/// Makes the callout that would format, or an earlier one that refuses, because a driver may examine a volume
/// as soon as it is attached. A volume that was mounted is unmounted again.
fn attempt(bench: &Bench, volume: &Volume, mode: &str) -> Result<Call, Stop> {
    let mount_point = match bench.prepare_format(volume, mode) {
        Ok(mount_point) => mount_point,
        Err(Stop::Fault(fault)) => {
            return match fault.call {
                Some(call) if call.failed() => Ok(call),
                call => Err(Stop::Fault(Box::new(Fault { call, ..*fault }))),
            };
        }
        Err(other) => return Err(other),
    };
    let call = bench.mount(&mount_point, mode)?;
    if call.succeeded() {
        // The content is read below the file system, so the file system must be unmounted first.
        let call = bench.unmount(&mount_point)?;
        bench.expect_unmounted(&mount_point, &call)?;
    }
    Ok(call)
}

/// Flushes what was written through devices of the volume to its content.
fn settle(bench: &Bench, volume: &Volume, content: &Path) -> Result<()> {
    for (device, file) in block_devices::loops()? {
        if Path::new(&file) == content {
            // The device may just have gone, and then it was synced.
            if let Ok(device) = fs::File::open(device) {
                device.sync_all().context("sync a device")?;
            }
        }
    }
    if bench.run.capabilities.attach {
        let argv = bench.run.arguments("detach", volume, &bench.dir, "");
        // Other checks judge the answer.
        bench.run.call(&argv, &CallOptions::default())?;
    }
    Ok(())
}

fn foreign(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    let kinds = planted::filesystems();
    if kinds.len() < 2 {
        return Err(Stop::Skipped(
            "two of mkfs.ext4, mkfs.xfs and mkfs.btrfs".to_owned(),
        ));
    }
    for kind in kinds {
        spared(bench, "rw", |content| {
            Ok(planted::plant_filesystem(content, kind)?)
        })?;
    }
    Ok(())
}

fn unsigned(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    for (what, pieces) in planted::unsigned(bench.run.bytes) {
        spared(bench, "rw", |content| {
            Ok(planted::plant_alone(content, what, pieces)?)
        })?;
    }
    Ok(())
}

fn tables(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    for (what, pieces) in planted::tables() {
        spared(bench, "rw", |content| {
            Ok(planted::plant(content, what, pieces)?)
        })?;
    }
    Ok(())
}

fn containers(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    for (what, pieces) in planted::containers() {
        spared(bench, "rw", |content| {
            Ok(planted::plant(content, what, pieces)?)
        })?;
    }
    Ok(())
}

fn ambivalent(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    let kinds = planted::filesystems();
    if !kinds.contains(&"ext4") || !kinds.contains(&"xfs") {
        return Err(Stop::Skipped("mkfs.ext4 and mkfs.xfs".to_owned()));
    }
    spared(bench, "rw", |content| {
        let stale = bench.dir.join("stale");
        let file = fs::File::create_new(&stale).context("make an image")?;
        file.set_len(bench.run.bytes).context("size an image")?;
        planted::plant_filesystem(&stale, "xfs")?;
        let planted = planted::plant_filesystem(content, "ext4")?;
        let mut superblock = vec![0; 512];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut superblock, 0)
            .context("read an image")?;
        // An ext4 does not use its boot block, so a superblock of an older file system may still be there.
        planted::plant_alone(content, "a stale superblock of xfs", vec![(0, superblock)])?;
        Ok(planted)
    })
}

fn unreadable(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    let command = &bench.run.config.volume.break_reads;
    if command.is_empty() {
        let why = "a way to make a volume unreadable: give [volume] break_reads";
        return Err(Stop::Skipped(why.to_owned()));
    }
    let (volume, content) = bench.block_volume()?;
    let path = content.to_string_lossy().into_owned();
    let planted = planted::plant(&content, "data", vec![])?;
    command::hook(
        command,
        &[("SANITY_CONTENT", &path), ("SANITY_NAME", &volume.name)],
    )?;
    if planted.changed(&content).is_ok() {
        return Err(Stop::Error(anyhow::anyhow!(
            "break_reads left the volume readable"
        )));
    }
    let call = attempt(bench, &volume, "rw")?;
    if call.failed() {
        return Ok(());
    }
    Err(wrong(
        &call,
        "a Failure",
        "something else, for a volume that cannot be read",
    ))
}

fn read_only(bench: &Bench) -> Verdict {
    bench.needs_device()?;
    for (what, pieces) in planted::unsigned(bench.run.bytes) {
        spared(bench, "ro", |content| {
            Ok(planted::plant_alone(content, what, pieces)?)
        })?;
    }
    // A driver that made the volume itself knows that it is blank.
    if bench.run.source == Source::Callouts {
        return Ok(());
    }
    let (volume, content) = bench.block_volume()?;
    let attempt = attempt(bench, &volume, "ro");
    settle(bench, &volume, &content)?;
    if !content::is_blank(&content)? {
        let expected = "the volume stays as it is";
        return Err(match attempt {
            Ok(call) => wrong(&call, expected, "it was written to"),
            Err(_) => fault(expected, "it was written to"),
        });
    }
    attempt.map(drop)
}
