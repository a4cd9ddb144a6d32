//! Checks of killed drivers, of callers that go away, and of leaks after many rounds.

use crate::{
    bench::{
        Bench, MountPoint,
        files::{self, TEXT},
    },
    callout::call::{Call, CallOptions},
    check::{Check, Level, Need},
    config::Kind,
    system::{block_devices, command::SignalTo, mounts},
    verdict::{Stop, Verdict, fault, wrong},
};
use anyhow::Result;
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "kill.anywhere",
        level: Level::Must,
        needs: &[Need::Root, Need::Fresh],
        alone: false,
        what: "a mount, unmount, attach or detach that is killed with -9 at any moment is completed by its repetition, with the data that was there",
        why: "a restart of kubelet's or the controller's service kills the drivers it runs",
        broke: "drivers that leave a half-made file system, a session or a loop device, and then say it exists already",
        mend: "make each step repeatable, and look at what is there instead of at what should be",
        source: "KillMode of kubelet's systemd unit: control-group, so everything it started is killed",
        run: anywhere,
    },
    Check {
        name: "kill.parent-gone",
        level: Level::Should,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a mount whose caller has gone leaves a volume that can be mounted and unmounted",
        why: "a driver that survives its kubelet writes into a closed pipe; SIGPIPE ends it between two steps",
        broke: "scripts that print on their way",
        mend: "write once, at the end",
        source: "pipe(7); os/exec reads through pipes",
        run: parent_gone,
    },
    Check {
        name: "leak.none-after-100-cycles",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: true,
        what: "after a hundred mounts and unmounts there are no more mounts, loop devices and files than after the first",
        why: "nodes run for years; what leaks ends as no loop device, no inode or no memory",
        broke: "a driver that never removed its fifos, one that kept sessions, one that copied its log for ever",
        mend: "undo in unmount what mount did",
        source: "kubelet mounts and unmounts for every pod, pkg/kubelet/volumemanager",
        run: leak,
    },
];

fn to(step: u32) -> SignalTo {
    if step.is_multiple_of(2) {
        SignalTo::Group
    } else {
        SignalTo::Process
    }
}

/// Kills one kind of call at fractions of its duration, and counts the kills that met a running call.
#[derive(Debug)]
pub struct Cuts {
    what: &'static str,
    took: Duration,
    kills: u32,
    hits: u32,
}

impl Cuts {
    pub fn new(what: &'static str, took: Duration) -> Self {
        Cuts {
            what,
            took,
            kills: 0,
            hits: 0,
        }
    }

    /// Makes the call and kills it after `step`/`of` of its duration.
    pub fn cut(
        &mut self,
        bench: &Bench,
        argv: &[String],
        (step, of): (u32, u32),
        to: SignalTo,
    ) -> Result<(), Stop> {
        let options = CallOptions {
            signal: Some((self.took * step / of, Signal::SIGKILL, to)),
            ..CallOptions::default()
        };
        let call = bench.call_with_options(argv, &options)?;
        self.kills += 1;
        self.hits += u32::from(call.was_killed());
        if !call.was_killed() {
            // The first call was slower than later ones.
            self.took = self.took.min(call.took);
        }
        Ok(())
    }

    /// Notes how many kills met a running call, and leaves the check out if none did. Called at the end of the
    /// check, so that faults that were found count first.
    pub fn require_hits(&self, bench: &Bench) -> Verdict {
        let Cuts {
            what, kills, hits, ..
        } = self;
        bench.note(format!("{hits} of {kills} kills met {what}"));
        self.check_hits()
    }

    fn check_hits(&self) -> Verdict {
        let Cuts {
            what, kills, hits, ..
        } = self;
        if *hits > 0 {
            return Ok(());
        }
        let why = format!("a slower driver: none of {kills} kills met {what}, which had ended");
        Err(Stop::Skipped(why))
    }
}

const POINTS: u32 = 10;

fn anywhere(bench: &Bench) -> Verdict {
    let mut cuts = attachments(bench)?;
    if cuts.is_empty() {
        bench.needs_mounting()?;
    }
    if !bench.run.mounts_nothing() {
        cuts.extend(mounts(bench)?);
    }
    for cuts in cuts {
        cuts.require_hits(bench)?;
    }
    Ok(())
}

