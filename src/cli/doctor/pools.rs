//! The pools of a driver.

use super::{Subject, check::Check, volume_groups};
use crate::{
    backends::{LoopKeys, Storage},
    cli::table::size,
    config::Config,
    plugin::{Component, processes},
};
use flexvol_storage::{
    Role,
    host::{
        Allocation, Reserve,
        fs::quota::Projects,
        pool::{self, Rules},
    },
    sdk::{Bytes, ErrorKind, Result},
};
use std::{fs, ops::RangeInclusive, os::unix::fs::MetadataExt, path::Path};

/// Kubelet evicts pods when less of its file system is free (`nodefs.available<10%`,
/// pkg/kubelet/apis/config/v1beta1/defaults_linux.go).
const EVICTION_PERCENT: u64 = 10;

pub fn checks(subject: &Subject) -> Vec<Check> {
    // On a control plane host there is nothing of the nodes' storage.
    let Some(config) = subject
        .config
        .as_ref()
        .filter(|config| config.role == Role::Node)
    else {
        return Vec::new();
    };
    config
        .pools
        .iter()
        .map(|(name, pool)| {
            let about = match &subject.name {
                Some(driver) => format!("pool {name} of {driver}"),
                None => format!("pool {name}"),
            };
            match &pool.storage {
                Storage::Loop(images) => opened(about, &images.path, |about, pool| {
                    let available = pool.available(images.reserve, images.allocation());
                    let check = check(about, &images.path, pool, images.reserve, available);
                    whole(check, pool, images)
                }),
                Storage::Dir(directories) => opened(about, &directories.path, |about, pool| {
                    let (path, rules) = (&directories.path, &directories.rules());
                    let available = pool.limited(rules).and_then(|it| it.available());
                    let check = check(about, path, pool, rules.reserve, available);
                    let check = with_projects(check, &rules.projects);
                    let check = with_limits(check, pool, rules);
                    let check = with_room(check, pool, rules);
                    let check = with_records(check, path, pool, rules);
                    alone(check, name, pool, config)
                }),
                Storage::Lvm(group) => volume_groups::check(about, group),
            }
        })
        .collect()
}

fn opened(about: String, path: &Path, check: impl FnOnce(String, &pool::Pool) -> Check) -> Check {
    let error = match pool::Pool::open(path) {
        Ok(pool) => return check(about, &pool),
        Err(error) => error,
    };
    let shown = path.display();
    let remedy = match error.kind() {
        ErrorKind::NotFound => format!(
            "mount the disk that has it, or make it once: mkdir -p {shown} && flexvol pool init {shown}"
        ),
        ErrorKind::Denied => format!("chown root {shown} && chmod go-w {shown}"),
        _ => format!("see that root can read and write {shown}"),
    };
    Check::fail(about, error.report(), remedy)
}

fn check(
    about: String,
    path: &Path,
    pool: &pool::Pool,
    reserve: Reserve,
    available: Result<Bytes>,
) -> Check {
    let shown = path.display();
    let measured = pool
        .space()
        .and_then(|space| Ok((space, available?, pool.volume_ids()?.len())));
    let (space, available, volumes) = match measured {
        Ok(measured) => measured,
        // What to turn on is part of what is said.
        Err(error) if error.kind() == ErrorKind::Configuration => {
            let remedy =
                "see the file system's manual, or use the backend loop, which needs none of it";
            return Check::fail(about, error.report(), remedy);
        }
        Err(error) => {
            return Check::fail(about, error.report(), format!("check the disk of {shown}"));
        }
    };
    let found = format!(
        "{shown}, id {}, volumes: {volumes}, {} of {} free, {} for volumes",
        pool.id(),
        size(space.free),
        size(space.size),
        size(available),
    );
    let evicts = shares_disk_with_kubelet(path);
    match advice(&space, available, reserve, evicts) {
        Some(remedy) => Check::warn(about, found, remedy),
        None => Check::ok(about, found),
    }
}

