//! Calls `provision` and `delete` with hostile names and values. What counts is what was made, mounted and removed,
//! and not what the driver says.

use crate::{
    bench::{
        Bench,
        provisioned::Provisioned,
        sandbox::{Decoy, Forbidden, sandboxed},
        victim::needs_writes,
    },
    callout::argument::{self, Options},
    verdict::{Stop, Verdict, readable},
    volume::Stage,
};

/// Keys in which drivers have had such a fault, besides those of the driver.
const GUESSED: [&str; 6] = ["path", "share", "volume", "device", "image", "handle"];

/// Values that lead to the decoy, or to something new in it.
fn values(decoy: &Decoy) -> Vec<String> {
    let (directory, file) = (decoy.directory.display(), decoy.file.display());
    let up = "../".repeat(12);
    vec![
        format!("{directory}"),
        format!("{file}"),
        format!("{up}{file}"),
        format!("a/{up}{file}"),
        format!("{up}{directory}/new"),
        // A program in C reads no further than to the first NUL, and a shell's `read` to the newline.
        format!("{file}\0x"),
        format!("{file}\nx"),
    ]
}

fn with(key: &str, value: &str) -> Options {
    [(key.to_owned(), value.to_owned())].into()
}

/// Leaves the check out if the driver cannot do there what it does outside: it would refuse everything.
fn control(bench: &Bench) -> Verdict {
    match bench
        .provision_new()
        .and_then(|made| bench.delete(&made.volume))
    {
        Err(Stop::Fault(fault)) => Err(needs_writes(&fault)),
        other => other,
    }
}

pub fn provision(bench: &Bench) -> Verdict {
    let first = bench.provision_new()?;
    bench.delete(&first.volume)?;
    let decoy = Decoy::new(bench)?;
    let forbidden = Forbidden::new(&decoy);
    let parameters = bench.run.config.volume.parameters.keys();
    let keys = parameters.map(String::as_str).chain(GUESSED);
    let mut targets = Vec::new();
    for value in values(&decoy) {
        targets.push(with(argument::NAME, &value));
        targets.extend(keys.clone().map(|key| with(key, &value)));
    }
    sandboxed(bench, || {
        control(bench)?;
        for (number, members) in targets.iter().enumerate() {
            // Not in the journal: what undoes it would make the hostile call outside of the sandbox.
            let name = format!("sanity-{}-hostile-{number}", bench.run.tag);
            let argv = bench.provision_arguments(&name, bench.run.bytes, members);
            let call = bench.call(&argv)?;
            decoy.expect_untouched(&call)?;
            if let Some(made) = bench.answered(&name, &call) {
                let mounted = mount(bench, &made, &forbidden);
                bench.call_delete(&made.volume)?;
                mounted?;
            }
            decoy.expect_untouched(&call)?;
            readable(&call)?;
        }
        Ok(())
    })
}

/// Mounts what a hostile value led to, and checks that it is nothing of the node's own.
fn mount(bench: &Bench, made: &Provisioned, forbidden: &Forbidden) -> Verdict {
    let mount_point = match bench.prepare_final_mount(&made.volume, "sanity-pod", "rw") {
        // Other checks judge how a volume is mounted.
        Err(Stop::Fault(_) | Stop::NotApplicable(_)) => return Ok(()),
        other => other?,
    };
    let call = bench.mount(&mount_point, "rw")?;
    let judged = forbidden.expect_elsewhere(&call, &mount_point.dir);
    let node = bench.mount_point(&made.volume, "sanity-pod", Stage::Node);
    for place in [&mount_point, &node] {
        bench.unmount(place)?;
    }
    if bench.run.capabilities.attach {
        bench.call(&["detach", &made.volume.name, bench.run.node()])?;
    }
    judged
}

pub fn delete(bench: &Bench) -> Verdict {
    let first = bench.provision_new()?;
    bench.delete(&first.volume)?;
    let decoy = Decoy::new(bench)?;
    let own = first.volume.options.keys().map(String::as_str);
    let mut keys: Vec<_> = own.chain(GUESSED).chain([argument::NAME]).collect();
    keys.sort_unstable();
    keys.dedup();
    sandboxed(bench, || {
        control(bench)?;
        // The options of a volume that exists, because a driver may look no further without one.
        let mut made = bench.provision(&first.volume.name, bench.run.bytes)?;
        for value in values(&decoy) {
            for key in &keys {
                let mut members = made.volume.members("rw");
                members.insert((*key).to_owned(), value.clone());
                let call = bench.call(&["delete", &argument::object(&members)])?;
                decoy.expect_untouched(&call)?;
                readable(&call)?;
                if call.succeeded() {
                    made = bench.provision(&first.volume.name, bench.run.bytes)?;
                }
            }
        }
        bench.delete(&made.volume)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_reaches_the_driver_as_json() {
        let text = argument::object(&with("a", "b\0\nc"));
        assert_eq!(text, r#"{"a":"b\u0000\nc"}"#);
        let back: Options = serde_json::from_str(&text).unwrap();
        assert_eq!(back["a"], "b\0\nc");
    }
}
