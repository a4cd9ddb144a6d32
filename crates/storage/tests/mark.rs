//! A mark is read back as it was written, and the oldest format stays readable.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use flexvol_host::{
    PoolId, Uuid,
    clock::{Moment, UnixTime},
};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem, Handle, VolumeName};
use flexvol_storage::{
    Mark,
    mark::{Format, Origin, State},
    retention::{CountedTime, Deletion},
};
use proptest::prelude::*;
use std::{path::Path, time::Duration};

fn ready() -> Mark {
    Mark {
        state: State::Ready,
        format: Some(Format {
            filesystem: Filesystem::Xfs,
            uuid: Uuid::parse("0b0e8f6a-51a2-4d52-9c3f-6d1f0f3c2a11").unwrap(),
        }),
        growing: Some(Bytes::GIB),
        ..Mark::blank(
            Handle::parse("00112233445566778899aabbccddeeff").unwrap(),
            PoolId::parse("ffeeddccbbaa99887766554433221100").unwrap(),
            Some(VolumeName::parse("data.claims").unwrap()),
            Some("default".to_owned()),
        )
    }
}

#[test]
fn the_first_version_is_read_for_ever() {
    let golden = include_str!("fixtures/mark-v1.txt").trim_end();
    assert_eq!(Mark::decode(golden).unwrap(), ready());
    assert_eq!(ready().to_string(), golden);
}

#[test]
fn a_newer_version_is_refused_and_says_what_to_do() {
    let newer = ready().to_string().replace("flexvol=1", "flexvol=2");
    let error = Mark::decode(&newer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("upgrade the driver"), "{error}");
}

#[test]
fn what_is_not_quite_a_mark_is_none() {
    let good = ready().to_string();
    let cut_anywhere = (0..good.len()).map(|at| good[..at].to_owned());
    let twisted = [
        good.replace(":fs=xfs", ""),
        good.replace("state=ready", "state=steady"),
        good.replace(":state=ready", ""),
        good.replace("growing=", "growing=-"),
        good.replace("namespace=default", "namespace=de\u{1b}[2Jfault"),
        good.replace("namespace=default", "namespace=a.b"),
        format!("{good}:state=ready"),
        format!("{good}:more=1"),
        format!("{good}:adopted=backup.img"),
        format!("{good}:keep=1"),
        format!("{good}:deleted=1:kept=1"),
        format!(
            "{good}:deleted=1:kept=1/2/{}/3/4",
            Uuid::from_bytes([7; 16])
        ),
        format!("{good} "),
        format!("{good}\n"),
    ];
    for text in cut_anywhere.chain(twisted) {
        // If the cut is between digits of the last number, the text is a mark with another number.
        if let Ok(mark) = Mark::decode(&text) {
            assert!(good.starts_with(&text), "{text:?} was read as {mark:?}");
            assert!(mark.growing < ready().growing, "{text:?}");
        }
    }
}

#[test]
fn what_is_being_deleted_takes_less_room_than_before() {
    let length = |mark: &Mark| mark.to_string().len();
    let ready = ready().with_growing(None);
    let blank = Mark {
        asked: Some(Filesystem::Xfs),
        format: None,
        ..ready.with_state(State::Blank)
    };
    for mark in [&ready, &blank] {
        assert!(length(&mark.with_state(State::Deleting)) < length(mark));
    }
}

#[test]
fn a_mark_fits_where_lvm_keeps_tags() {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_+.-/=!:&#".contains(&c);
    let now = Moment {
        unix: UnixTime(u64::MAX),
        boot: Uuid::from_bytes([7; 16]),
        uptime: u64::MAX,
    };
    let deletion = Deletion::new(&now, Duration::from_secs(u64::MAX));
    let longest = Mark {
        name: Some(VolumeName::parse(&"n".repeat(253)).unwrap()),
        namespace: Some("n".repeat(63)),
        adopted: Some(Origin::of(Path::new("/data/backup.img"))),
        growing: Some(Bytes(u64::MAX)),
        resizing: true,
        ..ready().with_deleted(Some(deletion))
    };
    assert!(longest.to_string().bytes().all(allowed));
    // `validate_tag` in LVM2's lib/misc/lvm-string.c.
    assert!(longest.to_string().len() <= 1024);
}

fn deletion() -> impl Strategy<Value = Deletion> {
    let kept =
        any::<(u64, u64, [u8; 16], u64)>().prop_map(|(time, unix, boot, uptime)| CountedTime {
            time: Duration::from_secs(time),
            until: Moment {
                unix: UnixTime(unix),
                boot: Uuid::from_bytes(boot),
                uptime,
            },
        });
    let keep = any::<u64>().prop_map(Duration::from_secs);
    (any::<u64>(), prop::option::of(keep), prop::option::of(kept)).prop_map(|(at, keep, kept)| {
        Deletion {
            at: UnixTime(at),
            keep,
            kept,
        }
    })
}

proptest! {
    #[test]
    fn every_mark_is_read_back(
        handle: [u8; 16], pool: [u8; 16], uuid: [u8; 16],
        state in prop::sample::select(vec![State::Blank, State::Formatting, State::Ready, State::Deleting]),
        filesystem in prop::sample::select(Filesystem::ALL.to_vec()),
        name in prop::option::of("[a-z0-9]{1,20}"),
        asked in prop::option::of(prop::sample::select(Filesystem::ALL.to_vec())),
        adopted in prop::option::of("[a-z0-9/ ]{1,20}"),
        growing in prop::option::of(any::<u64>().prop_map(Bytes)),
        resizing: bool,
        deleted in prop::option::of(deletion()),
    ) {
        let format = (state != State::Blank).then(|| Format { filesystem, uuid: Uuid::from_bytes(uuid) });
        let name = name.map(|name| VolumeName::parse(&name).unwrap());
        let adopted = adopted.map(|path| Origin::of(Path::new(&path)));
        let mark = Mark {
            state, asked, format, adopted, growing, deleted,
            resizing: resizing && growing.is_some(),
            ..Mark::blank(Handle::from_bytes(handle), PoolId::from_bytes(pool), name, None)
        };
        prop_assert_eq!(Mark::decode(&mark.to_string()).unwrap(), mark);
    }

    #[test]
    fn no_text_makes_decode_panic(text in ".*") {
        let _ = Mark::decode(&text);
    }
}
