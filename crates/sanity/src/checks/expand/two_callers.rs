//! Concurrent growth for two callers.

use super::{
    expand,
    measure::{Base, MIB, size},
    mounted,
};
use crate::{
    bench::Bench,
    callout::call::{Call, Outcome},
    verdict::{Verdict, not_applicable, wrong},
};
use std::thread;

/// Number of attempts: the second call arrives during the first one's work only now and then.
const ROUNDS: u64 = 4;

pub(super) fn grow(bench: &Bench) -> Verdict {
    if !bench.run.capabilities.concurrent_fs_resize {
        return Err(not_applicable("init does not say concurrentFSResize: true"));
    }
    let base = mounted(bench)?;
    let (mount_point, old) = (&base.mount_point, base.mount_point.volume.bytes);
    for round in 1..=ROUNDS {
        let before = size(&mount_point.dir)?;
        let new = base.bytes + round * 64 * MIB;
        // Measures as soon as each call has returned, not when both have.
        let ask = || -> Verdict {
            let (call, grown) = expand(bench, mount_point, new, old)?;
            if grown {
                base.check_size(bench, &call, mount_point, new)?;
                measured(&call, new)?;
            }
            Ok(())
        };
        thread::scope(|scope| -> Verdict {
            for call in [scope.spawn(ask), scope.spawn(ask)] {
                call.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(())
        })?;
        // One of two concurrent calls may be refused. The next call may not.
        let (call, grown) = expand(bench, mount_point, new, old)?;
        if !grown {
            let expected = "growth, when nobody else asks for it any more";
            return Err(wrong(&call, expected, format!("{before} bytes as before")));
        }
        base.check_size(bench, &call, mount_point, new)?;
    }
    bench.unmount_and_detach(mount_point)?;
    unmounted(bench, &base, base.bytes + (ROUNDS + 1) * 64 * MIB)
}

/// Checks the size in the reply, because flexvol's agent relies on it.
fn measured(call: &Call, new: u64) -> Verdict {
    let said = match call.outcome() {
        Outcome::Success(reply) => reply.volume_new_size,
        _ => None,
    };
    match said.and_then(|size| u64::try_from(size).ok()) {
        Some(size) if size >= new => Ok(()),
        said => {
            let found = said.map_or("none".to_owned(), |size| size.to_string());
            let expected = format!("volumeNewSize of {new} bytes or more");
            Err(wrong(call, expected, found))
        }
    }
}

/// Checks a second call that arrives after the pod has ended.
fn unmounted(bench: &Bench, base: &Base, new: u64) -> Verdict {
    let mount_point = &base.mount_point;
    let (call, grown) = expand(bench, mount_point, new, base.bytes)?;
    let later = bench.attach_and_mount(&mount_point.volume, "sanity-later", "rw")?;
    if grown {
        base.check_size(bench, &call, &later, new)?;
    }
    bench.unmount_and_detach(&later)
}
