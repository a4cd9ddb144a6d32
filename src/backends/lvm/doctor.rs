//! Checks of `doctor` for volume groups and thin pools, and for what they need on the node.

use super::keys::LvmKeys;
use crate::{
    backends::keys::{Pools, of},
    check::{Check, Verdict},
    size::size,
};
use flexvol_storage::{
    host::{
        exec::Tool,
        kernel,
        lvm::{GroupOrThinPool, Percent, ThinPool, Which},
        worker::{self, Access},
    },
    sdk::ErrorKind,
};
use std::{fs, path::Path};

/// Fill level of a thin pool at which `doctor` warns.
const NEARLY_FULL: Percent = Percent::of_hundred(80);

/// Checks the program `lvm` and the kernel modules.
pub fn of_node(pools: &[&Pools]) -> Vec<Check> {
    let program = match Tool::find("lvm") {
        Ok(tool) => Check::ok("lvm", tool.path().display().to_string()),
        Err(error) => Check::fail(
            "lvm",
            format!("{error}: volumes of volume groups cannot be used"),
            "install that package; of volume groups that are there already nothing changes",
        ),
    };
    let mut checks = vec![program, module("dm-mod", "dm_mod")];
    let mut groups = pools.iter().flat_map(|pools| of::<LvmKeys>(pools));
    if groups.any(|(_, _, group)| group.place.thin_pool.is_some()) {
        checks.push(module("dm-thin-pool", "dm_thin_pool"));
    }
    checks
}

/// Checks a part of the kernel that LVM loads on demand.
fn module(file: &str, name: &str) -> Check {
    if Path::new("/sys/module").join(name).exists() {
        return Check::ok(name, "in the kernel");
    }
    let directory = Path::new("/lib/modules").join(kernel::release());
    let lists =
        ["modules.dep", "modules.builtin"].map(|list| fs::read_to_string(directory.join(list)));
    if lists.iter().all(Result::is_err) {
        return Check::warn(
            name,
            "not loaded, and this process sees no modules",
            format!("run this on the node itself, or modprobe {name} there"),
        );
    }
    let lists = lists.into_iter().flatten();
    match lists
        .into_iter()
        .any(|list| list.contains(&format!("/{file}.ko")))
    {
        true => Check::ok(name, "a module of the kernel"),
        false => Check::fail(
            name,
            "the kernel does not have it: logical volumes cannot be activated",
            "use a kernel with device-mapper (CONFIG_BLK_DEV_DM, CONFIG_DM_THIN_PROVISIONING)",
        ),
    }
}

pub fn of_pools(pools: &Pools) -> Vec<Check> {
    let checks = of::<LvmKeys>(pools).map(|(name, _, group)| of_pool(name.to_owned(), group));
    checks.collect()
}

/// Checks a pool, and warns if the node's records of it contradict each other.
fn of_pool(about: String, group: &LvmKeys) -> Check {
    let (name, place) = (group.place.to_string(), group.place.devices());
    let mut check = match worker::at(&name, Some(&place), Access::Read) {
        Ok(()) => as_it_is(about, group),
        Err(error) => Check::fail(about, error.report(), "look into the kernel's log"),
    };
    worker::nowhere();
    if let Some(records) = group.place.contradicting_records() {
        let what = "the node's records of its pool contradict each other";
        check.found = format!("{}; {what}: {records}", check.found);
        if check.remedy.is_none() {
            let remedy = format!(
                "if it is the node's pool, have all of them say so: flexvol pool init {}",
                group.place.options()
            );
            return Check::warn(check.about, check.found, remedy);
        }
    }
    check
}