/// Kills first mounts, later mounts, and unmounts.
fn mounts(bench: &Bench) -> Result<[Cuts; 3], Stop> {
    // The first mount of a new volume, which formats.
    let volume = bench.volume()?;
    let mount_point = bench.prepare_format(&volume, "rw")?;
    let first = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted(&mount_point, &first)?;
    bench.unmount_and_detach(&mount_point)?;
    bench.done_with(&volume)?;
    let mut cuts = Cuts::new("the first mount", first.took);
    for step in 1..=5 {
        let volume = bench.volume()?;
        let mount_point = bench.prepare_format(&volume, "rw")?;
        let argv = bench.mount_arguments(&mount_point, "rw")?;
        cuts.cut(bench, &argv, (step, 6), to(step))?;
        repeated(bench, &mount_point, false)?;
        bench.unmount_and_detach(&mount_point)?;
        bench.done_with(&volume)?;
    }
    // Later mounts, and unmounts.
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    if !bench.run.config.volume.read_only {
        files::write(bench, &mount_point, "kept", TEXT)?;
    }
    let unmounted = bench.unmount(&mount_point)?;
    bench.expect_unmounted(&mount_point, &unmounted)?;
    let again = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted(&mount_point, &again)?;
    let kept = bench.keeps_files();
    let mut mounts = Cuts::new("a later mount", again.took);
    let mut unmounts = Cuts::new("an unmount", unmounted.took);
    for step in 1..=POINTS {
        let argv = bench.unmount_arguments(&mount_point);
        unmounts.cut(bench, &argv, (step, POINTS + 1), to(step))?;
        let call = bench.unmount(&mount_point)?;
        bench.expect_unmounted(&mount_point, &call)?;
        let argv = bench.mount_arguments(&mount_point, "rw")?;
        mounts.cut(bench, &argv, (step, POINTS + 1), to(step))?;
        repeated(bench, &mount_point, kept)?;
    }
    bench.unmount_and_detach(&mount_point)?;
    Ok([cuts, mounts, unmounts])
}

/// Kills attaches and detaches, if the driver has them.
fn attachments(bench: &Bench) -> Result<Vec<Cuts>, Stop> {
    let run = bench.run;
    if !run.supports("attach") || !run.supports("detach") {
        return Ok(Vec::new());
    }
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    if !run.config.volume.read_only {
        files::write(bench, &mount_point, "kept", TEXT)?;
    }
    bench.unmount_and_detach(&mount_point)?;
    let [attach, detach] =
        ["attach", "detach"].map(|callout| run.arguments(callout, &volume, &bench.dir, ""));
    let usual = |argv: &[String]| {
        let call = bench.call(argv)?;
        if call.succeeded() {
            return Ok(call);
        }
        Err(wrong(
            &call,
            "Success, as before a call was cut",
            "something else",
        ))
    };
    let mut attaches = Cuts::new("an attach", usual(&attach)?.took);
    let device = bench.attach_and_wait(&volume, "rw")?;
    let file = block_devices::file_below(Path::new(&device)).unwrap_or_default();
    let mut detaches = Cuts::new("a detach", usual(&detach)?.took);
    let stays = devices(&file, 0)?;
    for step in 1..=POINTS {
        attaches.cut(bench, &attach, (step, POINTS + 1), to(step))?;
        let call = usual(&attach)?;
        bench.attach_and_wait(&volume, "rw")?;
        one_device(bench, &call, &file)?;
        detaches.cut(bench, &detach, (step, POINTS + 1), to(step))?;
        let call = usual(&detach)?;
        if devices(&file, stays)? > stays {
            let expected = "no loop device stays, as none did before a call was cut";
            return Err(wrong(&call, expected, "one does"));
        }
    }
    let mount_point = bench.prepare_final_mount(&volume, "sanity-later", "rw")?;
    repeated(bench, &mount_point, bench.keeps_files())?;
    bench.unmount_and_detach(&mount_point)?;
    Ok(vec![attaches, detaches])
}

