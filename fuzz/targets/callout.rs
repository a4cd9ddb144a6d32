//! The arguments of a callout: accepted ones are written back unchanged, others are refused in
//! one line.
#![no_main]

use flexvol_fuzz::{arguments, within};
use flexvol_sdk::{Bytes, Callout, ErrorKind, Resize};
use libfuzzer_sys::fuzz_target;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Component, Path},
};

fuzz_target!(|data: &[u8]| {
    let argv = arguments(data);
    // An empty key with an empty value is six bytes of JSON, and takes a hundred in memory until the second
    // one is refused as a duplicate.
    match within((64 << 10) + 64 * data.len(), || Callout::parse(&argv)) {
        Ok(callout) => {
            is_plausible(&callout);
            let written = callout.to_argv();
            let again = Callout::parse(&written).expect("what was understood is written so");
            assert_eq!(again.to_argv(), written);
            assert_eq!(format!("{again:?}"), format!("{callout:?}"));
            if !matches!(callout, Callout::Unknown(_)) {
                assert_eq!(argv.len(), written.len());
                argv.iter()
                    .zip(&written)
                    .for_each(|(sent, kept)| is_kept(sent, kept));
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let told = error.report();
            assert!(!told.contains(char::is_control), "{told:?}");
        }
    }
});

/// Checks what every method of a driver may rely on.
fn is_plausible(callout: &Callout) {
    match callout {
        Callout::Mount(request) => is_directory(&request.dir),
        Callout::Unmount { dir } | Callout::UnmountDevice { dir } => is_directory(dir),
        Callout::MountDevice { dir, .. } => is_directory(dir),
        Callout::ExpandVolume { dir, size, .. } | Callout::ExpandFs { dir, size, .. } => {
            dir.as_deref().into_iter().for_each(is_directory);
            is_growth(*size);
        }
        Callout::Provision { volume, size } => {
            assert!(volume.name.is_some());
            is_size(*size);
        }
        _ => {}
    }
    if let Some(subject) = callout.subject() {
        assert!(!subject.contains(char::is_control), "{subject:?}");
    }
}

fn is_directory(dir: &Path) {
    let up = dir.components().any(|part| part == Component::ParentDir);
    assert!(
        dir.is_absolute() && dir.parent().is_some() && !up,
        "{dir:?}"
    );
}

fn is_growth(size: Resize) {
    is_size(size.old);
    is_size(size.new);
    assert!(size.new >= size.old);
}

fn is_size(size: Bytes) {
    assert!(size.0 > 0 && i64::try_from(size.0).is_ok());
}

/// Checks that an argument is written back unchanged, except the spelling of numbers, and keys of
/// Kubernetes that carry no further information.
fn is_kept(sent: &OsStr, kept: &OsStr) {
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<u64>().ok());
    let json = |text: &OsStr| {
        serde_json::from_slice::<BTreeMap<String, String>>(text.as_encoded_bytes()).ok()
    };
    match (json(sent), json(kept)) {
        (Some(sent), Some(kept)) => {
            for (key, value) in sent {
                // Which keys with a slash are kept depends on the callout.
                if !key.contains('/') && !key.starts_with("request") {
                    assert_eq!(kept.get(&key), Some(&value), "{key}");
                }
            }
        }
        _ if number(sent).is_some() => assert_eq!(number(sent), number(kept)),
        _ => assert_eq!(sent, kept),
    }
}
