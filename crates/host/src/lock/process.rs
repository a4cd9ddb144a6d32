//! Processes and their tasks, as /proc shows them.

use rustix::process::Signal;
use std::{
    fmt,
    fs::{self, File},
    io::Read,
};

/// `PF_EXITING`, include/linux/sched.h.
const EXITING: u64 = 4;

/// A process. Its start time tells it from a later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    began: u64,
}

/// State of a process' tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tasks {
    /// At least one task may still run the program.
    Running,
    /// No task will run the program again. Contains each task's number of context switches.
    Ending(Vec<String>),
}

impl Process {
    pub(super) fn of(pid: u32) -> Option<Self> {
        let began = Stat::of(&format!("/proc/{pid}"))?.began;
        Some(Process { pid, began })
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let (pid, began) = line.split_once(' ')?;
        let (pid, began) = (pid.parse().ok()?, began.parse().ok()?);
        Some(Process { pid, began })
    }

    /// `None` if the process has ended. The main task may end before the others; its `stat` remains.
    pub(super) fn tasks(&self) -> Option<Tasks> {
        if Process::of(self.pid)? != *self {
            return None;
        }
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        // A task that ends meanwhile shows that the process is active.
        let tasks = tasks.map(|task| {
            let path = task.ok()?.path().to_str()?.to_owned();
            let status = fs::read_to_string(format!("{path}/status")).ok()?;
            Some((Stat::of(&path)?, status))
        });
        match tasks.collect::<Option<Vec<_>>>() {
            Some(tasks) => together(&tasks),
            None => Some(Tasks::Running),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.began)
    }
}

fn together(tasks: &[(Stat, String)]) -> Option<Tasks> {
    if tasks.iter().all(|(stat, _)| stat.has_ended) {
        return None;
    }
    let ends = |(stat, status): &(Stat, String)| stat.is_exiting || is_killed(status);
    if !tasks.iter().all(ends) {
        return Some(Tasks::Running);
    }
    let lines = tasks.iter().flat_map(|(_, status)| status.lines());
    let moves = lines.filter(|line| line.starts_with("Pid:") || line.contains("ctxt_switches"));
    Some(Tasks::Ending(moves.map(str::to_owned).collect()))
}

/// More than `stat` has: 52 numbers, and a name of at most 64 bytes. One read returns all of it.
const MAX_STAT: usize = 2048;

/// The fields of `stat` that are used (fs/proc/array.c, `do_task_stat`).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    has_ended: bool,
    is_exiting: bool,
    began: u64,
}

impl Stat {
    fn of(directory: &str) -> Option<Self> {
        let mut text = [0; MAX_STAT];
        let mut file = File::open(format!("{directory}/stat")).ok()?;
        let length = file.read(&mut text).ok()?;
        Stat::parse(&String::from_utf8_lossy(text.get(..length)?))
    }

    /// Splits at the last parenthesis, because the process name may contain any character.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        let flags: u64 = fields.get(6)?.parse().ok()?;
        Some(Stat {
            has_ended: fields.first()?.starts_with(['Z', 'X']),
            is_exiting: flags & EXITING != 0,
            began: fields.get(19)?.parse().ok()?,
        })
    }
}

/// Whether SIGKILL is pending for a task with this `status` (fs/proc/array.c, `task_sig`).
fn is_killed(status: &str) -> bool {
    let kill = 1_u64 << (Signal::KILL.as_raw() - 1);
    status
        .lines()
        .filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))
        })
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|pending| pending & kill != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_is_told_from_one_with_other_signals() {
        let status = |own: &str, shared: &str| {
            format!("Threads:\t1\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0000000000000100\n")
        };
        let [none, kill, term] = ["0000000000000000", "0000000000000100", "0000000000004000"];
        assert!(is_killed(&status(kill, none)) && is_killed(&status(none, kill)));
        assert!(!is_killed(&status(none, none)) && !is_killed(&status(term, term)));
        assert!(!is_killed(""));
    }

    #[test]
    fn an_ending_process_is_told_by_its_flags() {
        let stat = |state, flags: u64| {
            let text =
                format!("7 (a) b)) {state} 1 7 7 0 -1 {flags} 5 0 0 0 0 0 0 0 20 0 1 0 99 0");
            Stat::parse(&text)
        };
        let told = |state, flags| stat(state, flags).map(|stat| (stat.has_ended, stat.is_exiting));
        assert_eq!(told('D', 0x40_0004), Some((false, true)));
        assert_eq!(told('S', 0x40_0000), Some((false, false)));
        assert_eq!(told('Z', 0x40_000c), Some((true, true)));
        assert_eq!(stat('S', 0).map(|stat| stat.began), Some(99));
        assert_eq!((Stat::parse(""), Stat::parse("7 (loop) D 1")), (None, None));
    }

    #[test]
    fn a_process_ends_when_all_of_its_tasks_do() {
        let task = |has_ended, is_exiting, switches| {
            let stat = Stat {
                has_ended,
                is_exiting,
                began: 1,
            };
            (
                stat,
                format!("Pid:\t7\nvoluntary_ctxt_switches:\t{switches}\n"),
            )
        };
        let (ended, waits, runs) = (
            task(true, true, 1),
            task(false, true, 1),
            task(false, false, 1),
        );
        assert_eq!(together(&[]), None);
        assert_eq!(together(&[ended]), None);
        assert_eq!(together(&[task(true, true, 1), runs]), Some(Tasks::Running));
        let before = together(&[task(true, true, 1), waits]);
        assert!(matches!(before, Some(Tasks::Ending(_))));
        assert_eq!(
            before,
            together(&[task(true, true, 1), task(false, true, 1)])
        );
        assert_ne!(
            before,
            together(&[task(true, true, 1), task(false, true, 2)])
        );
    }

    #[test]
    fn a_process_is_told_by_when_it_began() {
        let own = Process::of(std::process::id()).unwrap();
        assert_eq!(own.tasks(), Some(Tasks::Running));
        assert_eq!(Process::parse(&own.to_string()), Some(own.clone()));
        let earlier = Process {
            began: own.began - 1,
            ..own
        };
        assert_eq!(earlier.tasks(), None);
    }
}
