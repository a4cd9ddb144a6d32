//! Generators of valid callouts, and of arguments that may be invalid.

use crate::{Bytes, Callout, FsType, MountRequest, Pod, Resize, Secret, Volume, VolumeName};
use proptest::{collection::btree_map, option, prelude::*};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

fn name() -> impl Strategy<Value = VolumeName> {
    "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z0-9]{1,9})?"
        .prop_map(|name| VolumeName::parse(&name).unwrap())
}

prop_compose! {
    fn volume_strategy()(
        name in option::of(name()),
        filesystem in option::of("[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}"),
        read_only: bool,
        claim_namespace in option::of("[a-z]{1,9}"),
        options in btree_map("[a-zA-Z<>&\"ä]{1,9}", "([^\\p{Cc}]|[\n\t]){0,20}", 0..4),
    ) -> Volume {
        let filesystem = filesystem.map(|name| FsType::parse(&name).unwrap());
        Volume { name, filesystem, read_only, claim_namespace, options: options.into() }
    }
}

prop_compose! {
    fn mount_strategy()(
        volume in volume_strategy(),
        dir in dir(),
        pod in option::of(("[a-z]{1,9}", "[a-z]{1,9}", "[a-f0-9]{1,9}(-[a-f0-9]{1,9})?", option::of("[a-z]{1,9}"))),
        secrets in btree_map("[a-zA-Z._-]{1,9}", any::<Vec<u8>>(), 0..3),
        fs_group: Option<u32>,
    ) -> MountRequest {
        MountRequest {
            dir,
            volume,
            pod: pod.map(|(namespace, name, uid, service_account)| Pod { namespace, name, uid, service_account }),
            secrets: secrets.into_iter().map(|(key, value)| (key, Secret::new(value))).collect(),
            fs_group,
        }
    }
}

fn dir() -> impl Strategy<Value = PathBuf> {
    "(/[a-zA-Z0-9~ä .-]{0,8}[a-z]){1,4}".prop_map(PathBuf::from)
}

fn resize_strategy() -> impl Strategy<Value = Resize> {
    (1u64..1 << 62, 0u64..1 << 61).prop_map(|(old, more)| Resize {
        new: Bytes(old + more),
        old: Bytes(old),
    })
}

pub fn callout() -> impl Strategy<Value = Callout> {
    let volume = volume_strategy;
    let node = || "[a-z]{1,9}(\\.[a-z]{1,9})?";
    let device = || "(/dev/[a-z0-9]{1,9})?";
    prop_oneof![
        Just(()).prop_map(|()| Callout::Init),
        volume().prop_map(|volume| Callout::GetVolumeName { volume }),
        (volume(), node()).prop_map(|(volume, node)| Callout::Attach { volume, node }),
        (device(), volume()).prop_map(|(device, volume)| Callout::WaitForAttach { device, volume }),
        (volume(), node()).prop_map(|(volume, node)| Callout::IsAttached { volume, node }),
        (name(), node()).prop_map(|(name, node)| Callout::Detach { name, node }),
        (dir(), device(), volume()).prop_map(|(dir, device, volume)| Callout::MountDevice {
            dir,
            device,
            volume
        }),
        dir().prop_map(|dir| Callout::UnmountDevice { dir }),
        mount_strategy().prop_map(Callout::Mount),
        dir().prop_map(|dir| Callout::Unmount { dir }),
        (volume(), option::of(dir()), resize_strategy())
            .prop_map(|(volume, dir, size)| Callout::ExpandVolume { volume, dir, size }),
        (volume(), device(), dir(), resize_strategy()).prop_map(|(volume, device, dir, size)| {
            Callout::ExpandFs {
                volume,
                device,
                dir: Some(dir),
                size,
            }
        }),
        (volume(), resize_strategy()).prop_map(|(volume, size)| Callout::ExpandFs {
            volume,
            device: String::new(),
            dir: None,
            size
        }),
        (volume(), name(), 1u64..1 << 62).prop_map(|(volume, name, size)| Callout::Provision {
            volume: Volume {
                name: Some(name),
                ..volume
            },
            size: Bytes(size),
        }),
        volume().prop_map(|volume| Callout::Delete { volume }),
        volume().prop_map(|volume| Callout::Capacity {
            parameters: volume.options
        }),
    ]
}

pub fn any_argument() -> impl Strategy<Value = OsString> {
    let json = btree_map("(kubernetes.io/[a-zA-Z.]*)?.{0,9}", ".{0,20}", 0..5)
        .prop_map(|map: BTreeMap<String, String>| serde_json::Value::from_iter(map).to_string());
    prop_oneof![
        json.prop_map(OsString::from),
        "\\PC*".prop_map(OsString::from),
        "[0-9]{1,22}".prop_map(OsString::from),
        any::<Vec<u8>>().prop_map(|bytes| OsStr::from_bytes(&bytes).to_owned()),
    ]
}
