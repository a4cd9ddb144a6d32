//! Checks of `doctor` for pools of images.

use super::{keys::LoopKeys, places};
use crate::{
    backends::{
        doctor_directory::{check, opened},
        keys::{Pools, of},
    },
    check::Check,
    size::size,
};
use flexvol_storage::{
    host::{Allocation, pool},
    sdk::Bytes,
};

pub fn of_pools(pools: &Pools) -> Vec<Check> {
    let checks = of::<LoopKeys>(pools).map(|(name, _, images)| {
        opened(name.to_owned(), &images.path, |about, pool| {
            let pool = &pool.among(places(pools));
            if let Err(error) = pool.expect_readable_beside() {
                return Check::fail(
                    about,
                    error.report(),
                    "see that root can read that pool, or take it out of the configuration: until then nothing can be provisioned or grown",
                );
            }
            let available = pool.available(images.reserve, images.allocation());
            let check = check(about, &images.path, pool, images.reserve, available);
            whole(room_for_maps(check, pool, images), pool, images)
        })
    });
    checks.collect()
}

/// Warns if others took the space that images need for their block maps.
fn room_for_maps(check: Check, pool: &pool::Pool, images: &LoopKeys) -> Check {
    if images.allocation() == Allocation::Thin {
        return check;
    }
    // An unreadable pool is reported above.
    let Ok(Some(shortage)) = pool.map_shortage() else {
        return room_by_balance(check, pool, images);
    };
    let how = match shortage.of_metadata {
        true => format!(
            "for its metadata, or give them what data do not use: btrfs balance start -dusage=50 {}",
            images.path.display()
        ),
        false => "on the disk".to_owned(),
    };
    Check::warn(
        check.about,
        check.found,
        format!(
            "writing to volumes may fail, because the file system needs room to note where they were written: free {} {how}",
            size(shortage.room)
        ),
    )
}

/// Warns if a Btrfs keeps free space for data alone, so that the pool can provision little.
fn room_by_balance(check: Check, pool: &pool::Pool, images: &LoopKeys) -> Check {
    let Ok(Some(gain)) = pool.withheld_for_metadata(images.reserve) else {
        return check;
    };
    let path = images.path.display();
    let remedy = match gain {
        Bytes(0) => format!(
            "to have more for volumes give back chunks of data that are nearly empty, if there are any, or else enlarge the disk: btrfs balance start -dusage=50 {path}"
        ),
        gain => format!(
            "to have some {} more for volumes: btrfs balance start -dusage=50 {path}",
            size(gain)
        ),
    };
    let before = check.remedy.map(|remedy| format!("{remedy}; "));
    Check::warn(
        check.about,
        format!(
            "{}, because btrfs has little room for metadata, and what is free is in chunks of data",
            check.found
        ),
        before.unwrap_or_default() + &remedy,
    )
}

/// Fails if volumes have less than they were promised: after a discard on an older driver's device, because of a
/// copy that shares blocks, or since the pool was thin.
fn whole(check: Check, pool: &pool::Pool, images: &LoopKeys) -> Check {
    if images.allocation() == Allocation::Thin {
        return check;
    }
    // An unreadable pool is reported above.
    let shortfall = pool.shortfall().unwrap_or_default();
    let found = match shortfall.unknown_volumes {
        0 => check.found.clone(),
        volumes => format!(
            "{}; volumes in so many pieces that it is not known whether they have all of their storage: {volumes}, up to {} in all",
            check.found,
            size(shortfall.unknown)
        ),
    };
    if shortfall.volumes == 0 && shortfall.unknown_volumes == 0 {
        return check;
    }
    if shortfall.volumes == 0 {
        return Check::warn(
            check.about,
            found,
            format!(
                "so much is promised to nobody else. A copy of an image is in fewer pieces: while no pod has it, cd {}/volumes && cp --reflink=never --sparse=never --preserve=all IMAGE new && sync new && mv new IMAGE (on btrfs first touch new && chattr +C new)",
                images.path.display()
            ),
        );
    }
    let found = format!(
        "{found}; volumes that lack some of their storage: {}, {} in all",
        shortfall.volumes,
        size(shortfall.bytes)
    );
    if shortfall.copy_on_write > 0 {
        return Check::fail(
            check.about,
            format!("{found}; copy-on-write: {}", shortfall.copy_on_write),
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
