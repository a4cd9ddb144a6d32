//! A volume grows. Stock Kubernetes runs `expandfs` alone, on the node.

use crate::{
    bench::{Bench, Place, files},
    callout::call::{Call, Outcome},
    check::{Check, Level, Need},
    checks::kill::Cuts,
    config::Kind,
    system::{block_devices, command::SignalTo, mounts},
    verdict::{Stop, Verdict, fault, not_applicable, wrong},
    volume::{On, Release},
};
use anyhow::{Context, Result};
use std::path::Path;

pub const CHECKS: &[Check] = &[
    check(
        "exp.grow-online",
        Level::Must,
        "expandfs grows a mounted volume, as the kernel counts it, or says why and grows it before the next pod starts",
        "the claim gets the size that was asked for whatever happened: a Success without growth is found when the disk is full",
        "of 23 drivers one had expandfs, and that said Success for file systems it did not know",
        "grow storage and file system in expandfs, and compare the file system's size with NEW before answering",
        grow,
    ),
    check(
        "exp.repeat-noop",
        Level::Must,
        "expandfs to a size that is there succeeds and changes nothing",
        "kubelet repeats it, 1.24 and 1.28 twice for every start of a pod",
        "drivers that pass on lvextend's \"matches existing size\"",
        "Success if the file system has NEW bytes or more",
        repeat,
    ),
    check(
        "exp.shrink-refused",
        Level::Must,
        "expandfs to less never makes anything smaller",
        "OLD and NEW come from objects that people edit; a cut device destroys its file system",
        "drivers that hand NEW to a command that also shrinks",
        "compare with the size there is; Failure, or Success without a change",
        shrink,
    ),
    check(
        "exp.not-multiple-of-sector",
        Level::Should,
        "a size that is no multiple of a block is reached, or refused",
        "claims of 1G and of 1.5Gi are as good as those of 1Gi",
        "drivers that cut the size down, and so have less than was asked for",
        "round up to what the storage can make",
        odd,
    ),
    check(
        "exp.data-intact",
        Level::Must,
        "what was written before and between growths has its checksum after them",
        "this is what volumes are for",
        "drivers that format when the size of the file system is not that of the device",
        "never format in expandfs",
        data,
    ),
    check(
        "exp.interrupted-resumes",
        Level::Must,
        "a growth that was killed is completed by its repetition, with the data that was there",
        "kubelet may be restarted at any time, and repeats the call until it succeeds",
        "drivers that grow the file system only if they just grew the device",
        "look at device and file system separately, every time",
        interrupted,
    ),
    check(
        "exp.any-directory",
        Level::Must,
        "expandfs takes the node's directory or the pod's, with or without a device",
        "1.13 to 1.23 hand over the node's directory, later ones the pod's; without attach the device is empty",
        "scripts that lose the empty argument, or look for the device they are not given",
        "find the volume by its identity and its file system by what is mounted",
        any_directory,
    ),
];

const fn check(
    name: &'static str,
    level: Level,
    what: &'static str,
    why: &'static str,
    broke: &'static str,
    mend: &'static str,
    run: fn(&Bench) -> Verdict,
) -> Check {
    Check {
        name,
        level,
        needs: &[Need::Root, Need::Fresh],
        alone: false,
        what,
        why,
        broke,
        mend,
        source: "expandFS in operation_generator.go and NodeExpand in pkg/volume/flexvolume/expander.go, 1.13 to 1.37",
        run,
    }
}

const MIB: u64 = 1 << 20;

/// Bytes of the file system that is mounted there, as statfs counts them.
fn size(directory: &Path) -> Result<u64> {
    let found = nix::sys::statvfs::statvfs(directory).context("ask for the size of the volume")?;
    Ok(found.blocks() * found.fragment_size())
}

/// Bytes of the device that is mounted there, where it is the volume's own.
fn device(bench: &Bench, place: &Place) -> Result<Option<u64>> {
    if bench.run.config.volume.kind == Kind::Directory {
        return Ok(None);
    }
    let mount = mounts::at(&place.dir)?.pop();
    Ok(mount.and_then(|mount| block_devices::size(&mount.device)))
}

/// A mounted volume as the kernel has it.
struct Base {
    place: Place,
    /// In statfs: without the file system's own journals, inodes and bitmaps, which differ.
    filesystem: u64,
    device: Option<u64>,
    /// What it has at least: the backend may have rounded up what was asked for.
    bytes: u64,
}

