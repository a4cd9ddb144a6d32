//! Writes the order of the code that callouts run, for the linker. `scripts/order` runs it.
//!
//! A callout runs 5% of the executable. If that is scattered, each call maps nearly the whole executable.

use super::{Bench, MEBI, programs::folder};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
    process::{Command, Stdio},
};

const HEAD: &str = "/* Code that callouts run, in the order in which they first run it. Written by `scripts/order`;
 * docs/decisions/order-of-code.md says why. */
SECTIONS {
    .text.callouts : {
";
const END: &str = "    }
} INSERT BEFORE .text;
";

/// The linker's input sections, by their start addresses.
type Map = BTreeMap<u64, Input>;

struct Input {
    end: u64,
    pattern: String,
}

impl Bench {
    /// Traces the usual callouts and writes a linker script that places their code together.
    pub fn write_order(&self, map: &Path) {
        let map = read_map(&fs::read_to_string(map).expect("read the linker's map"));
        let trace = self.programs.build("trace", "trace", &[]);
        let mut patterns = Vec::new();
        let mut known = BTreeSet::new();
        let mut run = |arguments: &[String]| {
            let traced = Command::new(&trace)
                .arg(self.driver.executable())
                .args(arguments)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert!(traced.status.success(), "trace: {}", traced.status);
            for address in String::from_utf8(traced.stdout).unwrap().lines() {
                let address = u64::from_str_radix(address, 16).unwrap();
                let input = map.range(..=address).next_back();
                if let Some((_, input)) = input.filter(|(_, input)| address < input.end)
                    && known.insert(&input.pattern)
                {
                    patterns.push(&input.pattern);
                }
            }
        };
        let text = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        run(&text(&["init"]));
        for filesystem in ["xfs", "ext4"] {
            let name = format!("order-{filesystem}");
            let volume = flexvol_testing::PersistentVolume::provision(
                &self.driver,
                &name,
                filesystem,
                300 * MEBI,
            );
            run(&text(&["isattached", &volume.json("rw"), "node1"]));
            run(&text(&[
                "provision",
                &volume.json_with("rw", &[("colour", "red")]),
            ]));
            let pod = self.pod(&volume);
            pod.mount("rw").success();
            pod.unmount().success();
            run(&pod.mount_arguments("rw"));
            run(&pod.mount_arguments("rw"));
            run(&pod.expand_arguments(316 * MEBI, 300 * MEBI));
            run(&pod.expand_arguments(316 * MEBI, 300 * MEBI));
            run(&text(&["unmount", pod.dir().to_str().unwrap()]));
            self.delete(&volume);
        }
        let mut script = HEAD.to_owned();
        for pattern in patterns {
            writeln!(script, "        {pattern}").unwrap();
        }
        script.push_str(END);
        let place = folder()
            .ancestors()
            .nth(3)
            .unwrap()
            .join("linker/callouts.ld");
        fs::write(&place, script).unwrap();
    }
}

/// Parses the map of LLD: address, load address, size, alignment, and `FILE:(SECTION)` for each input.
fn read_map(text: &str) -> Map {
    let mut map = Map::new();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (Some(start), Some(_), Some(size)) = (number(), number(), number()) else {
            continue;
        };
        let input = line.rsplit_once(":(.text");
        let Some((file, section)) = input.filter(|_| size > 0) else {
            continue;
        };
        let section = format!(".text{}", section.trim_end_matches(')'));
        let file = file.rsplit('/').next().unwrap_or(file);
        let pattern = pattern(file, &section);
        map.insert(
            start,
            Input {
                end: start + size,
                pattern,
            },
        );
    }
    map
}

/// Removes the crates' hashes from a mangled name: `Cs`, a hash, and `_`.
fn without_hashes(name: &str) -> String {
    let mut parts = name.split("Cs");
    let mut pattern = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('_') {
            Some((hash, rest)) if hash.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                pattern += "Cs*_";
                pattern += rest;
            }
            _ => {
                pattern += "Cs";
                pattern += part;
            }
        }
    }
    pattern
}

/// A linker pattern: for a function in Rust its name without compiler-dependent hashes, for one in C its file.
fn pattern(file: &str, section: &str) -> String {
    if let Some((name, _)) = section.split_once("17h") {
        return format!("*({name}17h*)");
    }
    if section.contains("._R") {
        return format!("*({})", without_hashes(section));
    }
    match file.trim_end_matches(')').split_once('(') {
        Some((archive, member)) if archive.ends_with(".a") => {
            format!("*{archive}:{member}({section})")
        }
        None if section == ".text" => format!("*{file}({section})"),
        _ => format!("*({section})"),
    }
}
