//! Checks that a driver does not leak secrets.

use crate::{
    bench::Bench,
    callout::{argument, call::Call},
    check::{Check, Level},
    system::{self, mounts},
    verdict::{Stop, Verdict, fault, wrong},
    volume::{Source, Stage},
};
use anyhow::Context;
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, SystemTime},
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "out.no-secret-echo",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "a secret is in no reply, no file and no argument of a child",
        why: "messages are read by everybody in the namespace, logs and process lists by everybody on the node",
        broke: "drivers that log or answer with all their arguments, and one that kept passwords in a file",
        mend: "split secrets off first, and hand them to children by descriptor or file of mode 0600",
        source: "kubernetes.io/secret/ keys of mount, mounter.go, 1.6 to 1.37; events of pods",
        run: secrets,
    },
    Check {
        name: "out.no-secret-on-bad-json",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "JSON that cannot be read is not repeated in the answer",
        why: "it may contain the secrets, and the answer goes into an event",
        broke: "three of the drivers that were tried echo it whole",
        mend: "say where it is broken, not what it is",
        source: "the error of DriverCall.Run becomes an event of the pod",
        run: broken_json,
    },
];

/// Returns a unique secret and its base64 encoding.
fn secret(bench: &Bench, what: &str) -> (String, String) {
    let plain = format!("sanity-{}-{what}-secret", bench.run.tag);
    let encoded = argument::base64(plain.as_bytes());
    (plain, encoded)
}

fn has(bytes: &[u8], words: &[&str]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    words.iter().any(|word| text.contains(word))
}

fn secrets(bench: &Bench) -> Verdict {
    bench.needs_callout("mount")?;
    let (plain, encoded) = secret(bench, "echo");
    let words = [plain.as_str(), encoded.as_str()];
    let key = format!("{}key", argument::SECRET);
    let started = SystemTime::now();
    let nobody = bench.dir.join("nobody");
    system::make_directory(&nobody).context("make a directory")?;
    let mut members = bench.run.missing_volume().mount_members("rw", "sanity-pod");
    members.insert(key.clone(), encoded.clone());
    let mut calls = vec![vec![
        "mount".to_owned(),
        nobody.to_string_lossy().into_owned(),
        argument::object(&members),
    ]];
    let mut mount_point = None;
    if system::is_root() && bench.run.source != Source::None {
        let volume = bench.volume()?;
        let prepared = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
        if prepared.stage == Stage::Pod {
            system::make_directory(&prepared.dir).context("make a directory")?;
            let mut members = prepared.volume.mount_members("rw", "sanity-pod");
            members.insert(key, encoded.clone());
            calls.push(vec![
                "mount".to_owned(),
                prepared.dir.to_string_lossy().into_owned(),
                argument::object(&members),
            ]);
            mount_point = Some(prepared);
        }
    }
    for argv in &calls {
        let (call, seen) = watched(bench, argv, &encoded, &plain)?;
        if has(&call.output(), &words) {
            return Err(wrong(
                &call,
                "an answer without the secret",
                "the secret is in it",
            ));
        }
        if let Some(seen) = seen {
            return Err(wrong(
                &call,
                "children without the secret in their arguments",
                seen,
            ));
        }
    }
    for file in written_since(bench, started) {
        if fs::read(&file).is_ok_and(|bytes| has(&bytes, &words)) {
            return Err(fault(
                "no file with the secret",
                format!("it is in {}", file.display()),
            ));
        }
    }
    if let Some(mount_point) =
        mount_point.filter(|mount_point| mounts::at(&mount_point.dir).is_ok_and(|m| !m.is_empty()))
    {
        bench.unmount_and_detach(&mount_point)?;
    }
    Ok(())
}