impl Base {
    fn of(bench: &Bench, place: Place) -> Result<Self> {
        let (filesystem, device) = (size(&place.dir)?, device(bench, &place)?);
        // One that is shared may be any size.
        let least = match bench.run.config.volume.kind {
            Kind::Block => place.volume.bytes.max(filesystem),
            Kind::Directory => place.volume.bytes,
        };
        Ok(Base {
            bytes: device.map_or(least, |device| least.max(device)),
            place,
            filesystem,
            device,
        })
    }

    /// Success was said for this size, and the kernel must have it. Of what was added a part is the
    /// file system's own.
    fn has(&self, bench: &Bench, call: &Call, place: &Place, bytes: u64) -> Verdict {
        let added = bytes.saturating_sub(self.bytes);
        let least = self.filesystem + (added - added / 8).saturating_sub(16 * MIB);
        let now = size(&place.dir)?;
        if now < least.min(bytes) {
            let expected =
                format!("a file system of {bytes} bytes, of which {least} are for files");
            return Err(wrong(call, expected, format!("{now} in statfs")));
        }
        match device(bench, place)? {
            Some(device) if device < bytes => Err(wrong(
                call,
                format!("a device of {bytes} bytes"),
                format!("{device}"),
            )),
            _ => Ok(()),
        }
    }

    /// Nothing may be smaller than it was. A file system does not notice that its device was cut.
    fn is_whole(&self, bench: &Bench, call: &Call) -> Verdict {
        let now = size(&self.place.dir)?;
        if now < self.filesystem {
            let expected = format!("{} bytes as before", self.filesystem);
            return Err(wrong(call, expected, format!("{now}")));
        }
        let has = device(bench, &self.place)?;
        if has < self.device {
            let had = self.device.unwrap_or_default();
            let expected = format!("a device of {had} bytes as before");
            return Err(wrong(
                call,
                expected,
                format!("{}", has.unwrap_or_default()),
            ));
        }
        Ok(())
    }
}

/// A mounted volume of a driver that grows.
fn mounted(bench: &Bench) -> Result<Base, Stop> {
    bench.needs_callout("expandfs")?;
    if !bench.run.capabilities.requires_fs_resize {
        return Err(not_applicable("init says requiresFSResize: false"));
    }
    let volume = bench.volume()?;
    let place = bench.up(&volume, "sanity-pod", "rw")?;
    Ok(Base::of(bench, place)?)
}

/// Asks for growth; whether it was answered with Success, else with a Failure that says why.
fn expand(bench: &Bench, place: &Place, new: u64, old: u64) -> Result<(Call, bool), Stop> {
    let call = bench.call(&bench.expand_arguments(place, new, old))?;
    match call.outcome() {
        Outcome::Success(_) => Ok((call, true)),
        Outcome::Failure(message) if !message.trim().is_empty() => {
            bench.note(format!("not grown: {message}"));
            Ok((call, false))
        }
        _ => Err(wrong(
            &call,
            "Success, or a Failure that says why",
            "something else",
        )),
    }
}

/// Growth that must not be refused, where it is only a step of what is looked at.
fn expanded(bench: &Bench, place: &Place, new: u64, old: u64) -> Result<Call, Stop> {
    match expand(bench, place, new, old)? {
        (call, true) => Ok(call),
        _ => {
            let why = "a volume that grows while it is mounted, which this driver refuses";
            Err(Stop::Left(why.to_owned()))
        }
    }
}

fn grow(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let mut place = base.place.clone();
    let (old, new) = (place.volume.bytes, base.bytes + 256 * MIB);
    let (mut call, mut grown) = expand(bench, &place, new, old)?;
    if !grown {
        base.is_whole(bench, &call)?;
        bench.down(&place)?;
        // Kubelet asks again as soon as it has mounted the volume for the next pod.
        place = bench.up(&place.volume, "sanity-later", "rw")?;
        (call, grown) = expand(bench, &place, new, old)?;
        if !grown {
            let expected = "a volume that grows, since init says requiresFSResize: true";
            let found = "it is refused, also before the next pod starts: the claim waits for ever";
            return Err(wrong(&call, expected, found));
        }
    }
    base.has(bench, &call, &place, new)?;
    bench.down(&place)?;
    let place = bench.up(&place.volume, "sanity-last", "rw")?;
    base.has(bench, &call, &place, new)?;
    bench.down(&place)
}

