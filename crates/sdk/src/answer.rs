//! Turns the arguments of one exec into a reply, without touching the process.

use crate::{Callout, Capabilities, DriverStatus, Failure, Open, driver::Reason, not_supported};
use std::ffi::{OsStr, OsString};

/// Answers one exec. `argv` holds the arguments without the executable's own name.
///
/// `open` is called only for callouts that need the storage. Meant for tests of whole drivers; a driver's `main`
/// calls [`run`](crate::run()).
///
/// ```
/// # use flexvol_sdk::{Capabilities, Driver, Status, answer};
/// struct Nothing;
/// impl Driver for Nothing {}
///
/// let argv = ["unmount", "/mnt"].map(Into::into);
/// let reply = answer(Capabilities::default(), &|| Ok(Box::new(Nothing)), &argv);
/// assert_eq!(reply.status, Status::NotSupported);
/// ```
#[must_use]
pub fn answer(capabilities: Capabilities, open: Open<'_>, argv: &[OsString]) -> DriverStatus {
    let outcome = read(argv).and_then(|callout| perform(capabilities, open, &callout));
    reply(&outcome)
}

/// The result of one callout, before it becomes a reply.
pub(crate) type Outcome = Result<DriverStatus, Failure>;

pub(crate) fn read(argv: &[OsString]) -> Result<Callout, Failure> {
    // Answered even if its arguments are malformed: kubelet discards the answer, but a failure fails the operation
    // that it was doing on the volume. On "Not supported" kubelet uses the volume's own name.
    if argv.first().map(OsString::as_os_str) == Some(OsStr::new("getvolumename")) {
        return not_supported();
    }
    Ok(Callout::parse(argv)?)
}

pub(crate) fn reply(outcome: &Outcome) -> DriverStatus {
    match outcome {
        Ok(reply) => reply.clone(),
        Err(Failure(Reason::NotSupported)) => DriverStatus::not_supported(),
        Err(Failure(Reason::Failed(error))) => DriverStatus::failure(error),
    }
}