/// Makes a call and meanwhile looks for the secret in the arguments of all processes.
fn watched(
    bench: &Bench,
    argv: &[String],
    encoded: &str,
    plain: &str,
) -> Result<(Call, Option<String>), Stop> {
    let ended = AtomicBool::new(false);
    let driver = bench.run.executable.to_string_lossy().into_owned();
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = None;
            // One argument is at most 128 KiB (MAX_ARG_STRLEN), and only one of these is long.
            let mut line = vec![0; 1 << 18];
            while !ended.load(Ordering::Relaxed) {
                for entry in fs::read_dir("/proc")
                    .into_iter()
                    .flatten()
                    .filter_map(Result::ok)
                {
                    // A single read: each is of the program that runs then, so two could return the beginning of one
                    // program's arguments and the end of the next one's.
                    let path = entry.path().join("cmdline");
                    let read = File::open(path).and_then(|mut file| file.read(&mut line));
                    let Ok(length) = read else {
                        continue;
                    };
                    let text = String::from_utf8_lossy(&line[..length]);
                    // The driver gets the secret as an argument, and a script's subshells have the same arguments.
                    let leaks =
                        (text.contains(encoded) || text.contains(plain)) && !text.contains(&driver);
                    if leaks {
                        seen = text.split('\0').next().map(|name| format!("{name} has it"));
                    }
                }
                thread::sleep(Duration::from_micros(300));
            }
            seen
        });
        let call = bench.call(argv);
        ended.store(true, Ordering::Relaxed);
        let seen = watch.join().unwrap_or_default();
        Ok((call?, seen))
    })
}

/// Returns small files in the usual places that changed after this time.
fn written_since(bench: &Bench, started: SystemTime) -> Vec<PathBuf> {
    // The clock of file times lags behind this one.
    let started = started - Duration::from_secs(1);
    let beside = bench
        .run
        .executable
        .parent()
        .unwrap_or(Path::new("/"))
        .to_owned();
    let mut paths: Vec<PathBuf> = ["/var/log", "/run", "/tmp", "/var/tmp"]
        .map(PathBuf::from)
        .into();
    paths.push(beside);
    paths.extend(bench.run.config.writes.iter().cloned());
    let mut found = Vec::new();
    let mut depth = vec![0; paths.len()];
    while let (Some(path), Some(level)) = (paths.pop(), depth.pop()) {
        let Ok(about) = fs::symlink_metadata(&path) else {
            continue;
        };
        if about.is_dir() && level < 3 && !path.starts_with(&bench.run.scratch) {
            for entry in fs::read_dir(&path)
                .into_iter()
                .flatten()
                .filter_map(Result::ok)
            {
                paths.push(entry.path());
                depth.push(level + 1);
            }
        } else if about.is_file()
            && about.len() < 1 << 22
            && about.modified().is_ok_and(|at| at >= started)
        {
            found.push(path);
        }
    }
    found
}

fn broken_json(bench: &Bench) -> Verdict {
    let (plain, encoded) = secret(bench, "broken");
    let nowhere = bench.dir.join("nowhere").to_string_lossy().into_owned();
    for text in [
        format!(r#"{{"kubernetes.io/secret/key":"{encoded}""#),
        format!(r#"{{"kubernetes.io/secret/key":"{encoded}"}} {encoded}"#),
        format!(r#"["{encoded}"]"#),
    ] {
        let call = bench.call(&["mount", &nowhere, &text])?;
        if has(&call.output(), &[&plain, &encoded]) {
            return Err(wrong(
                &call,
                "an answer without the secret",
                "the secret is in it",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{callout::argument::Options, journal::record::header, run::Run};

    #[test]
    fn a_file_that_was_written_at_once_is_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let mut run = Run::new(&header(&directory.path().join("own")), Options::new(), None);
        run.config.writes = vec![directory.path().join("log")];
        let bench = Bench::new(&run, "secrets").unwrap();
        for _ in 0..20 {
            let started = SystemTime::now();
            fs::write(directory.path().join("log"), "secret").unwrap();
            let found = written_since(&bench, started);
            assert!(found.contains(&directory.path().join("log")));
        }
    }
}
