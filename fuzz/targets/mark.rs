//! Marks and their fields: a parsed mark is written back unchanged, in the characters of an LVM tag.
#![no_main]

use flexvol_fuzz::within;
use flexvol_host::Uuid;
use flexvol_sdk::{ErrorKind, Handle, VolumeName};
use flexvol_storage::Mark;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;

/// `NAME_LEN` of LVM2's `lib/metadata/metadata-exported.h` is 128; tags may have eight times that
/// (`validate_tag` in `lib/misc/lvm-string.c`).
const LONGEST_TAG: usize = 1024;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    match within(4096 + 32 * data.len(), || Mark::decode(text)) {
        Ok(mark) => {
            let written = mark.to_string();
            let of_a_tag = |c: u8| c.is_ascii_alphanumeric() || b"_+.-/=!:&#".contains(&c);
            assert!(written.bytes().all(of_a_tag), "{written:?}");
            assert!(written.len() <= LONGEST_TAG, "{} bytes", written.len());
            assert_eq!(Mark::decode(&written).expect("a mark"), mark);
            let fields = |text: &str| text.split(':').map(canonical).collect::<BTreeSet<_>>();
            assert_eq!(fields(text), fields(&written));
        }
        Err(error) => assert!(matches!(
            error.kind(),
            ErrorKind::Conflict | ErrorKind::Invalid
        )),
    }
    if let Ok(handle) = Handle::parse(text) {
        assert_eq!(handle.to_string(), text);
    }
    if let Ok(name) = VolumeName::parse(text) {
        assert_eq!(name.as_str(), text);
        assert!(text.len() <= 253 && !text.starts_with('.') && !text.contains(['/', '\n']));
    }
    if let Ok(uuid) = Uuid::parse(text) {
        assert_eq!(uuid.to_string(), text.to_ascii_lowercase());
    }
});

/// The canonical spelling of a field.
fn canonical(field: &str) -> String {
    match field.split_once('=') {
        Some(("uuid", uuid)) => field.replace(uuid, &uuid.to_ascii_lowercase()),
        Some((key @ ("growing" | "deleted" | "keep"), number)) => {
            format!("{key}={}", number.parse::<u64>().expect("a number"))
        }
        Some(("kept", parts)) => {
            let number = |part: &str| part.parse::<u64>().map(|number| number.to_string());
            let part = |part: &str| number(part).unwrap_or_else(|_| part.to_ascii_lowercase());
            let parts: Vec<_> = parts.split('/').map(part).collect();
            format!("kept={}", parts.join("/"))
        }
        _ => field.to_owned(),
    }
}
