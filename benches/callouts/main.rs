//! The cost of callouts as ratios to the cheapest possible programs, measured alternately in one run. `scripts/bench`
//! runs it, and docs/evidence/costs.md quotes its table. With `--counts` it reports and checks only values that do
//! not depend on the machine's load.
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has no result"
)]
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod answers;
mod load;
mod order;
mod programs;
mod series;
mod table;
mod volumes;

use flexvol_testing::{Driver, PersistentVolume, Pod, Sandbox};
use load::Load;
use programs::Programs;
use std::{env, fs, path::Path, process::ExitCode};
use table::Table;

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
    let load = Load::now();
    bench.answers();
    bench.mounting();
    if !counts_alone {
        bench.repeating();
    }
    bench.growing();
    if !counts_alone {
        bench.many_volumes();
    }
    let table = &bench.table;
    let peak = float(bench.programs.peak());
    table.count("peak memory of any callout, KiB: budget", peak, 2048.0, 1.0);
    let size = float(fs::metadata(&executable).unwrap().len()) / 1024.0;
    table.count("executable, KiB: budget", size, 2432.0, 1.0);
    let others = load.of_others();
    if !counts_alone {
        println!(
            "other programs used {:.0} % of the processors",
            others * 100.0
        );
    }
    match table.missed() {
        0 => ExitCode::SUCCESS,
        missed => {
            println!("{missed} budgets are missed");
            if !counts_alone && load::is_too_high(others) {
                println!("the machine is too busy to judge ratios: repeat this on a quiet one");
            }
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

    fn delete(&self, volume: &PersistentVolume) {
        self.driver.call(&["delete", &volume.json("rw")]).success();
    }
}

#[allow(clippy::cast_precision_loss, reason = "numbers of a table")]
fn float(number: u64) -> f64 {
    number as f64
}
