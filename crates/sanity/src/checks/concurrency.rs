//! Checks of concurrent callouts.

use crate::{
    bench::{
        Bench, MountPoint,
        files::{self, TEXT},
    },
    callout::call::Call,
    check::{Check, Level, Need},
    checks::kill::Cuts,
    system::{command::SignalTo, mounts},
    verdict::{Stop, Verdict, fault, readable, wrong},
};
use std::{thread, time::Duration};

/// Requirements of most checks of the group, and the source of their rules.
const NEEDS: &[Need] = &[Need::Root, Need::Fresh];
const SOURCE: &str = "nestedpendingoperations.go: one operation a volume, in one process, and not for unmounts; nothing between processes";

pub const CHECKS: &[Check] = &[
    Check {
        name: "con.same-mount-8x",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "eight mounts of a new volume at once: all succeed, and there is one mount, three times over",
        why: "kubelet and its restarted self, or the pods of a driver without attach, call at the same time",
        broke: "the example for LVM: of two, both failed, or one, with mkfs against mkfs",
        mend: "take a lock of the volume, and look at the mounts under it",
        source: SOURCE,
        run: same_mount,
    },
    Check {
        name: "con.mount-vs-unmount",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "mounts and unmounts of one directory at once leave it mounted once or not at all",
        why: "an answer that was lost is repeated while the next operation has begun",
        broke: "drivers that look, and act on what they saw later",
        mend: "look and act under one lock",
        source: SOURCE,
        run: against,
    },
    Check {
        name: "con.two-volumes-parallel",
        level: Level::Should,
        needs: NEEDS,
        alone: false,
        what: "two volumes are mounted at once, and each has its own data",
        why: "different volumes are always worked on in parallel; a lock for all adds up to minutes",
        broke: "drivers that find their device by what is new in /dev",
        mend: "lock by volume; find devices by identity",
        source: SOURCE,
        run: two_volumes,
    },
    Check {
        name: "con.stale-lock",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "after a driver was killed with -9 the next call is answered as if nothing had been",
        why: "a lock that stays locks the volume out for ever, over every restart of kubelet",
        broke: "drivers with a file of their process id, or a record in etcd, as a lock",
        mend: "use flock, which ends with the process",
        source: SOURCE,
        run: stale_lock,
    },
    Check {
        name: "con.parallel-64",
        level: Level::Must,
        needs: NEEDS,
        alone: true,
        what: "64 callouts at a time on eight volumes: every answer is whole, and afterwards every volume works",
        why: "a node that restarts mounts everything it has at once",
        broke: "drivers that wait for one lock longer than kubelet waits for them",
        mend: "lock by volume, and for as long as needed only",
        source: SOURCE,
        run: parallel,
    },
];

