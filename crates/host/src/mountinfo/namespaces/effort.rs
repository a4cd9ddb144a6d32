//! Time spent in a search, by user.

use std::{collections::HashMap, fmt, fs, path::Path, time::Duration};

/// Time spent on the mount tables of processes.
#[derive(Default)]
pub(super) struct Effort {
    users: HashMap<u32, Share>,
    /// Share of processes whose user is unknown.
    unknown: Share,
}

#[derive(Clone, Copy, Default)]
struct Share {
    time: Duration,
    tables: u64,
    /// The process that took the longest, and its time.
    longest: (u32, Duration),
}

impl Effort {
    /// Adds the time for a process' table. `process` is its directory in /proc. The directory's owner is no replacement
    /// for `status`: it is root for processes that are not dumpable.
    pub(super) fn add(&mut self, process: &Path, time: Duration) {
        let status = fs::read_to_string(process.join("status"));
        let user = status.ok().as_deref().and_then(user);
        let share = match user {
            Some(user) => self.users.entry(user).or_default(),
            None => &mut self.unknown,
        };
        share.time += time;
        share.tables += 1;
        let id = process
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if let Some(id) = id
            && time >= share.longest.1
        {
            share.longest = (id, time);
        }
    }
}

/// Returns the user id of the process, as in the node's user namespace.
fn user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// Shows the user who caused most of the time.
impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.users.iter().map(|(user, share)| (Some(user), share));
        let all = known.chain([(None, &self.unknown)]);
        let (user, share) = all
            .max_by_key(|(_, share)| share.time)
            .unwrap_or((None, &self.unknown));
        let (process, _) = share.longest;
        let (tenths, tables) = (share.time.as_millis() / 100, share.tables);
        write!(
            f,
            "{}.{} s of that went into {tables} mount tables of ",
            tenths / 10,
            tenths % 10
        )?;
        match user {
            Some(user) => write!(f, "user {user}")?,
            None => write!(f, "processes that have ended")?,
        }
        write!(f, ", the longest into that of process {process}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_whose_tables_took_the_longest_is_named() {
        let share = |milliseconds, tables, process| Share {
            time: Duration::from_millis(milliseconds),
            tables,
            longest: (process, Duration::from_millis(70)),
        };
        let mut effort = Effort {
            users: HashMap::from([(0, share(900, 500, 1)), (1000, share(19_040, 293, 4242))]),
            unknown: share(10, 1, 7),
        };
        assert_eq!(
            effort.to_string(),
            "19.0 s of that went into 293 mount tables of user 1000, the longest into that of process 4242"
        );
        effort.add(Path::new("/proc/4194305"), Duration::from_secs(30));
        assert!(
            effort
                .to_string()
                .ends_with("ended, the longest into that of process 4194305")
        );
    }

    #[test]
    fn a_process_says_whose_it_is() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(user(&status), Some(rustix::process::getuid().as_raw()));
        assert_eq!(user("Name:\tUid: 7\nGid:\t1\t1\t1\t1\n"), None);
    }
}
