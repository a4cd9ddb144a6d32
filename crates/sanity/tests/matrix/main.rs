//! Tests of the tester: for every check the driver `broken` has a fault that the check catches, and without a
//! fault every check passes. `FLEXVOL_BLESS=1` runs every check on every fault and writes `MATRIX.md`.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "the matrix is printed")]

mod driver;

use driver::{Ended, Fault, checks, faults};
use flexvol_testing::{Case, Need, run_cases};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    process::ExitCode,
    sync::Mutex,
    thread,
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("losetup", "mount"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
];

/// Number of faults that are tested at a time. Most of the time they only wait.
const AT_ONCE: usize = 4;

type Verdict = Result<(), String>;

fn case(name: impl Into<String>, run: impl FnOnce() -> Verdict + Send + 'static) -> Case {
    Case {
        name: name.into(),
        needs: NEEDS,
        run: Box::new(move |_| run()),
    }
}

fn main() -> ExitCode {
    if env::var_os("FLEXVOL_BLESS").is_some() {
        return run_cases("matrix", vec![case("the whole matrix", whole)], 1);
    }
    let mut cases = vec![
        case("every check has a fault that it is there to catch", covered),
        case("the table has every fault, with its check first", table),
        case("a right driver passes, mounting by itself", || {
            right("", attaching)
        }),
        case("a right driver passes, attached", || {
            right("attached", without_mount)
        }),
        case("a right driver passes, mounting in three stages", || {
            right("three-stages", |check| check == "mnt.fsgroup-both-keys")
        }),
        case("a right driver passes, leaving mounting to kubelet", || {
            right("leaves-mounting", left_to_kubelet)
        }),
        case(
            "a right driver passes, refusing volumes when they are attached",
            || right("refuses-at-attach", without_mount),
        ),
        case(
            "an option with a default may be left out of what is asked",
            || match driver::test("pooled", Some("isa."), 1) {
                ended if ended.len() == 3 && ended.iter().all(|one| one.outcome == "passed") => {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            },
        ),
        case(
            "what is promised may be more than there is",
            || match driver::test("thin", Some("cap."), 1) {
                ended if ended.len() == 2 && ended.iter().all(|one| one.outcome == "passed") => {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            },
        ),
        case("what outlives no unmount passes if that is said", || {
            let lost = |check: &str| {
                check == "umt.keeps-data" || check == "umt.dead-server" || check.starts_with("del.")
            };
            passing(
                "ephemeral",
                Some("umt.,life.,con.two,del.answer,del.gone"),
                lost,
            )
        }),
        case("a right driver passes that grows nothing", || {
            right("fixed-size", |check| {
                attaching(check) || check.starts_with("exp.")
            })
        }),
        case(
            "Not supported of a volume that does not exist decides nothing",
            undecided,
        ),
        case("a right driver passes whose backend rounds up", || {
            right("rounds-up", attaching)
        }),
    ];
    for fault in faults() {
        let name = format!("{} catches {}", fault.check, fault.name);
        cases.push(case(name, move || caught(&fault)));
    }
    run_cases("matrix", cases, AT_ONCE)
}

/// Whether the check is only for drivers that attach.
fn attaching(check: &str) -> bool {
    ["att.", "wfa.", "isa.", "det."]
        .iter()
        .any(|group| check.starts_with(group))
}

/// Whether the check needs `mount`: other callouts get no fsGroup and no secrets.
fn without_mount(check: &str) -> bool {
    [
        "mnt.fsgroup-both-keys",
        "out.exit-on-failure",
        "out.no-secret-echo",
    ]
    .contains(&check)
}

/// Whether kubelet does this itself for a driver with neither `mountdevice` nor `mount`.
fn left_to_kubelet(check: &str) -> bool {
    without_mount(check)
        || check.starts_with("fmt.")
        || [
            "out.deadline",
            "cli.unknown-option",
            "mnt.ro-is-ro",
            "mnt.repeat-no-stack",
            "mnt.other-thing-mounted-there",
            "mnt.failure-not-success",
            "mnt.target-nonempty",
            "mnt.unknown-key-ignored",
            "umt.happy",
            "umt.repeat",
            "umt.never-mounted",
            "umt.missing-dir",
            "umt.busy",
            "umt.dead-server",
            "con.same-mount-8x",
            "con.mount-vs-unmount",
            "con.two-volumes-parallel",
            "con.stale-lock",
            "con.parallel-64",
            "kill.parent-gone",
        ]
        .contains(&check)
}

fn covered() -> Verdict {
    let checks: BTreeSet<_> = checks().into_iter().collect();
    let caught: BTreeSet<_> = faults().into_iter().map(|fault| fault.check).collect();
    let bare: Vec<_> = checks.difference(&caught).collect();
    let unknown: Vec<_> = caught.difference(&checks).collect();
    if bare.is_empty() && unknown.is_empty() {
        return Ok(());
    }
    Err(format!(
        "checks without a fault in drivers/broken: {bare:?}; faults of no check: {unknown:?}"
    ))
}

/// Checks that no check fails, and that only these are not applicable.
fn right(words: &str, not_applicable: fn(&str) -> bool) -> Verdict {
    passing(words, None, not_applicable)
}

/// Like [`right`], of these checks.
fn passing(words: &str, filter: Option<&str>, not_applicable: fn(&str) -> bool) -> Verdict {
    let wrong: Vec<_> = driver::test(words, filter, 1)
        .into_iter()
        .filter(|ended| {
            let expected = if not_applicable(&ended.check) {
                "not-applicable"
            } else {
                "passed"
            };
            ended.outcome != expected
        })
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{wrong:#?}"))
    }
}

/// A callout counts as supported if it is Not supported only for volumes that do not exist.
fn undecided() -> Verdict {
    let ended = driver::test("sometimes-not-supported", Some("gvn.stable-unique"), 1);
    match ended.as_slice() {
        [one] if one.outcome == "passed" => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn caught(fault: &Fault) -> Verdict {
    let ended = driver::test(&fault.name, Some(&fault.check), 1);
    match ended.iter().find(|ended| ended.check == fault.check) {
        Some(ended) if ended.outcome == "failed" => Ok(()),
        other => Err(format!("{other:?}, where it should fail")),
    }
}

const HEAD: &str = "# What the checks catch

Each fault of the driver `drivers/broken` is one that a driver had or may have, and `scripts/test` asks of
each whether the check that is there for it catches it. Without a fault no check fails.
`scripts/sanity-matrix` runs every other check too, and adds those that fail with it;
`scripts/sanity-matrix --check` compares what it finds with this file.

| fault | mode | what it stands for | caught by |
|---|---|---|---|
";

/// How many checks one fault may fail besides its own. With more it would not be clear what is broken.
const COLLATERAL: usize = 12;

/// Faults with which no volume survives mount, use and unmount, so that many checks fail.
const NO_LIFE: &[&str] = &[
    "mount-error-dropped",
    "leaves-a-file",
    "loses-the-device",
    "detach-wants-a-device",
    "formats-every-time",
];

fn file() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/MATRIX.md"))
}

fn row(fault: &Fault) -> String {
    let Fault {
        name,
        mode,
        check,
        bug,
    } = fault;
    format!("| {name} | {mode} | {bug} | **{check}**")
}

/// Rows of the file, one for each fault, with the other checks that fail.
fn rows() -> Result<Vec<(Fault, Vec<String>)>, String> {
    let text = fs::read_to_string(file()).unwrap();
    let rest = text
        .strip_prefix(HEAD)
        .ok_or("MATRIX.md begins otherwise")?;
    let (lines, faults): (Vec<_>, _) = (rest.lines().collect(), faults());
    if lines.len() != faults.len() {
        return Err(format!("{} rows of {} faults", lines.len(), faults.len()));
    }
    let rows = lines.into_iter().zip(faults);
    rows.map(|(line, fault)| {
        let others = line
            .strip_prefix(&row(&fault))
            .and_then(|rest| rest.strip_suffix(" |"))
            .ok_or_else(|| format!("the row of {} is another: {line}", fault.name))?;
        let others = others.split(", ").skip(1).map(str::to_owned).collect();
        Ok((fault, others))
    })
    .collect()
}

fn table() -> Verdict {
    let checks: BTreeSet<_> = checks().into_iter().collect();
    for (fault, others) in rows()? {
        let unknown: Vec<_> = others
            .iter()
            .filter(|name| !checks.contains(*name))
            .collect();
        if !unknown.is_empty() {
            return Err(format!(
                "there are no checks {unknown:?}, in {}",
                fault.name
            ));
        }
        if others.len() > COLLATERAL && !NO_LIFE.contains(&fault.name.as_str()) {
            let many = others.len();
            return Err(format!(
                "{} fails {many} checks besides its own",
                fault.name
            ));
        }
    }
    Ok(())
}

/// Runs every check on every fault, or on those in `FLEXVOL_FAULTS`, and writes or compares the result. Fails if
/// a fault is missed.
fn whole() -> Verdict {
    let named = env::var("FLEXVOL_FAULTS").unwrap_or_default();
    let named: Vec<_> = named.split_whitespace().collect();
    let chosen = |fault: &&Fault| named.is_empty() || named.contains(&fault.name.as_str());
    let faults = faults();
    let found = run_on(faults.iter().filter(chosen).cloned().collect());
    // A new fault has no row yet.
    let written = fs::read_to_string(file()).unwrap_or_default();
    let line = |fault: &Fault| {
        let line = written.lines().find(|line| line.starts_with(&row(fault)))?;
        Some((fault.name.clone(), line.to_owned()))
    };
    let before: BTreeMap<_, _> = faults.iter().filter_map(line).collect();
    let mut text = HEAD.to_owned();
    let mut missed = Vec::new();
    for fault in &faults {
        let Some(ended) = found.get(&fault.name) else {
            let bare = format!("{} |", row(fault));
            text += &format!("{}\n", before.get(&fault.name).unwrap_or(&bare));
            continue;
        };
        let failed = |ended: &&Ended| ["failed", "error"].contains(&ended.outcome.as_str());
        let names = ended.iter().filter(failed);
        let (own, others): (Vec<_>, Vec<_>) = names
            .map(|ended| ended.check.as_str())
            .partition(|check| *check == fault.check);
        if own.is_empty() {
            missed.push(&fault.name);
        }
        let others: String = others.iter().map(|check| format!(", {check}")).collect();
        text += &format!("{}{others} |\n", row(fault));
    }
    print!("{text}");
    let compared = env::var_os("FLEXVOL_BLESS").is_some_and(|how| how == "check");
    if compared && text != fs::read_to_string(file()).unwrap() {
        return Err("MATRIX.md says otherwise".to_owned());
    }
    fs::write(file(), text).unwrap();
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("not caught: {missed:?}"))
    }
}

/// Runs every check on each fault, and returns the outcomes.
fn run_on(faults: Vec<Fault>) -> BTreeMap<String, Vec<Ended>> {
    let queue = Mutex::new(faults.into_iter());
    let found = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(fault) = queue.lock().unwrap().next() else {
                        break;
                    };
                    let ended = driver::test(&fault.name, None, 1);
                    found.lock().unwrap().insert(fault.name, ended);
                }
            });
        }
    });
    found.into_inner().unwrap()
}
