//! The cost of callouts as ratios to the cheapest possible programs, measured alternately in one run. `scripts/bench`
//! runs it, and docs/evidence/costs.md quotes its table. With `--counts` it reports and checks only values that do
//! not depend on the machine's load.
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has no result"
)]
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod order;
mod programs;
mod table;

use flexvol_testing::{Driver, PersistentVolume, Pod, Sandbox};
use programs::{Programs, folder, line, median_of};
use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};
use table::Table;

const COPIES: usize = 6;
const PAIRS: u32 = 150;
const MEBI: u64 = 1 << 20;
const UID: &str = "0b1e55ed-0000-4000-8000-000000000001";

fn main() -> ExitCode {
    flexvol_testing::isolate().expect("a mount namespace of its own");
    let executable = flexvol_testing::executable(env!("CARGO_BIN_EXE_flexvol"));
    let sandbox = Sandbox::new(&executable);
    let counts_alone = env::args().any(|argument| argument == "--counts");
    let bench = Bench {
        driver: sandbox.install("example.com/loop", false, "thin = true"),
        programs: Programs::new(&sandbox.path("programs")),
        sandbox,
        table: Table::new(counts_alone),
    };
    let mut arguments = env::args().skip_while(|argument| argument != "--order");
    if let Some(map) = arguments.nth(1) {
        bench.write_order(Path::new(&map));
        return ExitCode::SUCCESS;
    }
    println!(
        "{:52} {:>10} {:>10} {:>7}  budget",
        "CPU unless said otherwise", "driver", "other", "ratio"
    );
    bench.answers();
    bench.mounting();
    bench.growing();
    if !counts_alone {
        bench.many_volumes();
    }
    let table = &bench.table;
    let peak = float(bench.programs.peak());
    table.count("peak memory of any callout, KiB: budget", peak, 2048.0, 1.0);
    let size = float(fs::metadata(&executable).unwrap().len()) / 1024.0;
    table.count("executable, KiB: budget", size, 2432.0, 1.0);
    match table.missed() {
        0 => ExitCode::SUCCESS,
        missed => {
            println!("{missed} budgets are missed");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    sandbox: Sandbox,
    driver: Driver,
    programs: Programs,
    table: Table,
}

impl Bench {
    fn volume(&self, name: &str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, name, "xfs", 300 * MEBI)
    }

    fn pod<'a>(&'a self, volume: &'a PersistentVolume) -> Pod<'a> {
        Pod::new(&self.sandbox, &self.driver, volume, UID)
    }

    fn argv(&self, arguments: &[String]) -> Vec<String> {
        let executable = self.driver.executable().to_str().unwrap().to_owned();
        [&[executable], arguments].concat()
    }

    /// Callouts that do nothing, compared with a program that prints the same line.
    fn answers(&self) {
        let volume = self.volume("answers");
        let json = volume.json("rw");
        let refused = volume.json_with("rw", &[("colour", "red")]);
        let callouts: [(&str, &[&str], f64, f64); 3] = [
            ("init", &["init"], 1.15, 1.2),
            ("isattached", &["isattached", &json, "node1"], 1.25, 1.5),
            ("a refused callout", &["provision", &refused], 1.25, 1.4),
        ];
        for (name, arguments, budget, faults_budget) in callouts {
            let reply = String::from_utf8(self.driver.call(arguments).output).unwrap();
            let flag = format!("-DREPLY={:?}", reply.trim_end());
            let least = self.programs.build("reply", "reply", &[&flag]);
            let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
            let mut faults = [0.0; 2];
            for copy in 0..COPIES {
                let [driver, least] = self.copies(copy, &least);
                let argv: Vec<_> = [&[driver.as_str()], arguments].concat();
                let lines = [line("driver", &argv), line("least", &[least])];
                let costs = self.programs.run(PAIRS, &lines, true);
                ratios.push(costs["driver"].cpu() / costs["least"].cpu());
                ours.push(costs["driver"].cpu_median());
                theirs.push(costs["least"].cpu_median());
                faults = ["driver", "least"].map(|label| costs[label].faults_median());
            }
            let ratio = median_of(&ratios);
            let (ours, theirs) = (median_of(&ours), median_of(&theirs));
            let what = format!("{name}, µs: static C that prints the line");
            self.table
                .row_with_ratio(&what, ours, theirs, ratio, Some(budget));
            let what = format!("{name}, page faults: the same");
            self.table.count(&what, faults[0], faults[1], faults_budget);
        }
        if !self.table.counts_alone() {
            self.scripts(&json);
        }
        self.delete(&volume);
    }

    /// The same, compared with drivers that are scripts.
    fn scripts(&self, json: &str) {
        for script in ["driver.sh", "driver.py"] {
            let script = folder().join(script);
            for arguments in [&["init"][..], &["isattached", json, "node1"]] {
                let ours = [&[self.driver.executable().to_str().unwrap()], arguments].concat();
                let theirs = [&[script.to_str().unwrap()], arguments].concat();
                let lines = [line("driver", &ours), line("script", &theirs)];
                let costs = self.programs.run(20, &lines, true);
                let kind = if script.ends_with("driver.sh") {
                    "bash and jq"
                } else {
                    "Python"
                };
                let what = format!("{}, µs: a driver in {kind}", arguments[0]);
                self.table.row(
                    &what,
                    costs["driver"].cpu_median(),
                    costs["script"].cpu_median(),
                    None,
                );
            }
        }
    }

    /// Makes new copies of both programs, because the placement of pages in memory makes one copy faster than
    /// another.
    fn copies(&self, copy: usize, least: &str) -> [String; 2] {
        let dir = self.sandbox.path(&format!("copy-{copy}"));
        if dir.exists() {
            fs::remove_dir_all(&dir).unwrap();
        }
        fs::create_dir(&dir).unwrap();
        for entry in fs::read_dir(self.driver.executable().parent().unwrap()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        fs::copy(least, dir.join("least")).unwrap();
        let name = self.driver.executable().file_name().unwrap();
        [dir.join(name), dir.join("least")].map(|path| path.to_str().unwrap().to_owned())
    }

    /// Mounts and unmounts a formatted volume.
    fn mounting(&self) {
        let volume = self.volume("mounting");
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        pod.unmount().success();
        let image = volume.image(&self.sandbox).to_str().unwrap().to_owned();
        let dir = pod.dir().to_str().unwrap().to_owned();
        let mount = self.programs.build("loop_mount", "loop_mount", &[]);
        let unmount = self.programs.build("loop_unmount", "loop_unmount", &[]);
        // The commands of a script. The loop device goes with the mount.
        let tools = format!("mount -t xfs -o loop,nosuid,nodev {image} {dir} && umount {dir}");
        let lines = [
            line("driver-mount", &self.argv(&pod.mount_arguments("rw"))),
            line(
                "driver-unmount",
                &self.argv(&["unmount".to_owned(), dir.clone()]),
            ),
            line("raw-mount", &[mount.as_str(), &image, "xfs", &dir]),
            line("raw-unmount", &[unmount.as_str(), &dir]),
            line("tools", &["/bin/sh", "-c", &tools]),
        ];
        let costs = self.programs.run(100, &lines, false);
        let both = |whose: &str, of: fn(&programs::Cost) -> f64| {
            of(&costs[&format!("{whose}-mount")]) + of(&costs[&format!("{whose}-unmount")])
        };
        let cpu = programs::Cost::cpu_median;
        let elapsed = programs::Cost::elapsed_median;
        self.table.row(
            "mount + unmount, µs: C, the same system calls",
            both("driver", cpu),
            both("raw", cpu),
            Some(1.35),
        );
        self.table.row(
            "  elapsed",
            both("driver", elapsed),
            both("raw", elapsed),
            None,
        );
        let faults = programs::Cost::faults_median;
        self.table.count(
            "mount + unmount, page faults: the same",
            both("driver", faults),
            both("raw", faults),
            3.6,
        );
        self.table.row(
            "mount + unmount, µs: mount and umount",
            both("driver", cpu),
            costs["tools"].cpu_median(),
            None,
        );
        self.table.row(
            "  elapsed",
            both("driver", elapsed),
            costs["tools"].elapsed_median(),
            None,
        );
        fs::remove_dir(pod.dir()).unwrap();
        self.delete(&volume);
    }

    /// Grows four mounted volumes step by step, each in another way.
    fn growing(&self) {
        const STEPS: u64 = 20;
        let names = ["grow-driver", "grow-raw", "grow-safe", "grow-tools"];
        let volumes = names.map(|name| self.volume(name));
        let pods = volumes.each_ref().map(|volume| self.pod(volume));
        for pod in &pods {
            pod.mount("rw").success();
        }
        let images = volumes.each_ref().map(|volume| volume.image(&self.sandbox));
        let devices = images.each_ref().map(|image| loop_of(image));
        let raw = self.programs.build("xfs_grow", "xfs_grow", &[]);
        let safe = self
            .programs
            .build("xfs_grow", "xfs_grow_safe", &["-DSAFE"]);
        let lock = self.sandbox.path("lock-of-c");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut lines = Vec::new();
        for step in 1..=STEPS {
            let bytes = (300 + 16 * step) * MEBI;
            let size = bytes.to_string();
            lines.push(line(
                "driver",
                &self.argv(&pods[0].expand_arguments(bytes, bytes - 16 * MEBI)),
            ));
            for (at, label, program) in [(1, "raw", &raw), (2, "safe", &safe)] {
                let (image, dir) = (text(&images[at]), text(pods[at].dir()));
                let argv = [program, &image, &devices[at], &dir, &size, &text(&lock)];
                lines.push(line(label, &argv));
            }
            let tools = format!(
                "truncate -s {size} {} && losetup -c {} && xfs_growfs -d {}",
                text(&images[3]),
                devices[3],
                text(pods[3].dir())
            );
            lines.push(line("tools", &["/bin/sh", "-c", &tools]));
        }
        let costs = self.programs.run(1, &lines, false);
        let labels = ["driver", "raw", "safe", "tools"];
        let [driver, raw, safe, tools] = labels.map(|label| &costs[label]);
        for (what, other, budget) in [
            ("C, the same system calls", raw, 1.8),
            ("C that is safe, too", safe, 1.5),
        ] {
            self.table.row(
                &format!("expandfs, xfs, µs: {what}"),
                driver.cpu_median(),
                other.cpu_median(),
                Some(budget),
            );
            self.table.row(
                "  elapsed",
                driver.elapsed_median(),
                other.elapsed_median(),
                None,
            );
        }
        self.table.count(
            "expandfs, xfs, page faults: C that is safe, too",
            driver.faults_median(),
            safe.faults_median(),
            2.4,
        );
        self.table.row(
            "expandfs, xfs, µs: truncate, losetup, xfs_growfs",
            driver.cpu_median(),
            tools.cpu_median(),
            None,
        );
        self.table.row(
            "  elapsed",
            driver.elapsed_median(),
            tools.elapsed_median(),
            None,
        );
        for pod in &pods {
            pod.unmount().success();
        }
        volumes.iter().for_each(|volume| self.delete(volume));
    }

    /// The same callouts with 1, 100 and 1,000 volumes mounted on the node.
    fn many_volumes(&self) {
        let probe = self.volume("probe");
        let pod = self.pod(&probe);
        pod.mount("rw").success();
        pod.unmount().success();
        let mut others: Vec<PersistentVolume> = Vec::new();
        let mut first = None;
        for count in [1, 100, 1000] {
            while others.len() + 1 < count {
                let name = format!("other-{}", others.len());
                let other = PersistentVolume::provision(&self.driver, &name, "ext4", 16 * MEBI);
                self.pod(&other).mount("rw").success();
                others.push(other);
            }
            let mount = self.argv(&pod.mount_arguments("rw"));
            let dir = pod.dir().to_str().unwrap().to_owned();
            let lines = [
                line("mount", &mount),
                line("again", &mount),
                line("unmount", &self.argv(&["unmount".to_owned(), dir])),
            ];
            let costs = self.programs.run(40, &lines, false);
            let all = ["mount", "again", "unmount"].map(|label| costs[label].cpu_median());
            let ones = *first.get_or_insert(all);
            for (at, what) in ["mount", "mount again", "unmount"].iter().enumerate() {
                let what = format!("{what}, µs: {count} volumes against 1");
                self.table.row(&what, all[at], ones[at], Some(2.0));
            }
        }
        for other in &others {
            self.pod(other).unmount().success();
            self.delete(other);
        }
        fs::remove_dir(pod.dir()).unwrap();
        self.delete(&probe);
    }

    fn delete(&self, volume: &PersistentVolume) {
        self.driver.call(&["delete", &volume.json("rw")]).success();
    }
}

/// The loop device of an image, according to losetup.
fn loop_of(image: &Path) -> String {
    let output = Command::new("losetup")
        .args(["-n", "-O", "NAME", "-j"])
        .arg(image)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[allow(clippy::cast_precision_loss, reason = "numbers of a table")]
fn float(number: u64) -> f64 {
    number as f64
}