/// Checks the mount after a killed one: there is exactly one, and it has the data written before.
fn repeated(bench: &Bench, mount_point: &MountPoint, kept: bool) -> Verdict {
    let call = bench.mount(mount_point, "rw")?;
    let mount = bench.expect_mounted_once(mount_point, &call)?;
    if kept && files::read(bench, mount_point, "kept").as_deref() != Some(TEXT) {
        return Err(wrong(
            &call,
            "the file that was there",
            "it is gone, or has other content",
        ));
    }
    if !bench.run.config.volume.read_only {
        files::write(bench, mount_point, "written", TEXT)?;
    }
    match block_devices::backing(&mount.device) {
        Some(file) => one_device(bench, &call, &file),
        None => Ok(()),
    }
}

/// Checks that the volume has one loop device. A shared file system may have any number.
fn one_device(bench: &Bench, call: &Call, file: &str) -> Verdict {
    if bench.run.config.volume.kind != Kind::Block {
        return Ok(());
    }
    let devices = devices(file, 1)?;
    if devices > 1 {
        let expected = "one loop device for the volume";
        return Err(wrong(call, expected, devices.to_string()));
    }
    Ok(())
}

/// Counts the loop devices of a file. Waits a moment while there are more than `most`, because processes that
/// probe devices keep them open.
fn devices(file: &str, most: usize) -> Result<usize> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let loops = block_devices::loops()?;
        let found = loops.iter().filter(|(_, other)| other == file).count();
        if found <= most || Instant::now() > end {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn parent_gone(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    let argv = bench.mount_arguments(&mount_point, "rw")?;
    // The reader of the pipe ends before the driver writes.
    let script = r#"( sleep 0.05; "$0" "$@" ) 2>&1 | true"#;
    let options = CallOptions {
        wrapper: ["/bin/sh", "-c", script].map(Into::into).into(),
        ..CallOptions::default()
    };
    bench.call_with_options(&argv, &options)?;
    thread::sleep(Duration::from_millis(50));
    repeated(bench, &mount_point, false)?;
    bench.unmount_and_detach(&mount_point)
}

fn leak(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let mut first = None;
    for round in 0..100 {
        let mount_point = bench.attach_and_mount(&volume, &format!("sanity-pod-{round}"), "rw")?;
        bench.unmount_and_detach(&mount_point)?;
        if round == 0 {
            first = Some(counted(bench)?);
        }
    }
    let (before, after) = (first.unwrap_or_default(), counted(bench)?);
    for (what, now) in after {
        let was = before.get(&what).copied().unwrap_or_default();
        // Another process may have made one more.
        if now > was + 2 {
            let found = format!("{now} {what}, {was} after the first round");
            return Err(fault("no more than after the first round", found));
        }
    }
    Ok(())
}

fn counted(bench: &Bench) -> Result<BTreeMap<String, usize>> {
    // An autoclear loop device may take a moment to go.
    thread::sleep(Duration::from_millis(200));
    let mut counts = BTreeMap::new();
    counts.insert("mounts".to_owned(), mounts::all()?.len());
    let ours = |file: &String| {
        bench.run.config.volume.content.is_some() || file.contains("flexvol-sanity-")
    };
    let loops = block_devices::loops()?
        .into_iter()
        .filter(|(_, file)| ours(file));
    let mut devices = BTreeMap::<String, usize>::new();
    for (_, file) in loops {
        *devices
            .entry(format!("loop devices of {file}"))
            .or_default() += 1;
    }
    counts.extend(devices);
    for mount_point in &bench.run.config.writes {
        if let Ok(entries) = fs::read_dir(mount_point) {
            counts.insert(
                format!("files in {}", mount_point.display()),
                entries.count(),
            );
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_kill_met_is_left_out_with_the_reason() {
        let mut cuts = Cuts::new("a mount", Duration::from_millis(2));
        cuts.kills = 5;
        let Err(Stop::Skipped(why)) = cuts.check_hits() else {
            panic!("nothing was tried");
        };
        assert!(why.contains("none of 5 kills met a mount"), "{why}");
        cuts.hits = 1;
        assert!(cuts.check_hits().is_ok());
    }
}
