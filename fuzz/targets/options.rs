//! The options of a volume, keys and values separated by NUL: accepted options are parsed as they were written, and
//! refused ones are named without their values.
#![no_main]

use flexvol_fuzz::within;
use flexvol_sdk::{Bytes, ErrorKind, Filesystem, Options};
use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use std::sync::LazyLock;

/// A field of every type that an option can have.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Every {
    pool: String,
    thin: bool,
    small: u8,
    count: Option<u64>,
    offset: i64,
    ratio: f64,
    size: Option<Bytes>,
    filesystem: Option<Filesystem>,
    layout: Layout,
    name: Wrapped,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Layout {
    #[default]
    Linear,
    Striped,
}

#[derive(Debug, Default, Deserialize)]
struct Wrapped(String);

const KEYS: [&str; 10] = [
    "pool",
    "thin",
    "small",
    "count",
    "offset",
    "ratio",
    "size",
    "filesystem",
    "layout",
    "name",
];

/// All messages about values, produced by values that none of them contains.
static MESSAGES: LazyLock<String> = LazyLock::new(|| {
    let pairs = KEYS
        .iter()
        .flat_map(|key| ["☃", "-☃", "99999E"].map(|value| (*key, value)))
        .chain([("☃", "")]);
    pairs
        .filter_map(|pair| parse(&Options::from_iter([pair])).err())
        .collect()
});

fn parse(options: &Options) -> Result<Every, String> {
    options.parse().map_err(|error| {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.report()
    })
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let words: Vec<&str> = text.split('\0').collect();
    let options: Options = words
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let told = LazyLock::force(&MESSAGES);
    match within((16 << 10) + 32 * data.len(), || parse(&options)) {
        Ok(every) => is_what_was_written(&every, &options),
        Err(message) => {
            assert!(!message.contains(char::is_control), "{message:?}");
            // An unknown key is named, in words that may also be a value.
            let alone = |key| parse(&Options::from_iter([(key, "☃")])).err();
            let named = |value: &str| {
                let mut keys = options.iter().filter_map(|(key, _)| alone(key));
                keys.any(|told| told.contains(value))
            };
            for (key, value) in options.iter().filter(|(_, value)| message.contains(value)) {
                let is_ours = told.contains(value) || named(value);
                assert!(is_ours, "{key}={value:?} is in {message:?}");
            }
        }
    }
});

fn is_what_was_written(every: &Every, options: &Options) {
    let written = |key| options.get(key);
    assert!(
        options.iter().all(|(key, _)| KEYS.contains(&key)),
        "{options:?}"
    );
    assert_eq!(every.pool, written("pool").unwrap_or_default());
    assert_eq!(every.name.0, written("name").unwrap_or_default());
    assert_eq!(every.thin, written("thin") == Some("true"));
    assert_eq!(
        Some(every.small),
        written("small").map_or(Some(0), |text| text.parse().ok())
    );
    assert_eq!(
        every.count,
        written("count").and_then(|text| text.parse().ok())
    );
    assert_eq!(
        Some(every.offset),
        written("offset").map_or(Some(0), |text| text.parse().ok())
    );
    let ratio = written("ratio").map_or(Some(0.0), |text| text.parse::<f64>().ok());
    assert_eq!(Some(every.ratio.to_bits()), ratio.map(f64::to_bits));
    assert_eq!(
        every.size,
        written("size").and_then(|text| text.parse().ok())
    );
    assert_eq!(
        every.filesystem.map(Filesystem::as_str),
        written("filesystem")
    );
    assert_eq!(
        every.layout == Layout::Striped,
        written("layout") == Some("striped")
    );
}
