//! A configuration: refused with a mistake that it contains, or written with its effective values.
//! The executable is not a library, so its modules are included by path.
#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "modules of the driver, of which only the configuration is used"
)]

#[path = "../../src/backends/mod.rs"]
mod backends;
#[path = "../../src/check.rs"]
mod check;
#[path = "../../src/config/mod.rs"]
mod config;
#[path = "../../src/installed.rs"]
mod installed;
#[path = "../../src/processes/mod.rs"]
mod processes;
#[path = "../../src/size.rs"]
mod size;

use config::{Config, effective};
use flexvol_sdk::Bytes;
use libfuzzer_sys::fuzz_target;
use toml::{Table, Value};

/// A driver of this name has the default backend.
const DRIVER: &str = "flexvol";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    match Config::parse(text, DRIVER) {
        Ok(config) => {
            let written = effective(&config);
            let again = Config::parse(&written, DRIVER).expect("what is in force is valid");
            assert_eq!(effective(&again), written);
            let table = |text| toml::from_str::<Table>(text).expect("TOML");
            is_in_force(&table(text), &table(&written));
            assert_eq!(format!("{again:?}"), format!("{config:?}"));
        }
        Err(mistake) => {
            let line = text.split('\n').nth(mistake.line - 1);
            let line = line.unwrap_or_else(|| panic!("{mistake}"));
            assert!(
                (1..=1 + line.chars().count()).contains(&mistake.column),
                "{mistake}"
            );
        }
    }
});

/// Checks that every setting is written back, except the spelling of sizes, durations and percentages.
fn is_in_force(said: &Table, written: &Table) {
    let size = |value: &Value| match value {
        Value::Integer(bytes) => u64::try_from(*bytes).ok().map(Bytes),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let says_nothing = |value: &Value| value.as_table().is_some_and(Table::is_empty);
    for (key, said) in said.iter().filter(|(_, said)| !says_nothing(said)) {
        match (said, &written[key]) {
            (Value::Table(said), Value::Table(written)) => is_in_force(said, written),
            (Value::String(percent), _) if percent.ends_with('%') => {}
            (said, written) if size(said).is_some() => {
                assert_eq!(size(said), size(written), "{key}")
            }
            (said, written) if seconds(said).is_some() => {
                assert_eq!(seconds(said), seconds(written), "{key}")
            }
            (said, written) => assert_eq!(said, written, "{key}"),
        }
    }
}

/// Parses `7d`, `36h`, `30m` or `90s`.
fn seconds(value: &Value) -> Option<u64> {
    let text = value.as_str()?;
    let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "d" => 24 * 60 * 60,
        "h" => 60 * 60,
        "m" => 60,
        "s" => 1,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(seconds)
}