/// Makes the calls at once, each in a thread of its own.
pub fn together(bench: &Bench, calls: &[Vec<String>]) -> Result<Vec<Call>, Stop> {
    thread::scope(|scope| {
        let started: Vec<_> = calls
            .iter()
            .map(|argv| scope.spawn(move || bench.call(argv)))
            .collect();
        started
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// Repetitions of a race, because it fails only now and then: often with eight mounts, more rarely with two.
const RACES: usize = 3;
const ROUNDS: usize = 10;

fn same_mount(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    for _ in 0..RACES {
        race(bench)?;
    }
    Ok(())
}

fn race(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let mount_point = bench.prepare_format(&volume, "rw")?;
    let argv = bench.mount_arguments(&mount_point, "rw")?;
    for call in together(bench, &vec![argv; 8])? {
        bench.expect_mounted(&mount_point, &call)?;
    }
    let found = mounts::at(&mount_point.dir)?.len();
    if found != 1 {
        return Err(fault("one mount on the directory", format!("{found}")));
    }
    files::write(bench, &mount_point, "sanity", TEXT)?;
    bench.unmount_and_detach(&mount_point)?;
    bench.done_with(&volume)
}

fn against(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    for _ in 0..ROUNDS {
        let mount = bench.mount_arguments(&mount_point, "rw")?;
        let unmount = bench.unmount_arguments(&mount_point);
        let calls = [mount.clone(), unmount.clone(), mount, unmount];
        for call in together(bench, &calls)? {
            readable(&call)?;
        }
        let found = mounts::at(&mount_point.dir)?.len();
        if found > 1 {
            return Err(fault(
                "one mount on the directory, or none",
                format!("{found}"),
            ));
        }
    }
    check_remount(bench, &mount_point)
}

/// Checks that the volume can be mounted again and has its data, and unmounts it.
fn check_remount(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    let call = bench.mount(mount_point, "rw")?;
    bench.expect_mounted_once(mount_point, &call)?;
    bench.unmount_and_detach(mount_point)
}

fn two_volumes(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let mount_points: Vec<MountPoint> = (0..2)
        .map(|_| bench.prepare_format(&bench.volume()?, "rw"))
        .collect::<Result<_, Stop>>()?;
    let calls: Vec<_> = mount_points
        .iter()
        .map(|mount_point| bench.mount_arguments(mount_point, "rw"))
        .collect::<Result<_, Stop>>()?;
    for (call, mount_point) in together(bench, &calls)?.iter().zip(&mount_points) {
        bench.expect_mounted(mount_point, call)?;
        files::write(
            bench,
            mount_point,
            "whose",
            mount_point.volume.name.as_bytes(),
        )?;
    }
    for mount_point in &mount_points {
        own(bench, mount_point)?;
        bench.unmount_and_detach(mount_point)?;
    }
    if !bench.keeps_content() {
        return Ok(());
    }
    // Two loop devices of one volume have separate caches, so a mix-up may show only after both are gone.
    for mount_point in &mount_points {
        let mount_point = bench.attach_and_mount(&mount_point.volume, "sanity-later", "rw")?;
        own(bench, &mount_point)?;
        bench.unmount_and_detach(&mount_point)?;
    }
    Ok(())
}

/// Checks that the name in the volume's file is the volume's own.
fn own(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    let found = files::read(bench, mount_point, "whose").unwrap_or_default();
    if found == mount_point.volume.name.as_bytes() {
        return Ok(());
    }
    let found = match String::from_utf8_lossy(&found) {
        none if none.is_empty() => "none".to_owned(),
        other => format!("that of {other}"),
    };
    Err(fault("the volume's own data", found))
}

fn stale_lock(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    let argv = bench.mount_arguments(&mount_point, "rw")?;
    let first = bench.call(&argv)?;
    bench.expect_mounted(&mount_point, &first)?;
    let mut cuts = Cuts::new("a mount", first.took);
    for round in 1..=6u32 {
        let call = bench.unmount(&mount_point)?;
        bench.expect_unmounted(&mount_point, &call)?;
        bench.mount_arguments(&mount_point, "rw")?;
        cuts.cut(bench, &argv, (round, 7), SignalTo::Process)?;
        let call = bench.call(&argv)?;
        bench.expect_mounted(&mount_point, &call)?;
        if call.took > first.took * 4 + Duration::from_secs(20) {
            let found = format!(
                "{:.0} s, and {:.1} s without",
                call.took.as_secs_f64(),
                first.took.as_secs_f64()
            );
            return Err(wrong(&call, "an answer in the usual time", found));
        }
    }
    bench.unmount_and_detach(&mount_point)?;
    cuts.require_hits(bench)
}

fn parallel(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let mut mount_points = Vec::new();
    // Eight smaller volumes must fit into the space of the earlier ones.
    for _ in 0..8 {
        let volume = bench.volume()?;
        mount_points.push(bench.attach_and_mount(&volume, "sanity-pod", "rw")?);
    }
    for _ in 0..2 {
        let mut calls = Vec::new();
        for mount_point in &mount_points {
            for _ in 0..4 {
                calls.push(bench.mount_arguments(mount_point, "rw")?);
                calls.push(bench.unmount_arguments(mount_point));
            }
        }
        for call in together(bench, &calls)? {
            readable(&call)?;
        }
    }
    for mount_point in &mount_points {
        let found = mounts::at(&mount_point.dir)?.len();
        if found > 1 {
            return Err(fault(
                "one mount on each directory, or none",
                format!("{found}"),
            ));
        }
        check_remount(bench, mount_point)?;
    }
    Ok(())
}