/// Volumes that have less than they were promised, by a discard on an older driver's device, by a copy that
/// shares blocks, or since the pool was thin.
fn whole(check: Check, pool: &pool::Pool, images: &LoopKeys) -> Check {
    if images.allocation() == Allocation::Thin {
        return check;
    }
    // Why the pool cannot be read is told above.
    let missing = pool.missing().unwrap_or_default();
    if missing.volumes == 0 {
        return check;
    }
    let found = format!(
        "{}; volumes that lack some of their storage: {}, {} in all",
        check.found,
        missing.volumes,
        size(missing.bytes)
    );
    if missing.copy_on_write > 0 {
        return Check::fail(
            check.about,
            format!("{found}; copy-on-write: {}", missing.copy_on_write),
            format!(
                "btrfs keeps no room to overwrite an image that lsattr shows without C. Copy it while no pod has it: cd {}/volumes && touch new && chattr +C new && cp --reflink=never --preserve=all IMAGE new && sync new && mv new IMAGE",
                images.path.display()
            ),
        );
    }
    Check::fail(
        check.about,
        found,
        "see that so much is free besides `reserve`, and delete the pods that use them: they have all of it when they are mounted next (on btrfs not what a snapshot or copy shares: delete that)",
    )
}

/// Volumes of which others took what they may still write, or snapshots keep it.
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

/// Volumes that lost their limits are limited by nothing while pods have them.
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

/// A volume whose record is damaged is left alone by the driver; a person can write it anew.
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

/// A pool counts what it promised, and no other pool does.
fn alone(check: Check, name: &str, opened: &pool::Pool, config: &Config) -> Check {
    let others = config.pools.iter().filter(|(other, _)| *other != name);
    for (other, pool) in others {
        let shares = match &pool.storage {
            Storage::Loop(images) => opened.shares_with(&images.path),
            Storage::Dir(directories) => opened.shares_with(&directories.path),
            Storage::Lvm(_) => Ok(false),
        };
        match shares {
            Ok(false) => {}
            Ok(true) => {
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

/// Projects that somebody named are somebody's, even if nothing belongs to them yet.
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

/// What kubelet takes for emptyDir without writing it down where doctor looks
/// (pkg/volume/util/fsquota/common/quota_common_linux_impl.go).
const KUBELETS: RangeInclusive<u32> = 1_048_577..=2_097_152;

/// projid(5): `name:number`; projects(5): `number:directory`.
fn clash(line: &str, projects: &Projects) -> Option<u32> {
    let line = line.split('#').next().unwrap_or_default();
    line.split(':')
        .filter_map(|word| word.trim().parse().ok())
        .find(|project| projects.contains(*project))
}

fn advice(
    space: &pool::Space,
    available: Bytes,
    reserve: Reserve,
    shares_disk_with_kubelet: bool,
) -> Option<String> {
    let threshold = Bytes(space.size.0 / 100 * EVICTION_PERCENT);
    if shares_disk_with_kubelet && space.free < threshold {
        return Some(format!(
            "less than {EVICTION_PERCENT} % is free on kubelet's own disk, so kubelet evicts pods: free {}, or give the pool a disk of its own",
            size(threshold.saturating_sub(space.free))
        ));
    }
    if available == Bytes(0) {
        return Some(
            "nothing can be provisioned or grown: delete volumes, enlarge the disk, or lower `reserve`"
                .to_owned(),
        );
    }
    let too_little = shares_disk_with_kubelet && reserve.of(space.size) < threshold;
    too_little.then(|| {
        format!(
            "volumes may fill kubelet's own disk to where it evicts pods: set `reserve` to more than {EVICTION_PERCENT}%"
        )
    })
}

fn shares_disk_with_kubelet(pool: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    let running = processes()
        .into_iter()
        .filter(|process| process.component == Component::Kubelet)
        .map(|process| process.path_from_here(&process.root_dir));
    let mut roots: Vec<_> = running.collect();
    if roots.is_empty() {
        roots.push("/var/lib/kubelet".into());
    }
    roots
        .iter()
        .any(|root| device(root).is_some() && device(root) == device(pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(free: u64, reserve: Reserve, shared: bool) -> String {
        let space = pool::Space {
            size: Bytes(1000 << 20),
            free: Bytes(free << 20),
        };
        let available = space.free.saturating_sub(reserve.of(space.size));
        advice(&space, available, reserve, shared).unwrap_or_default()
    }

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

    #[test]
    fn kubelets_threshold_counts_only_on_its_own_disk() {
        let reserve = Reserve::Percent(15);
        assert!(told(90, reserve, true).contains("evicts pods: free 10Mi"));
        assert!(told(90, reserve, false).contains("nothing can be provisioned"));
        assert_eq!(told(500, reserve, true), "");
        assert!(told(500, Reserve::Percent(5), true).contains("set `reserve`"));
        assert_eq!(told(500, Reserve::Percent(5), false), "");
    }
}
