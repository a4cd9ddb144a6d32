//! Callouts that change nothing, compared with a program that prints the same line, and with scripts.

use super::{
    Bench,
    programs::{folder, line},
    series::Series,
};
use std::fs;

const COPIES: usize = 6;
const PAIRS: u32 = 150;

impl Bench {
    /// Callouts that do nothing, compared with a program that prints the same line.
    pub fn answers(&self) {
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
            let [mut ratios, mut ours, mut theirs] = [const { Series(Vec::new()) }; 3];
            let mut faults = [0.0; 2];
            for copy in 0..COPIES {
                let [driver, least] = self.copies(copy, &least);
                let argv: Vec<_> = [&[driver.as_str()], arguments].concat();
                let lines = [line("driver", &argv), line("least", &[least])];
                let costs = self.programs.run(PAIRS, &lines, true);
                let [driver, least] = ["driver", "least"].map(|label| &costs[label]);
                ratios.0.push(driver.cpu.sum() / least.cpu.sum());
                ours.0.push(driver.cpu.median());
                theirs.0.push(least.cpu.median());
                faults = [driver.faults.median(), least.faults.median()];
            }
            let what = format!("{name}, µs: static C that prints the line");
            self.table
                .row_with_ratio(&what, &ours, &theirs, ratios.as_ratio(), Some(budget));
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
        for (script, kind) in [("driver.sh", "bash and jq"), ("driver.py", "Python")] {
            let script = folder().join(script);
            for arguments in [&["init"][..], &["isattached", json, "node1"]] {
                let ours = [&[self.driver.executable().to_str().unwrap()], arguments].concat();
                let theirs = [&[script.to_str().unwrap()], arguments].concat();
                let lines = [line("driver", &ours), line("script", &theirs)];
                let costs = self.programs.run(20, &lines, true);
                let what = format!("{}, µs: a driver in {kind}", arguments[0]);
                self.table
                    .row(&what, &costs["driver"].cpu, &costs["script"].cpu, None);
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
}
