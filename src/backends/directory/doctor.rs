//! Checks of `doctor` for pools of directories.

use super::keys::DirKeys;
use crate::{
    backends::{
        doctor_directory::{check, opened},
        keys::{Pools, of},
    },
    check::Check,
    size::size,
};
use flexvol_storage::{
    host::{
        fs::quota::Projects,
        pool::{self, Rules},
    },
    sdk::Bytes,
};
use std::{fs, ops::RangeInclusive, path::Path};

pub fn of_pools(pools: &Pools) -> Vec<Check> {
    let checks = of::<DirKeys>(pools).map(|(name, _, directories)| {
        opened(name.to_owned(), &directories.path, |about, pool| {
            let (path, rules, pool) = (&directories.path, &directories.rules(), &pool);
            let available = pool.limited(rules).and_then(|it| it.available());
            let check = check(about, path, pool, rules.reserve, available);
            let check = with_projects(check, &rules.projects);
            let check = with_limits(check, pool, rules);
            let check = with_room(check, pool, rules);
            let check = with_records(check, path, pool, rules);
            alone(check, name, pool, pools)
        })
    });
    checks.collect()
}

/// Fails if volumes may write more than is free, because others or snapshots took the space.
fn with_room(check: Check, pool: &pool::Pool, rules: &Rules) -> Check {
    let shortage = pool.limited(rules).and_then(|it| it.shortage());
    match shortage.unwrap_or_default() {
        Bytes(0) => check,
        shortage => Check::fail(
            check.about,
            format!(
                "{}; volumes may write {} more than is free",
                check.found,
                size(shortage)
            ),
            "delete snapshots of volumes (what they share is needed again when it is overwritten), or what others wrote there",
        ),
    }
}

/// Fails if volumes lost their limits, so that pods can write without a limit.
fn with_limits(check: Check, pool: &pool::Pool, rules: &Rules) -> Check {
    let lost = pool.limited(rules).and_then(|it| it.lost());
    let lost = lost.unwrap_or_default();
    match lost.len() {
        0 => check,
        lost => Check::fail(
            check.about,
            format!("{}; volumes without their limit: {lost}", check.found),
            "flexvol gc gives them their limits again",
        ),
    }
}

/// Fails if a volume's record is damaged. The driver leaves such a volume alone; an administrator can rewrite the
/// record.
fn with_records(check: Check, path: &Path, pool: &pool::Pool, rules: &Rules) -> Check {
    let damaged = pool.limited(rules).and_then(|it| it.damaged());
    let damaged = damaged.unwrap_or_default();
    let Some(first) = damaged.first() else {
        return check;
    };
    let found = format!(
        "{}; volumes whose limit cannot be read: {}, as {}: {}",
        check.found,
        damaged.len(),
        first.volume,
        first.why
    );
    let path = path.join(&first.directory);
    let path = path.display();
    let remedy = match &first.proposal {
        Some(record) => format!(
            "if no newer flexvol made it and no pod moved it to another project, this is its record: setfattr -n {} -v '{record}' {path}",
            first.attribute
        ),
        None => format!(
            "its project is another volume's, or limits nothing: copy what is needed out of {path}, then write a record with a project that nobody has, setfattr -n {} -v '1 PROJECT BYTES' (project 0 on btrfs), and delete the volume",
            first.attribute
        ),
    };
    Check::fail(check.about, found, remedy)
}

/// Fails if another pool is on the same file system, because each pool counts only its own promises.
fn alone(check: Check, name: &str, opened: &pool::Pool, pools: &Pools) -> Check {
    let others = of::<DirKeys>(pools).filter(|(other, ..)| *other != name);
    for (other, _, keys) in others {
        match opened.beside(&keys.path) {
            Ok(None) => {}
            Ok(Some(_)) => {
                return Check::fail(
                    check.about,
                    format!("{}; on the file system of pool {other}", check.found),
                    "give each pool of directories a file system of its own: both promise the same space",
                );
            }
            Err(error) => {
                return Check::fail(
                    check.about,
                    format!(
                        "{}; pool {other} may be on the same file system: {}",
                        check.found,
                        error.report()
                    ),
                    format!("see that root can read the path of pool {other}"),
                );
            }
        }
    }
    check
}

/// Warns if the administrator named a project that volumes may get; it is in use even if no file has it yet.
fn with_projects(check: Check, projects: &Projects) -> Check {
    let named = ["/etc/projid", "/etc/projects"].map(|path| fs::read(path).unwrap_or_default());
    let clash = named
        .iter()
        .flat_map(|text| text.split(|&byte| byte == b'\n'))
        .find_map(|line| clash(&String::from_utf8_lossy(line), projects))
        .or_else(|| {
            KUBELETS
                .into_iter()
                .find(|project| projects.contains(*project))
        });
    match clash {
        Some(project) if check.remedy.is_none() => Check::warn(
            check.about,
            format!(
                "{}; project {project} is somebody's, or kubelet's",
                check.found
            ),
            "set `projects` of the pool to a range without those in /etc/projid and /etc/projects, and without kubelet's from 1048577 to 2097152",
        ),
        _ => check,
    }
}

/// Projects that kubelet uses for emptyDir without recording them in the files that doctor reads
/// (pkg/volume/util/fsquota/common/quota_common_linux_impl.go).
const KUBELETS: RangeInclusive<u32> = 1_048_577..=2_097_152;

/// Finds a project of volumes in a line of projid(5), `name:number`, or projects(5), `number:directory`.
fn clash(line: &str, projects: &Projects) -> Option<u32> {
    let line = line.split('#').next().unwrap_or_default();
    line.split(':')
        .filter_map(|word| word.trim().parse().ok())
        .find(|project| projects.contains(*project))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_with_a_name_are_somebodys() {
        let projects = "10-20".parse().unwrap();
        for (line, found) in [
            ("data:15", Some(15)),
            ("15:/srv/data", Some(15)),
            ("data:9", None),
            ("# data:15", None),
            ("", None),
        ] {
            assert_eq!(clash(line, &projects), found, "{line}");
        }
    }
}
