//! Checks of callouts that arrive while another one hangs.

use crate::{
    bench::{Bench, MountPoint, sandbox},
    callout::{
        call::{Call, Exit},
        hanging::Hanging,
    },
    check::{Check, Level, Need},
    system::{command::PATH, mount_namespace},
    verdict::{Stop, Verdict, wrong},
};
use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

pub const CHECKS: &[Check] = &[Check {
    name: "out.deadline",
    level: Level::Must,
    needs: &[Need::Root, Need::Volume],
    alone: false,
    what: "a callout is answered though an earlier one for the same volume hangs: stopped half-way, and in a mkfs or mount that never ends, if the driver runs one for a new volume",
    why: "no callout but waitforattach has a time limit; one that waits for ever holds the pod for ever",
    broke: "nearly all: of 23 drivers one tried to have a deadline",
    mend: "limit the wait for locks and for every command to less than two minutes",
    source: "DriverCall.Run has no timeout, 1.6 to 1.37; podAttachAndMountTimeout is 2m3s",
    run: hung,
}];

fn hung(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    if !bench.run.source.is_fresh() {
        return stopped(bench);
    }
    // Both wait as long as the driver does, so they run in parallel.
    thread::scope(|scope| {
        let other = scope.spawn(|| in_a_tool(bench));
        let stopped = stopped(bench);
        let in_a_tool = other
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        stopped.and(in_a_tool)
    })
}

/// Stops a driver in the middle of its work, and makes another call for the same volume.
fn stopped(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    let usual = bench.unmount(&mount_point)?;
    bench.expect_unmounted(&mount_point, &usual)?;
    let argv = bench.mount_arguments(&mount_point, "rw")?;
    let first = bench.call(&argv)?;
    bench.expect_mounted(&mount_point, &first)?;
    let call = bench.unmount(&mount_point)?;
    bench.expect_unmounted(&mount_point, &call)?;
    bench.mount_arguments(&mount_point, "rw")?;
    let hanging = halfway(bench, &mount_point, &argv, first.took)?;
    answered(bench, &argv, "one that was stopped")?;
    drop(hanging);
    repeated(bench, &mount_point)
}

/// Returns a call that was stopped before its end.
fn halfway(
    bench: &Bench,
    mount_point: &MountPoint,
    argv: &[String],
    took: Duration,
) -> Result<Hanging, Stop> {
    // The measured call may have waited for something else, so the time is halved until a stop meets the call.
    for part in [2, 4, 8, 16, 32, 64] {
        let hanging = Hanging::start(&bench.run.executable, argv)?;
        if hanging.stop_after(took / part)? {
            return Ok(hanging);
        }
        drop(hanging);
        bench.unmount(mount_point)?;
    }
    let why = "a slower driver: it ends before it can be stopped half-way";
    Err(Stop::Skipped(why.to_owned()))
}

/// Makes a program hang that the driver runs for the first mount of a volume, as happens when the storage
/// is gone.
fn in_a_tool(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let mount_point = bench.prepare_format(&volume, "rw")?;
    let argv = bench.mount_arguments(&mount_point, "rw")?;
    let mark = bench.dir.join("hangs");
    let mut hanging = None;
    let start = || {
        bench.expect_traces(&argv)?;
        let call = Hanging::start(&bench.run.executable, &argv)?;
        if call.goes_until(|| mark.exists(), bench.run.deadline)? {
            hanging = Some(call);
        } else {
            // It may have mounted in this thread's mount namespace.
            drop(call);
            bench.unmount(&mount_point)?;
        }
        Ok(())
    };
    sandbox::with_changed_mounts(bench, || without_end(&bench.dir, &mark), start)?;
    if hanging.is_none() {
        bench.note("it runs neither mkfs nor mount: none could be made to hang");
    } else {
        answered(bench, &argv, "one whose mkfs or mount hangs")?;
    }
    drop(hanging);
    // A process that left the driver's process group is still running.
    let ids = fs::read_to_string(&mark).unwrap_or_default();
    for id in ids.lines().filter_map(|line| line.parse().ok()) {
        // It may have ended with the driver.
        let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
    }
    repeated(bench, &mount_point)
}

/// Bind-mounts a script that never ends over each program that formats or mounts. It writes its pid to `mark`.
fn without_end(directory: &Path, mark: &Path) -> Result<()> {
    let program = directory.join("without-end");
    let script = format!(
        "#!/bin/sh\necho $$ >>{}\nexec sleep 86400\n",
        mark.display()
    );
    fs::write(&program, script).context("write a program that hangs")?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&program, mode).context("make it one")?;
    for tool in tools() {
        mount_namespace::bind(&program, &tool)?;
    }
    Ok(())
}

/// Returns the system's programs that format or mount, except links to a program of another name, such as
/// busybox.
fn tools() -> BTreeSet<PathBuf> {
    let mounts = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("mkfs")
            || name.starts_with("mount.")
            || ["mke2fs", "mount"].contains(&&*name)
    };
    let directories = PATH
        .split(':')
        .filter_map(|directory| fs::read_dir(directory).ok());
    let programs = directories
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path());
    programs
        .filter(|path| mounts(path))
        .filter_map(|path| fs::canonicalize(path).ok())
        .filter(|path| mounts(path) && path.is_file())
        .collect()
}

/// Stops the check with a fault if there is no answer before the deadline.
fn answered(bench: &Bench, argv: &[String], beside: &str) -> Verdict {
    let call: Call = bench.call(argv)?;
    bench.note(format!(
        "answered after {:.1} s beside {beside}",
        call.took.as_secs_f64()
    ));
    if call.exit == Exit::Deadline {
        let deadline = bench.run.deadline.as_secs();
        let expected = format!("an answer within {deadline} s, beside {beside}");
        return Err(wrong(&call, expected, "none"));
    }
    Ok(())
}

/// Checks that nothing hangs any more.
fn repeated(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    let call = bench.mount(mount_point, "rw")?;
    bench.expect_mounted(mount_point, &call)?;
    bench.unmount_and_detach(mount_point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_that_format_or_mount_are_put_away() {
        for tool in tools() {
            let name = tool.file_name().unwrap().to_string_lossy().into_owned();
            assert!(
                name.starts_with("mk") || name.starts_with("mount"),
                "{name}"
            );
            assert_ne!(name, "mountpoint");
        }
    }
}
