//! Runs node tests in the machine, with the executable that runs them here.

use crate::{NEEDS, chosen};
use flexvol_lab::vm::{Machine, ScriptOutput, Setup, quoted};
use flexvol_testing::{Case, Points, arena, budget, executable};
use std::{
    cell::RefCell,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Timeout of one test.
const LIMIT: Duration = Duration::from_secs(900);

/// Timeout of a test that tries every point.
const EVERY_POINT: Duration = Duration::from_secs(4 * 3600);

/// Directory of the executables in the machine.
const PLACE: &str = "/opt/flexvol";

/// The node tests that this machine may be unable to run, and [`chosen::ALSO`].
///
/// # Panics
/// When a name in [`chosen::ALSO`] is not a node test, or the tests cannot be built.
pub fn cases() -> Vec<Case> {
    let listed = Command::new(node()).arg("--needs").output().unwrap();
    assert!(listed.status.success(), "list the node tests: {listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tests: Vec<_> = listed
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .collect();
    for name in chosen::ALSO {
        assert!(
            tests.iter().any(|test| test.1 == *name),
            "there is no node test {name:?}"
        );
    }
    let wanted = tests
        .into_iter()
        .filter(|(machine, name)| *machine != "this" || chosen::ALSO.contains(name));
    wanted
        .map(|(machine, name)| {
            let (fresh, name) = (machine == "fresh", name.to_owned());
            Case {
                name: name.clone(),
                needs: NEEDS,
                run: Box::new(move |points| run(&name, fresh, points)),
            }
        })
        .collect()
}

/// The executable of the node tests: `FLEXVOL_NODE`, or what cargo builds.
fn node() -> &'static Path {
    static NODE: OnceLock<PathBuf> = OnceLock::new();
    NODE.get_or_init(|| {
        if let Some(path) = env::var_os("FLEXVOL_NODE") {
            return path.into();
        }
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["test", "--locked", "--no-run", "--test", "node"])
            .args(["--quiet", "--message-format", "json"]);
        // For a single package, cargo would build shared dependencies again.
        if env::var_os("FLEXVOL_BUILT").is_some() {
            cargo.arg("--workspace");
        }
        let output = cargo.stdin(Stdio::null()).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let found = lines.lines().find_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let is_node = message["target"]["name"] == "node";
            let path = message["executable"].as_str().filter(|_| is_node)?;
            Some(PathBuf::from(path))
        });
        found.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    })
}

/// An image with the executables, stripped of symbols, which are the largest part.
fn image() -> &'static Path {
    static IMAGE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, image) = IMAGE.get_or_init(|| {
        let directory = tempfile::tempdir_in(arena()).unwrap();
        let (files, image) = (
            directory.path().join("files"),
            directory.path().join("image"),
        );
        fs::create_dir(&files).unwrap();
        let driver = executable(env!("CARGO_BIN_EXE_flexvol"));
        let mut executables = vec![("node", node().to_owned())];
        for name in ["flexvol", "hello-block", "hello-directory"] {
            executables.push((name, driver.with_file_name(name)));
        }
        for (name, file) in executables {
            let mut strip = Command::new("strip");
            let status = strip.arg("-o").arg(files.join(name)).arg(&file).status();
            let from = file.display();
            assert!(
                status.unwrap().success(),
                "strip {from}: is it built? cargo build --workspace --bins"
            );
        }
        image_of(&files, &image, 96);
        (directory, image)
    });
    image
}

/// Makes an image of a file system with these files.
pub fn image_of(files: &Path, image: &Path, mebibytes: u64) {
    let file = fs::File::create_new(image).unwrap();
    file.set_len(mebibytes << 20).unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-O", "^has_journal", "-d"])
        .arg(files)
        .arg(image);
    assert!(mkfs.status().unwrap().success(), "make an image of files");
}

thread_local! {
    /// The machine of this thread, for tests that leave nothing behind.
    static SHARED: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// A machine with the executables in it.
fn machine() -> Result<Machine, String> {
    let start = || {
        let mut machine = Machine::restore(&Setup::new(&arena()))?;
        machine.mount(image(), PLACE)?;
        Ok(machine)
    };
    start().map_err(|error: anyhow::Error| format!("{error:#}"))
}

/// Runs one test in a fresh machine or in the one of this thread, which is discarded when a test fails in
/// it.
fn run(name: &str, fresh: bool, points: &Points) -> Result<(), String> {
    let shared = if fresh { None } else { SHARED.take() };
    let mut machine = match shared {
        Some(machine) => machine,
        None => machine()?,
    };
    points.add(run_in(&mut machine, name)?);
    if !fresh {
        SHARED.set(Some(machine));
    }
    Ok(())
}

/// Runs one test and returns how many points it counted, without the point for itself.
fn run_in(machine: &mut Machine, name: &str) -> Result<u64, String> {
    let budget = budget();
    let every = if budget.every_point {
        "--every-point"
    } else {
        ""
    };
    let script = format!(
        "FLEXVOL_EXECUTABLE={PLACE}/flexvol exec {PLACE}/node --exact {} --seconds {} --seed {} --points {} {every}",
        quoted(name),
        budget.each.as_secs(),
        quoted(&budget.name),
        budget.points
    );
    let words = |error: anyhow::Error| format!("{error:#}");
    machine.start(&script).map_err(words)?;
    let limit = match budget.every_point {
        true => EVERY_POINT,
        false => LIMIT.max(budget.each * 4),
    };
    let deadline = Instant::now() + limit;
    let mut lines = Vec::new();
    let status = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match machine.next(left) {
            Ok(ScriptOutput::Line(line)) => {
                if budget.every_point {
                    println!("{line}");
                }
                lines.push(line);
            }
            Ok(ScriptOutput::End(status)) => break status,
            Err(error) => {
                return Err(format!("{}\n{error:#}", lines.join("\n")));
            }
        }
    };
    let said = Report::of(&lines);
    match said {
        Some(said) if status == 0 && said.tests == 1 => {
            // Otherwise they were printed at once.
            if !said.notes.is_empty() && !budget.every_point {
                println!("{name} ... {}", said.notes);
            }
            Ok(said.points.saturating_sub(1))
        }
        _ => Err(format!("status {status}\n{}", lines.join("\n"))),
    }
}

/// The output of one node test.
struct Report {
    tests: u64,
    points: u64,
    /// Notes that the test printed.
    notes: String,
}

impl Report {
    fn of(lines: &[String]) -> Option<Self> {
        let last = lines
            .iter()
            .find_map(|line| line.strip_prefix("layer node: "))?;
        let mut numbers = last.split(", ").map(|part| part.split(' ').next());
        let mut number = || numbers.next()??.parse().ok();
        let (tests, points) = (number()?, number()?);
        let start = lines.iter().position(|line| line.starts_with("test "))?;
        let end = lines
            .iter()
            .position(|line| line.starts_with("test result:"))?;
        let text = lines.get(start..end)?.join(" ");
        let (_, notes) = text.split_once(" ... ")?;
        let mut notes = notes.trim().trim_end_matches("ok").trim();
        // The duration is reported by the caller.
        if let Some((before, "s)")) = notes.rsplit_once(' ')
            && let Some(at) = before.rfind('(')
        {
            notes = before[..at].trim_end();
        }
        Some(Report {
            tests,
            points,
            notes: notes.to_owned(),
        })
    }
}
