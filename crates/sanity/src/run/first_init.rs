//! The driver's first `init`, and what it changed on the machine. It is observed before any other call, because
//! a change that every `init` makes alike cannot be seen later.

use crate::{
    callout::call::CallOptions,
    run::{FirstInit, Run},
    system::{self, command, mount_namespace, mounts},
};
use anyhow::{Context, Result};
use nix::{
    fcntl::{OFlag, open},
    mount::MsFlags,
    sched::{CloneFlags, unshare},
    sys::stat::Mode,
    unistd::geteuid,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// Directories for temporary files.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Objects on the machine, each with the state that may change.
type MachineState = BTreeMap<String, String>;

/// Calls `init`. With root this happens in a mount and a network namespace with empty temporary directories,
/// so that no other process causes changes.
pub fn init(run: &Run) -> Result<FirstInit> {
    if !system::is_root() {
        return watched(run, CallOptions::default());
    }
    mount_namespace::in_own_namespace(|| {
        unshare(CloneFlags::CLONE_NEWNET).context("leave the network namespace")?;
        if command::has_tool("ip") {
            let words = ["link", "set", "lo", "up"].map(OsStr::new);
            // If this fails, `init` finds the loopback interface down.
            let _ = command::tool("ip", &words);
        }
        for place in TEMPORARY {
            empty(Path::new(place), run)?;
        }
        let options = CallOptions {
            shown_prefix: &["unshare", "--mount", "--net"],
            ..CallOptions::default()
        };
        watched(run, options)
    })?
}

fn watched(run: &Run, options: CallOptions) -> Result<FirstInit> {
    let before = machine_state(run)?;
    let call = run.call(&["init".to_owned()], &options)?;
    let after = machine_state(run)?;
    let changes = after
        .iter()
        .filter_map(|(what, now)| match before.get(what) {
            None => Some(format!("{what} is new")),
            Some(was) if was != now => Some(format!("{what} was changed")),
            Some(_) => None,
        });
    Ok(FirstInit {
        changes: changes.collect(),
        call,
    })
}

/// Mounts an empty directory over a place for this thread, but keeps what the driver and tester have there.
fn empty(place: &Path, run: &Run) -> Result<()> {
    let Ok(place) = fs::canonicalize(place) else {
        return Ok(());
    };
    let beside = |path: &Path| path.parent().map(Path::to_owned);
    let program = fs::canonicalize(&run.executable).context("find the driver")?;
    let mut kept: Vec<PathBuf> = [beside(&run.executable), beside(&program)]
        .into_iter()
        .flatten()
        .chain([run.scratch.clone()])
        .chain(run.config.writes.iter().cloned())
        .filter(|path| path.starts_with(&place) && path.is_dir())
        .collect();
    kept.sort();
    kept.dedup();
    if kept.contains(&place) {
        return Ok(());
    }
    let held: Vec<_> = kept
        .iter()
        .map(|path| open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()))
        .collect::<Result<_, _>>()
        .context("keep what the driver has in a temporary place")?;
    mount_namespace::mount_memory(&place, MsFlags::empty())?;
    for (path, file) in kept.iter().zip(&held) {
        if !path.exists() {
            system::make_directory(path).context("make a place for what the driver has")?;
            mount_namespace::bind(
                Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())),
                path,
            )?;
        }
    }
    Ok(())
}

fn machine_state(run: &Run) -> Result<MachineState> {
    let mut state = MachineState::new();
    // An ordinary user can change neither settings nor mounts, and other processes may meanwhile.
    if system::is_root() {
        state = settings();
        for mount in mounts::all()? {
            let what = format!(
                "a mount of {} on {}",
                mount.filesystem,
                mount.point.display()
            );
            state.insert(what, mount.source);
        }
    }
    let beside = run.executable.parent().unwrap_or(Path::new("/"));
    state.extend(files(beside, |_| true));
    // An ordinary user shares these directories with other users.
    let own = |about: &fs::Metadata| system::is_root() || about.uid() == geteuid().as_raw();
    for place in TEMPORARY {
        state.extend(files(Path::new(place), own));
    }
    state.extend(network());
    Ok(state)
}