/// Calls the driver method that belongs to the callout.
pub(crate) fn perform(capabilities: Capabilities, open: Open<'_>, callout: &Callout) -> Outcome {
    let done = |()| DriverStatus::success();
    Ok(match callout {
        Callout::Init => DriverStatus::initialized(capabilities),
        Callout::GetVolumeName { .. } | Callout::Unknown(_) => return not_supported(),
        Callout::Attach { volume, node } => DriverStatus::device(open()?.attach(volume, node)?),
        Callout::WaitForAttach { device, volume } => {
            DriverStatus::device(open()?.wait_for_attach(device, volume)?)
        }
        Callout::IsAttached { volume, node } => {
            DriverStatus::attached(open()?.is_attached(volume, node)?)
        }
        Callout::Detach { name, node } => done(open()?.detach(name, node)?),
        Callout::MountDevice {
            dir,
            device,
            volume,
        } => done(open()?.mount_device(dir, device, volume)?),
        Callout::UnmountDevice { dir } => done(open()?.unmount_device(dir)?),
        Callout::Mount(request) => done(open()?.mount(request)?),
        Callout::Unmount { dir } => done(open()?.unmount(dir)?),
        Callout::ExpandVolume { volume, dir, size } => {
            DriverStatus::expanded(open()?.expand_volume(volume, dir.as_deref(), *size)?)
        }
        Callout::ExpandFs {
            volume,
            device,
            dir,
            size,
        } => DriverStatus::expanded(Some(open()?.expand_fs(
            volume,
            device,
            dir.as_deref(),
            *size,
        )?)),
        Callout::Provision { volume, size } => {
            DriverStatus::provisioned(open()?.provision(volume, *size)?)
        }
        Callout::Delete { volume } => done(open()?.delete(volume)?),
        Callout::Capacity { parameters } => DriverStatus::capacity(open()?.capacity(parameters)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Answer, Bytes, Capacity, Driver, Error, ErrorKind, Filesystem, Handle, MountRequest,
        Options, Provisioned, Resize, Result, Status, Volume, VolumeName,
    };
    use std::{cell::Cell, path::Path};

    const VOLUME: &str = r#"{"kubernetes.io/pvOrVolumeName":"v","requestBytes":"1048576"}"#;

    /// One exec of every callout.
    const EXECS: [&[&str]; 15] = [
        &["init"],
        &["getvolumename", VOLUME],
        &["attach", VOLUME, "node"],
        &["waitforattach", "", VOLUME],
        &["isattached", VOLUME, "node"],
        &["detach", "v", "node"],
        &["mountdevice", "/d", "", VOLUME],
        &["unmountdevice", "/d"],
        &["mount", "/d", VOLUME],
        &["unmount", "/d"],
        &["expandvolume", VOLUME, "/d", "2", "1"],
        &["expandfs", VOLUME, "", "/d", "2", "1"],
        &["provision", VOLUME],
        &["delete", VOLUME],
        &["capacity", "{}"],
    ];

    fn exec(driver: fn() -> Result<Box<dyn Driver>>, argv: &[&str]) -> DriverStatus {
        let argv: Vec<OsString> = argv.iter().map(Into::into).collect();
        answer(Capabilities::default(), &driver, &argv)
    }

    /// A driver that has every method.
    struct Whole;

    impl Driver for Whole {
        fn attach(&self, _: &Volume, node: &str) -> Answer<String> {
            Ok(format!("at {node}"))
        }
        fn wait_for_attach(&self, device: &str, _: &Volume) -> Answer<String> {
            Ok(format!("here: {device}"))
        }
        fn is_attached(&self, _: &Volume, _: &str) -> Answer<bool> {
            Ok(true)
        }
        fn detach(&self, _: &VolumeName, _: &str) -> Answer<()> {
            Ok(())
        }
        fn mount_device(&self, _: &Path, _: &str, _: &Volume) -> Answer<()> {
            Ok(())
        }
        fn unmount_device(&self, _: &Path) -> Answer<()> {
            Ok(())
        }
        fn mount(&self, _: &MountRequest) -> Answer<()> {
            Ok(())
        }
        fn unmount(&self, _: &Path) -> Answer<()> {
            Ok(())
        }
        fn expand_volume(&self, _: &Volume, _: Option<&Path>, _: Resize) -> Answer<Option<Bytes>> {
            Ok(None)
        }
        fn expand_fs(&self, _: &Volume, _: &str, _: Option<&Path>, r: Resize) -> Answer<Bytes> {
            Ok(r.new)
        }
        fn provision(&self, _: &Volume, size: Bytes) -> Answer<Provisioned> {
            Ok(Provisioned::new(Handle::from_bytes([1; 16]), size)
                .with_filesystem(Some(Filesystem::Xfs.into())))
        }
        fn delete(&self, _: &Volume) -> Answer<()> {
            Ok(())
        }
        fn capacity(&self, _: &Options) -> Answer<Capacity> {
            Ok(Bytes::GIB.into())
        }
    }

    struct Nothing;
    impl Driver for Nothing {}

    #[test]
    fn every_callout_reaches_its_method() {
        for argv in EXECS {
            let reply = exec(|| Ok(Box::new(Whole)), argv);
            let expected = match argv[0] {
                "getvolumename" => Status::NotSupported,
                _ => Status::Success,
            };
            assert_eq!(reply.status, expected, "{argv:?}");
        }
        let whole = |argv: &[&str]| exec(|| Ok(Box::new(Whole)), argv);
        assert_eq!(
            whole(EXECS[2]).device.as_deref(),
            Some("at node"),
            "attach tells the device"
        );
        assert_eq!(whole(EXECS[4]).attached, Some(true));
        assert_eq!(whole(EXECS[10]).volume_new_size, None);
        assert_eq!(whole(EXECS[11]).volume_new_size, Some(Bytes(2)));
        assert_eq!(whole(EXECS[12]).capacity, Some(Bytes::MIB));
        assert_eq!(whole(EXECS[14]).capacity, Some(Bytes::GIB));
    }

    #[test]
    fn what_a_driver_did_not_write_is_not_supported() {
        for argv in EXECS
            .iter()
            .skip(1)
            .chain([&["waitfordetach", "x"][..]].iter())
        {
            let reply = exec(|| Ok(Box::new(Nothing)), argv);
            assert_eq!(reply, DriverStatus::not_supported(), "{argv:?}");
        }
    }

    #[test]
    fn only_callouts_about_storage_open_it() {
        for argv in EXECS
            .iter()
            .chain([&["waitfordetach"][..], &["unmount", "x"], &[]].iter())
        {
            let opened = Cell::new(false);
            let open = || {
                opened.set(true);
                Err(Error::new(ErrorKind::Configuration, "no configuration"))
            };
            let argv: Vec<OsString> = argv.iter().map(Into::into).collect();
            let reply = answer(Capabilities::default(), &open, &argv);
            let name = argv
                .first()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let storage = !["", "init", "getvolumename", "waitfordetach"].contains(&name)
                && argv.get(1).is_none_or(|dir| dir != "x");
            assert_eq!(opened.get(), storage, "{argv:?}");
            assert_eq!(
                reply.message.as_deref() == Some("no configuration"),
                storage,
                "{argv:?}"
            );
        }
    }

    #[test]
    fn getvolumename_never_fails() {
        for argv in [
            &["getvolumename"][..],
            &["getvolumename", "{"],
            &["getvolumename", "{}", "x"],
        ] {
            let reply = exec(|| Ok(Box::new(Nothing)), argv);
            assert_eq!(reply.status, Status::NotSupported);
        }
    }
}
