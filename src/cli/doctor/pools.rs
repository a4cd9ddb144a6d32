//! The pools of a driver.

use super::{Subject, check::Check};
use crate::{
    cli::table::size,
    config::PoolConfig,
    plugin::{Component, processes},
};
use flexvol_storage::{
    Role,
    host::{Reserve, pool},
    sdk::{Bytes, ErrorKind},
};
use std::{fs, os::unix::fs::MetadataExt, path::Path};

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
            check(about, pool)
        })
        .collect()
}

fn check(about: String, config: &PoolConfig) -> Check {
    let path = config.path.display();
    let opened = match pool::Pool::open(&config.path) {
        Ok(opened) => opened,
        Err(error) => {
            let remedy = match error.kind() {
                ErrorKind::NotFound => format!(
                    "mount the disk that has it, or make it once: mkdir -p {path} && flexvol pool init {path}"
                ),
                ErrorKind::Denied => format!("chown root {path} && chmod go-w {path}"),
                _ => format!("see that root can read and write {path}"),
            };
            return Check::fail(about, error.report(), remedy);
        }
    };
    let measured = opened.space().and_then(|space| {
        let available = opened.available(config.reserve)?;
        Ok((space, available, opened.handles()?.len()))
    });
    let (space, available, volumes) = match measured {
        Ok(measured) => measured,
        Err(error) => {
            return Check::fail(about, error.report(), format!("check the disk of {path}"));
        }
    };
    let found = format!(
        "{path}, id {}, volumes: {volumes}, {} of {} free, {} for volumes",
        opened.id(),
        size(space.free),
        size(space.size),
        size(available),
    );
    let evicts = shares_disk_with_kubelet(&config.path);
    match advice(&space, available, config.reserve, evicts) {
        Some(remedy) => Check::warn(about, found, remedy),
        None => Check::ok(about, found),
    }
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
    let reserved = match reserve {
        Reserve::Percent(percent) => Bytes(space.size.0 / 100 * u64::from(percent)),
        Reserve::Bytes(bytes) => bytes,
    };
    let too_little = shares_disk_with_kubelet && reserved < threshold;
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
        let reserved = match reserve {
            Reserve::Percent(percent) => Bytes((1000 << 20) / 100 * u64::from(percent)),
            Reserve::Bytes(bytes) => bytes,
        };
        let available = space.free.saturating_sub(reserved);
        advice(&space, available, reserve, shared).unwrap_or_default()
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
