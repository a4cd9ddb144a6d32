//! System calls of a callout, traced with strace, and faults injected into one of them.

use crate::{Call, Driver, Sandbox};
use std::{collections::BTreeMap, fmt, fs};

/// One system call of a callout: the `nth` of this name in one of its processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Point {
    pub(crate) call: String,
    nth: u32,
    /// Whether this call, or a later one of its name, releases a lease. Releasing cannot fail; an injected error would
    /// make other processes wait until the lease is broken.
    pub(crate) before_a_release: bool,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call, self.nth)
    }
}

/// Fault at a [`Point`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Harm {
    /// SIGKILL at the call's entry, as after an OOM kill or a restart of kubelet's cgroup.
    Kill,
    /// The kernel returns this error and does nothing.
    Error(&'static str),
    /// This and every later call of its name returns this error, as when a disk died.
    ErrorFromThenOn(&'static str),
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Harm::Kill => f.write_str("killed"),
            Harm::Error(error) => write!(f, "{error}"),
            Harm::ErrorFromThenOn(error) => write!(f, "{error} from then on"),
        }
    }
}

/// A callout traced with strace.
pub(crate) struct Traced {
    pub(crate) call: Call,
    log: String,
}

impl Traced {
    /// Runs a callout and traces its system calls: all, or only those of one name, which is many times faster.
    pub(crate) fn calls(
        sandbox: &Sandbox,
        driver: &Driver,
        name: Option<&str>,
        arguments: &[String],
    ) -> Self {
        let trace = name.map(|name| format!("trace={name},execve"));
        let options = trace.as_ref().map(|trace| ["-e", trace, "--seccomp-bpf"]);
        let options = options.as_ref().map_or(&[][..], |options| options);
        Self::run(sandbox, driver, options, arguments)
    }

    /// Runs a callout with a fault at one point.
    pub(crate) fn harmed(
        sandbox: &Sandbox,
        driver: &Driver,
        point: &Point,
        harm: Harm,
        arguments: &[String],
    ) -> Self {
        let Point { call, nth, .. } = point;
        let inject = match harm {
            Harm::Kill => format!("inject={call}:signal=KILL:when={nth}"),
            Harm::Error(error) => format!("inject={call}:error={error}:when={nth}"),
            Harm::ErrorFromThenOn(error) => format!("inject={call}:error={error}:when={nth}+"),
        };
        // Started programs are traced too, because an unexpected mkfs is the worst that can happen.
        let trace = format!("trace={call},execve");
        let mut options = vec!["-e", &trace, "-e", &inject];
        // Much faster, but strace cannot kill with it.
        options.extend((harm != Harm::Kill).then_some("--seccomp-bpf"));
        Self::run(sandbox, driver, &options, arguments)
    }

    fn run(sandbox: &Sandbox, driver: &Driver, options: &[&str], arguments: &[String]) -> Self {
        let log = sandbox.path("strace.log");
        let to_log = [
            "-f",
            "-qq",
            "-o",
            log.to_str().expect("sandboxes have plain names"),
        ];
        let strace = [&["/usr/bin/strace"], &to_log[..], options].concat();
        let call = driver.call_through(&strace, arguments);
        let log = fs::read_to_string(&log).expect("read strace's log");
        Traced { call, log }
    }

    /// Whether the fault was injected. The number of times that the driver polls its children depends on timing, so a
    /// point is not always reached again.
    pub(crate) fn is_harmed(&self) -> bool {
        self.log.contains("+++ killed by SIGKILL") || self.log.contains("(INJECTED)")
    }

    /// Whether a program was started whose name begins with mkfs.
    pub(crate) fn formatted(&self) -> bool {
        let mut started = self.log.lines().filter(|line| line.contains("execve("));
        started.any(|line| line.contains("/mkfs."))
    }

    /// Whether the fault prevented the answer from being written.
    pub(crate) fn lost_its_answer(&self) -> bool {
        let mut lost = self.log.lines().filter(|line| line.contains("(INJECTED)"));
        lost.any(|line| line.contains("write(") && line.contains(r#", "{\"status\":"#))
    }

    /// Returns the points of the callout: for each name as many as the process with the most calls made. The first
    /// `execve` is strace's own and does not count.
    pub(crate) fn points(&self) -> Vec<Point> {
        points_of(&self.log)
    }
}

fn points_of(trace: &str) -> Vec<Point> {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let mut releases: BTreeMap<&str, u32> = BTreeMap::new();
    for line in trace.lines() {
        let Some((process, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some((call, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        if call
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            let count = counts.entry((call, process)).or_default();
            *count += 1;
            if rest.contains("F_UNLCK") {
                let last = releases.entry(call).or_default();
                *last = (*count).max(*last);
            }
        }
    }
    let mut most: BTreeMap<&str, u32> = BTreeMap::new();
    for ((call, _), count) in counts {
        let most = most.entry(call).or_default();
        *most = count.max(*most);
    }
    most.iter()
        .flat_map(|(call, count)| {
            let first = if *call == "execve" { 2 } else { 1 };
            (first..=*count).map(|nth| Point {
                call: (*call).to_owned(),
                nth,
                before_a_release: releases.get(call).is_some_and(|last| nth <= *last),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_counted_by_name_and_process() {
        let trace = "\
7 execve(\"/driver\", [\"init\"], 0x0) = 0
7 openat(AT_FDCWD, \"a(b\", O_RDONLY) = 3
7 vfork( <unfinished ...>
8 openat(AT_FDCWD, \"c\", O_RDONLY) = 3
8 openat(AT_FDCWD, \"d\", O_RDONLY <unfinished ...>
7 <... vfork resumed>) = 8
8 <... openat resumed>) = 4
8 +++ exited with 0 +++
7 --- SIGCHLD {si_signo=SIGCHLD} ---
7 exit_group(0) = ?
";
        let points: Vec<_> = points_of(trace).iter().map(ToString::to_string).collect();
        assert_eq!(points, ["exit_group 1", "openat 1", "openat 2", "vfork 1"]);
    }
}