fn as_it_is(about: String, group: &LvmKeys) -> Check {
    let place = &group.place;
    let view = match place.look(Which::All) {
        Ok(view) => view,
        Err(error) => {
            let remedy = match error.kind() {
                ErrorKind::NotFound => format!(
                    "see `vgs` and `lvs`: attach the disks of {place}, or make it (vgcreate, lvcreate --type thin-pool); where /etc/lvm/devices/system.devices is there, the disks must be in it (vgimportdevices)"
                ),
                ErrorKind::Configuration => {
                    "pvs -a -o +vg_uuid,pv_duplicate tells them apart: detach one, or vgrename UUID NAME, or vgimportclone DISKS".to_owned()
                }
                ErrorKind::ToolMissing => "install that package".to_owned(),
                _ => format!("see what `lvm lvs {}` says", place.group),
            };
            return Check::fail(about, error.report(), remedy);
        }
    };
    let id = match view.id() {
        Ok(id) => id,
        Err(error) => {
            let init = format!("flexvol pool init {}", place.options());
            let remedy = match error.kind() {
                ErrorKind::NotFound => format!("once: {init}"),
                _ => format!(
                    "see `vgs -o +vg_uuid,vg_tags` and `lvs -o +lv_tags`; where it is a copy and the other one is gone: {init}"
                ),
            };
            return Check::fail(about, error.report(), remedy);
        }
    };
    match view
        .disks
        .impostor(&place.group, |name| view.volume(name).is_some())
    {
        Ok(None) => {}
        Ok(Some((device, on))) => {
            return Check::fail(
                about,
                format!(
                    "the device {device} says that it is of {place}, and lies on {on}, which is not one of its disks"
                ),
                "somebody gave his disk the identity of the group: have LVM see its own disks alone (`lvmdevices`, or a global_filter in lvm.conf), detach that disk, and look at what pods have written meanwhile",
            );
        }
        Err(error) => return Check::fail(about, error.report(), "see `vgs`"),
    }
    let available = GroupOrThinPool::names(id).and_then(|names| {
        // Reading an inactive thin pool activates it for a moment; a concurrent reader would deactivate it again.
        let _lock = names.lock()?;
        place.available(&view, &group.rules)
    });
    let available = match available {
        Ok(available) => available,
        Err(error) => return Check::fail(about, error.report(), "see `lvs` and `pvs`"),
    };
    let volumes = view
        .volumes
        .iter()
        .filter(|volume| flexvol_storage::host::lvm::volume_in(&volume.name).is_some());
    let found = format!(
        "{place}, id {id}, volumes: {}, {} in all, {} for volumes",
        volumes.count(),
        size(view.size),
        size(available),
    );
    if place.thin_pool.is_some() {
        match place.thin_pool() {
            Ok(pool) => {
                if let Some((verdict, what, remedy)) = trouble(&pool, &place.to_string()) {
                    return Check {
                        verdict,
                        ..Check::warn(about, format!("{found}; {what}"), remedy)
                    };
                }
            }
            Err(error) => return Check::fail(about, error.report(), "see `lvs`"),
        }
    }
    if available.0 == 0 {
        let remedy = "nothing can be provisioned or grown: delete volumes, add a disk (vgextend), or lower `reserve`";
        return Check::warn(about, found, remedy);
    }
    if view.metadata.is_half_full() {
        return Check::warn(
            about,
            format!(
                "{found}; the group's own metadata is {} full",
                view.metadata.taken()
            ),
            "no volume is made from 87 % on, and none grows from 95 % on (75 % and 82 % with keep_deleted, where keep_at_most lets what is kept make room): use a group made with `vgcreate --metadatasize 16m` for more of them",
        );
    }
    Check::ok(about, found)
}

fn trouble(pool: &ThinPool, place: &str) -> Option<(Verdict, String, String)> {
    let fullest = [
        ("data", pool.data, "lvextend -L +SIZE"),
        (
            "metadata",
            pool.metadata,
            "lvextend --poolmetadatasize +SIZE",
        ),
    ];
    for (what, percent, remedy) in fullest {
        if let Some(percent) = percent.filter(|percent| *percent > NEARLY_FULL) {
            let verdict = match percent >= Percent::of_hundred(100) {
                true => Verdict::Fail,
                false => Verdict::Warn,
            };
            return Some((
                verdict,
                format!("the thin pool's {what} is {percent} full"),
                format!("{remedy} {place}: writes in pods fail without it"),
            ));
        }
    }
    if !pool.health.is_empty() {
        return Some((
            Verdict::Fail,
            format!("LVM says of the thin pool: {}", pool.health),
            format!("see `lvs -a {place}` and lvmthin(7)"),
        ));
    }
    if !pool.fails_when_full {
        return Some((
            Verdict::Warn,
            "writers wait for a minute when the thin pool is full".to_owned(),
            format!("lvchange --errorwhenfull y {place}"),
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thin_pool_is_looked_at_before_it_is_full() {
        let well = ThinPool {
            data: Some(Percent::of_hundred(12)),
            metadata: Some(Percent::of_hundred(10)),
            fails_when_full: true,
            zeroes: true,
            health: String::new(),
        };
        assert!(trouble(&well, "vg0/tp0").is_none());
        let remedy = |pool: ThinPool| trouble(&pool, "vg0/tp0").map(|(_, _, remedy)| remedy);
        let data = Some(Percent::of_hundred(81));
        assert!(
            remedy(ThinPool {
                data,
                ..well.clone()
            })
            .is_some_and(|it| it.contains("-L +SIZE vg0/tp0"))
        );
        let metadata = Some(Percent::of_hundred(99));
        assert!(
            remedy(ThinPool {
                metadata,
                ..well.clone()
            })
            .is_some_and(|it| it.contains("poolmetadatasize"))
        );
        let fails_when_full = false;
        assert!(
            remedy(ThinPool {
                fails_when_full,
                ..well.clone()
            })
            .is_some_and(|it| it.contains("errorwhenfull"))
        );
        let health = "metadata_read_only".to_owned();
        let (verdict, what, _) = trouble(&ThinPool { health, ..well }, "vg0/tp0").unwrap();
        assert!(verdict == Verdict::Fail && what.contains("metadata_read_only"));
    }
}
