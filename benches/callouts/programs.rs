//! The programs with which a driver is compared, run alternately.

use crate::series::Series;
use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A command line, with the label under which its cost is summed up.
pub struct Line<'a> {
    pub label: &'a str,
    pub argv: Vec<String>,
}

/// Makes a line.
pub fn line<'a, S: AsRef<str>>(label: &'a str, argv: &[S]) -> Line<'a> {
    Line {
        label,
        argv: argv
            .iter()
            .map(|argument| argument.as_ref().to_owned())
            .collect(),
    }
}

/// The cost of all runs with one label.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// Processor time, in microseconds.
    pub cpu: Series,
    /// Duration, in microseconds.
    pub elapsed: Series,
    /// Page faults that read nothing from a disk.
    pub faults: Series,
}

/// The measuring program, and a directory for programs that are built for a comparison.
pub struct Programs {
    dir: PathBuf,
    peak: Cell<u64>,
}

impl Programs {
    /// Builds programs in `dir`.
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let programs = Programs {
            dir: dir.to_owned(),
            peak: Cell::new(0),
        };
        programs.build("spawn", "spawn", &[]);
        programs
    }

    /// The highest peak memory of runs whose label begins with `driver`, in KiB.
    pub fn peak(&self) -> u64 {
        self.peak.get()
    }

    /// Compiles `benches/callouts/programs/SOURCE.c` as a small static executable.
    pub fn build(&self, source: &str, name: &str, flags: &[&str]) -> String {
        let source = folder().join(source).with_extension("c");
        let executable = self.dir.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-static", "-s", "-o"]).arg(&executable);
        let status = cc
            .args(flags)
            .arg(source)
            .status()
            .expect("start cc (package gcc)");
        assert!(status.success(), "{cc:?}: {status}");
        executable.to_str().unwrap().to_owned()
    }

    /// Runs all lines alternately, `rounds` times. A failing program ends the measurement, because its cost would
    /// mean nothing, unless `may_fail` is set.
    pub fn run(&self, rounds: u32, lines: &[Line<'_>], may_fail: bool) -> BTreeMap<String, Cost> {
        let mut spawn = Command::new(self.dir.join("spawn"));
        let mut spawned = spawn
            .arg(rounds.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let list: String = lines
            .iter()
            .map(|line| format!("{}\t{}\n", line.label, line.argv.join("\t")))
            .collect();
        spawned
            .stdin
            .take()
            .unwrap()
            .write_all(list.as_bytes())
            .unwrap();
        let output = spawned.wait_with_output().unwrap();
        assert!(output.status.success(), "spawn: {}", output.status);
        let mut costs: BTreeMap<String, Cost> = BTreeMap::new();
        for run in String::from_utf8(output.stdout).unwrap().lines() {
            let mut fields = run.split(' ');
            let cost = costs.entry(fields.next().unwrap().to_owned()).or_default();
            let mut number = || fields.next().unwrap().parse::<u64>().unwrap();
            cost.cpu.0.push(as_float(number()));
            cost.elapsed.0.push(as_float(number()));
            cost.faults.0.push(as_float(number()));
            let peak = number();
            if run.starts_with("driver") {
                self.peak.set(peak.max(self.peak.get()));
            }
            assert!(number() == 0 || may_fail, "a program failed: {run}\n{list}");
        }
        costs
    }
}

/// The directory with the programs' sources and the scripted drivers.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/callouts/programs")
}

#[allow(clippy::cast_precision_loss, reason = "microseconds of a benchmark")]
fn as_float(number: u64) -> f64 {
    number as f64
}
