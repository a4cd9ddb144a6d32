//! Checks of `init`: the capabilities that a driver reports.

use crate::{
    bench::Bench,
    callout::{
        call::{Call, Outcome},
        reply::{DeclaredCapabilities, Reply},
    },
    check::{Check, Level},
    verdict::{Stop, Verdict, wrong},
};
use anyhow::anyhow;
use std::time::Duration;

pub const CHECKS: &[Check] = &[
    Check {
        name: "init.success-all-capabilities",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "init answers Success and tells all five capabilities",
        why: "what is not told is assumed, attach as true: without the driver in the controller manager all pods then wait for ever",
        broke: "drivers that print {\"status\":\"Success\"} alone, as the first examples did",
        mend: "print attach, selinuxRelabel, supportsMetrics, fsGroup and requiresFSResize, each as true or false",
        source: "defaultCapabilities in pkg/volume/flexvolume/driver-call.go, 1.13 to 1.37",
        run: all_capabilities,
    },
    Check {
        name: "init.capabilities-not-null",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "init never answers \"capabilities\":null",
        why: "kubelet and the controller manager dereference it and crash, again after every restart",
        broke: "drivers whose library writes members that are not set as null",
        mend: "leave the member out, or write the whole object",
        source: "NewFlexVolumePlugin in pkg/volume/flexvolume/plugin.go, 1.7 to 1.37",
        run: not_null,
    },
    Check {
        name: "init.idempotent-fast",
        level: Level::Must,
        needs: &[],
        alone: true,
        what: "a hundred times init has the same answer, at most a second each in the middle",
        why: "init runs under the lock of all volume plugins: while it runs nothing is mounted on the node",
        broke: "drivers that ask their backend or read their configuration over the network in init",
        mend: "print a constant line; do nothing else in init",
        source: "refreshProbedPlugins in pkg/volume/plugins.go, 1.8 to 1.37",
        run: same_and_fast,
    },
    Check {
        name: "init.no-side-effects",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "init mounts nothing, writes no file beside the driver or in /tmp, /var/tmp and /dev/shm, changes no setting of the kernel, makes no network interface and leaves nobody listening",
        why: "it runs at every probe, in the controller manager's container too, where there is no node to change",
        broke: "a driver that turned off kernel.panic_on_oops, one that loaded modules, several that wrote logs beside themselves",
        mend: "move preparation of the node into the installer",
        source: "pkg/volume/flexvolume/probe.go, 1.8 to 1.37",
        run: no_side_effects,
    },
];

/// Calls `init`, which must succeed.
fn init(bench: &Bench) -> Result<(Call, Reply), Stop> {
    let call = bench.call(&["init"])?;
    match call.outcome() {
        Outcome::Success(reply) => Ok((call, *reply)),
        Outcome::Broken(why) => Err(wrong(&call, "init succeeds", why)),
        _ => Err(wrong(
            &call,
            "init succeeds",
            "it did not: the driver is absent then",
        )),
    }
}

fn all_capabilities(bench: &Bench) -> Verdict {
    let (call, reply) = init(bench)?;
    match reply.capabilities {
        DeclaredCapabilities::Some(5.., _) => Ok(()),
        // Another check judges this.
        DeclaredCapabilities::Null => Ok(()),
        DeclaredCapabilities::Nothing => Err(wrong(&call, "all five capabilities", "none of them")),
        DeclaredCapabilities::Some(named, _) => Err(wrong(
            &call,
            "all five capabilities",
            format!("{named} of them"),
        )),
    }
}

fn not_null(bench: &Bench) -> Verdict {
    let call = bench.call(&["init"])?;
    match call.decoded() {
        Ok(reply) if reply.capabilities == DeclaredCapabilities::Null => Err(wrong(
            &call,
            "an object, or no such member",
            "null, which ends kubelet",
        )),
        Ok(_) => Ok(()),
        Err(why) => Err(wrong(&call, "a reply to init", why)),
    }
}

fn same_and_fast(bench: &Bench) -> Verdict {
    let (first, _) = init(bench)?;
    let mut times = Vec::new();
    for _ in 0..100 {
        let call = bench.run.call(&["init".to_owned()], &Default::default())?;
        if call.output() != first.output() {
            let before = first.answer(&bench.run.masks);
            return Err(wrong(
                &call,
                format!("the same answer each time, as first {before}"),
                "another one",
            ));
        }
        times.push(call.took);
    }
    times.sort_unstable();
    bench.note(format!(
        "init: median of 100 calls {:.1} ms",
        times[50].as_secs_f64() * 1e3
    ));
    if times[50] > Duration::from_secs(1) {
        return Err(wrong(
            &first,
            "at most a second",
            format!("{:.1} s", times[50].as_secs_f64()),
        ));
    }
    Ok(())
}

fn no_side_effects(bench: &Bench) -> Verdict {
    init(bench)?;
    let Some(first) = &bench.run.first else {
        return Err(Stop::Error(anyhow!("nobody looked at the first init")));
    };
    if !first.changes.is_empty() {
        return Err(wrong(
            &first.call,
            "nothing is another after init",
            first.changes.join(", "),
        ));
    }
    if first.call.succeeded() {
        return Ok(());
    }
    let answer = first.call.answer(&bench.run.masks);
    Err(Stop::Skipped(format!(
        "a driver whose init succeeds in a network and temporary places of its own: {answer}"
    )))
}