fn repeat(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let place = &base.place;
    let (old, new) = (place.volume.bytes, base.bytes + 64 * MIB);
    let call = expanded(bench, place, new, old)?;
    base.has(bench, &call, place, new)?;
    let before = size(&place.dir)?;
    for _ in 0..2 {
        let call = bench.call(&bench.expand_arguments(place, new, old))?;
        if !call.succeeded() {
            return Err(wrong(&call, "Success", "something else"));
        }
        let now = size(&place.dir)?;
        if now != before {
            let expected = format!("{before} bytes as before");
            return Err(wrong(&call, expected, format!("{now}")));
        }
    }
    bench.down(place)
}

fn shrink(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let (old, new) = (base.place.volume.bytes, base.place.volume.bytes / 2);
    for old in [old, new] {
        let call = bench.call(&bench.expand_arguments(&base.place, new, old))?;
        if !call.succeeded() && !call.failed() {
            return Err(wrong(&call, "Success or a Failure", "no reply"));
        }
        base.is_whole(bench, &call)?;
    }
    bench.down(&base.place)
}

fn odd(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let (old, new) = (base.place.volume.bytes, base.bytes + 64 * MIB + 1001);
    let (call, grown) = expand(bench, &base.place, new, old)?;
    if grown {
        base.has(bench, &call, &base.place, new)?;
    } else {
        // One that is refused because it is odd must say yes to an even one.
        expanded(bench, &base.place, base.bytes + 64 * MIB, old)?;
    }
    bench.down(&base.place)
}

/// Bytes that are different for every seed and cost nothing to make.
fn pattern(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(1 << 20);
    while bytes.len() < 1 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

fn data(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let mut place = base.place;
    for round in 1..=3 {
        files::write(bench, &place, &format!("round-{round}"), &pattern(round))?;
        expand(
            bench,
            &place,
            base.bytes + round * 64 * MIB,
            base.bytes + (round - 1) * 64 * MIB,
        )?;
        if round == 2 {
            bench.down(&place)?;
            place = bench.up(&place.volume, "sanity-later", "rw")?;
        }
        for earlier in 1..=round {
            let read = files::read(bench, &place, &format!("round-{earlier}"));
            if read != Some(pattern(earlier)) {
                let found = format!("file {earlier} is gone or has other content");
                return Err(fault(format!("{round} files as they were written"), found));
            }
        }
    }
    bench.down(&place)
}

fn interrupted(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let (place, old) = (&base.place, base.place.volume.bytes);
    let size = |step: u32| base.bytes + u64::from(step) * 32 * MIB;
    let writes = !bench.run.config.volume.read_only;
    if writes {
        files::write(bench, place, "before", &pattern(7))?;
    }
    let first = expanded(bench, place, size(1), old)?;
    let mut cuts = Cuts::new("a growth", first.took);
    for step in 2..=6 {
        let argv = bench.expand_arguments(place, size(step), old);
        // Spread over the time that a growth takes.
        cuts.cut(bench, &argv, (step, 7), SignalTo::Group)?;
        let call = bench.call(&argv)?;
        if !call.succeeded() {
            return Err(wrong(&call, "the repetition succeeds", "it does not"));
        }
        base.has(bench, &call, place, size(step))?;
        if writes {
            files::expect(bench, place, "before", &pattern(7))?;
        }
    }
    bench.down(place)?;
    if writes {
        // As it is on the storage.
        let later = bench.up(&place.volume, "sanity-later", "rw")?;
        files::expect(bench, &later, "before", &pattern(7))?;
        bench.down(&later)?;
    }
    cuts.met(bench)
}

fn any_directory(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let place = &base.place;
    let node = bench.place(&place.volume, &place.uid, On::Node);
    let mut places = vec![place.clone()];
    if place.on == On::Pod && !mounts::at(&node.dir)?.is_empty() {
        places.push(Place {
            device: place.device.clone(),
            ..node.clone()
        });
        places.push(node);
    }
    places.push(Place {
        device: String::new(),
        ..place.clone()
    });
    for (step, one) in (1..).zip(&places) {
        let release = if one.on == On::Node {
            Release::V1_13
        } else {
            Release::V1_25
        };
        let one = Place {
            volume: one.volume.seen_by(release),
            ..one.clone()
        };
        let size = base.bytes + step * 32 * MIB;
        let call = expanded(bench, &one, size, place.volume.bytes)?;
        base.has(bench, &call, place, size)?;
    }
    bench.down(place)
}