/// Returns the files of a directory, with size and time.
fn files(directory: &Path, which: impl Fn(&fs::Metadata) -> bool) -> MachineState {
    let mut found = MachineState::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(about) = entry.metadata() else {
            continue;
        };
        // The content of directories is not examined.
        if which(&about) {
            let state = match about.is_file() {
                true => format!("{} {} {}", about.len(), about.mtime(), about.mtime_nsec()),
                false => String::new(),
            };
            found.insert(format!("a file {}", entry.path().display()), state);
        }
    }
    found
}

/// Returns the interfaces and listening sockets of this thread's network namespace.
fn network() -> MachineState {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/thread-self/net").join(name));
    let mut found = MachineState::new();
    for line in read("dev").unwrap_or_default().lines().skip(2) {
        let name = line.split(':').next().unwrap_or_default().trim();
        // An ordinary user can make none.
        if system::is_root() {
            found.insert(format!("a network interface {name}"), String::new());
        }
    }
    let own = geteuid().to_string();
    for kind in ["tcp", "tcp6"] {
        let table = read(kind).unwrap_or_default();
        found.extend(listening(kind, &table, &own));
    }
    if system::is_root() {
        let table = read("unix").unwrap_or_default();
        found.extend(listening_locally(&table));
    }
    found
}

/// Parses `/proc/net/tcp` (`tcp4_seq_show` in `net/ipv4/tcp_ipv4.c`): address and port are hexadecimal, state
/// 0A means listening, and the eighth field is the user.
fn listening(kind: &str, table: &str, user: &str) -> MachineState {
    let sockets = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = *fields.get(3)? == "0A" && (*fields.get(7)? == user || user == "0");
        let address = fields.get(1)?;
        listens.then(|| {
            (
                format!("a listening socket, {kind} {address}"),
                String::new(),
            )
        })
    });
    sockets.collect()
}

/// Parses `/proc/net/unix` (`unix_seq_show` in `net/unix/af_unix.c`): the fourth field has flags, of which
/// 10000 means listening, and the last field is the path, if any.
fn listening_locally(table: &str) -> MachineState {
    let sockets = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        let path = fields.get(7).copied().unwrap_or("without a name");
        (flags & 0x1_0000 != 0).then(|| (format!("a listening socket, unix {path}"), String::new()))
    });
    sockets.collect()
}

/// Returns kernel settings of the kinds that drivers were seen to change. Only an administrator should.
fn settings() -> MachineState {
    let mut found = MachineState::new();
    for directory in ["kernel", "vm", "fs", "net/ipv4"] {
        let Ok(entries) = fs::read_dir(Path::new("/proc/sys").join(directory)) else {
            continue;
        };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            // The kernel changes these itself.
            let moving = [
                "nr",
                "state",
                "random",
                "ns_last_pid",
                "tcp_mem",
                "free",
                "max_map",
            ];
            if moving.iter().any(|part| name.contains(part)) {
                continue;
            }
            if let Ok(value) = fs::read_to_string(entry.path()) {
                found.insert(format!("the setting {directory}/{name}"), value);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_read_from_the_kernels_tables() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 1 1\n   \
            1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     7        0 2 1\n";
        let found = |user| {
            listening("tcp", table, user)
                .into_keys()
                .collect::<Vec<_>>()
        };
        let socket = "a listening socket, tcp 0100007F:1F90";
        assert_eq!(found("0"), [socket]);
        assert_eq!(found("7"), [socket]);
        assert_eq!(found("8"), [""; 0]);
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4711 /run/x\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 4712\n";
        let found: Vec<_> = listening_locally(table).into_keys().collect();
        assert_eq!(found, ["a listening socket, unix /run/x"]);
    }

    #[test]
    fn a_file_that_is_new_or_changed_is_seen() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("old"), "1").unwrap();
        let before = files(place.path(), |_| true);
        fs::write(place.path().join("old"), "22").unwrap();
        fs::write(place.path().join("new"), "").unwrap();
        let after = files(place.path(), |_| true);
        assert_eq!((before.len(), after.len()), (1, 2));
        let old = before.keys().next().unwrap();
        assert_ne!(before[old], after[old]);
        assert!(files(place.path(), |_| false).is_empty());
    }
}
