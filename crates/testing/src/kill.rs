//! Callouts that die: at every system call they make, by SIGKILL, as after an OOM kill or a
//! restart of kubelet's cgroup.

use crate::{Baseline, Call, Driver, Outcome, Points, Random, Sandbox, budget};
use std::{collections::BTreeMap, fmt, fs, time::Instant};

/// One place where a callout is killed: at the entry of the `nth` call of this name that one
/// process of it makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    call: String,
    nth: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call, self.nth)
    }
}

/// A callout that is killed, repeated, and undone, over and over.
///
/// Every round prepares the same state, kills the callout at one point, repeats it until it
/// succeeds, which may take two calls and no more, and undoes everything.
#[derive(Clone, Copy)]
pub struct Killed<'a, S> {
    /// Whose node it is.
    pub sandbox: &'a Sandbox,
    /// Whose callout it is.
    pub driver: &'a Driver,
    /// Makes the state before the callout.
    pub prepare: &'a dyn Fn() -> S,
    /// The callout's arguments in that state.
    pub arguments: &'a dyn Fn(&S) -> Vec<String>,
    /// Checks what the callout promised, then undoes it and the preparation.
    pub finish: &'a dyn Fn(S),
}

impl<S> fmt::Debug for Killed<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Killed").finish_non_exhaustive()
    }
}

impl<S> Killed<'_, S> {
    /// Enumerates the points of the callout and tries them in the order of the run's seed, until
    /// the time box ends. Prints how many were reached, under `name`.
    ///
    /// # Panics
    /// When a repeated callout fails, or leaves anything behind.
    pub fn run(&self, name: &str, points: &Points) {
        let started = Instant::now();
        let before = Baseline::of(self.sandbox);
        let state = (self.prepare)();
        let (call, mut all) = self.enumerate(&(self.arguments)(&state));
        call.success();
        let after = Baseline::of(self.sandbox).without_space();
        (self.finish)(state);
        before.expect(self.sandbox, &format!("{name}, nothing killed"));

        Random::new(budget().seed).shuffle(&mut all);
        let (mut reached, mut missed) = (0, 0);
        for point in &all {
            if !budget().allows(started) {
                break;
            }
            let state = (self.prepare)();
            let arguments = (self.arguments)(&state);
            let (killed, is_killed) = self.kill_at(point, &arguments);
            self.repeat(name, point, &killed, &arguments);
            after.expect(
                self.sandbox,
                &format!("{name}, killed at {point}, repeated"),
            );
            (self.finish)(state);
            before.expect(self.sandbox, &format!("{name}, killed at {point}, undone"));
            reached += u64::from(is_killed);
            missed += u64::from(!is_killed);
        }
        points.add(reached);
        let all = all.len();
        println!("{name}: killed at {reached} of {all} system calls, {missed} were not made again");
    }

    fn repeat(&self, name: &str, point: &Point, killed: &Call, arguments: &[String]) {
        let first = self.driver.call(arguments);
        if first.outcome() == Outcome::Success {
            return;
        }
        let second = self.driver.call(arguments);
        assert_eq!(
            second.outcome(),
            Outcome::Success,
            "{name}, killed at {point}:\n  {killed}\nrepeated:\n  {first}\nonce more:\n  {second}"
        );
    }

    fn enumerate(&self, arguments: &[String]) -> (Call, Vec<Point>) {
        let (call, trace) = self.trace(&[], arguments);
        (call, points_of(&trace))
    }

    /// The call, and whether the driver or a program it started was killed: how often it looks
    /// whether such a program has ended is up to the clock.
    fn kill_at(&self, point: &Point, arguments: &[String]) -> (Call, bool) {
        let Point { call, nth } = point;
        let inject = format!("inject={call}:signal=KILL:when={nth}");
        let (call, trace) = self.trace(&["-e", &format!("trace={call}"), "-e", &inject], arguments);
        (call, trace.contains("+++ killed by SIGKILL"))
    }

    fn trace(&self, options: &[&str], arguments: &[String]) -> (Call, String) {
        let log = self.sandbox.path("strace.log");
        let to_log = [
            "-f",
            "-qq",
            "-o",
            log.to_str().expect("sandboxes have plain names"),
        ];
        let strace = [&["/usr/bin/strace"], &to_log[..], options].concat();
        let call = self.driver.call_through(&strace, arguments);
        (call, fs::read_to_string(&log).expect("read strace's log"))
    }
}

/// The points of one trace: of each name as many as the process that called it most often. The
/// first `execve` is strace's own and is no point.
fn points_of(trace: &str) -> Vec<Point> {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
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
            *counts.entry((call, process)).or_default() += 1;
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
