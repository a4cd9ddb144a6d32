//! A whole call of a driver that reveals everything it knows: the output must be one line with one object, with the
//! matching exit code, and without secrets.
#![no_main]

use flexvol_fuzz::arguments;
use flexvol_sdk::{
    Answer, Bytes, Callout, Capabilities, Capacity, Driver, DriverStatus, Environment, Error,
    ErrorKind, Failure, Log, MountRequest, Options, Program, Provisioned, Resize, Status, Volume,
    VolumeName,
};
use libfuzzer_sys::fuzz_target;
use std::{ffi::OsString, path::Path, time::SystemTime};

fuzz_target!(|data: &[u8]| {
    let argv = arguments(data);
    let mut output = Vec::new();
    let mut environment = Environment {
        program: "gossip",
        arguments: &argv,
        output: &mut output,
        clock: &|| SystemTime::UNIX_EPOCH,
        log: &Log::nowhere(),
    };
    let open = || Ok(Box::new(Gossip(argv.clone())) as Box<dyn Driver>);
    let code = Program::new(Capabilities::default())
        .run_in(&mut environment, &open)
        .expect("memory takes every line");

    let line = String::from_utf8(output).expect("the line is text");
    assert!(line.starts_with('{') && line.ends_with("}\n"), "{line}");
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    let reply: DriverStatus = serde_json::from_str(&line).expect("the line is a reply");
    assert_eq!(reply.to_line(), line);

    let is_secret = |argument: &OsString| {
        let argument = argument.as_encoded_bytes();
        argument
            .windows(21)
            .any(|text| text == b"kubernetes.io/secret/")
    };
    let failed = reply.status != Status::Success && !argv.iter().any(is_secret);
    assert_eq!(code, u8::from(failed), "{line}");

    let name = argv[0].to_str().unwrap_or_default();
    let is_supported = Callout::NAMES.contains(&name) && name != "getvolumename";
    assert_eq!(
        reply.status == Status::NotSupported,
        !is_supported,
        "{line}"
    );
    assert_eq!(reply.status == Status::Failure, reply.error_class.is_some());
    if let (Some(message), Ok(Callout::Mount(request))) = (&reply.message, Callout::parse(&argv)) {
        tells_none(message, &request);
    }
});

/// Checks that the message contains no secret except within its replacement.
fn tells_none(message: &str, request: &MountRequest) {
    const MARK: &str = "[secret]";
    // A truncated message may end within a replacement.
    let cut = message.strip_suffix('…').map(|message| {
        let part = (1..MARK.len()).find(|&part| message.ends_with(&MARK[..part]));
        &message[..message.len() - part.unwrap_or(0)]
    });
    for secret in request.secrets.values() {
        let text = String::from_utf8_lossy(secret.expose());
        // Characters that cannot be on one line are replaced by spaces.
        if text.is_empty() || text.contains(|c: char| c == ' ' || c.is_control()) {
            continue;
        }
        for part in cut.unwrap_or(message).split(MARK) {
            assert!(!part.contains(&*text), "{text:?} is in {part:?}");
        }
    }
}

struct Gossip(Vec<OsString>);

impl Gossip {
    /// Fails with everything there is to tell, or succeeds for a read-only volume.
    fn tell<T>(&self, volume: Option<&Volume>, all: String, done: T) -> Answer<T> {
        if volume.is_some_and(|volume| volume.read_only) {
            return Ok(done);
        }
        let error = Error::new(ErrorKind::Storage, all);
        Err(Failure::from(error.because(format!("{:?}", self.0))))
    }
}

impl Driver for Gossip {
    fn attach(&self, volume: &Volume, node: &str) -> Answer<String> {
        self.tell(Some(volume), format!("{volume:?}"), node.to_owned())
    }
    fn wait_for_attach(&self, device: &str, volume: &Volume) -> Answer<String> {
        self.tell(Some(volume), format!("{volume:?}"), device.to_owned())
    }
    fn is_attached(&self, volume: &Volume, _: &str) -> Answer<bool> {
        self.tell(Some(volume), format!("{volume:?}"), true)
    }
    fn detach(&self, name: &VolumeName, _: &str) -> Answer<()> {
        self.tell(None, name.to_string(), ())
    }
    fn mount_device(&self, dir: &Path, _: &str, volume: &Volume) -> Answer<()> {
        self.tell(Some(volume), dir.display().to_string(), ())
    }
    fn unmount_device(&self, dir: &Path) -> Answer<()> {
        self.tell(None, dir.display().to_string(), ())
    }
    fn mount(&self, request: &MountRequest) -> Answer<()> {
        let mut all = format!("{request:?} {:?}", self.0);
        for (key, secret) in &request.secrets {
            let text = String::from_utf8_lossy(secret.expose());
            all.push_str(&format!(" {key}={text} {text:?}"));
        }
        for argument in &self.0 {
            all.push_str(&argument.to_string_lossy());
        }
        self.tell(Some(&request.volume), all, ())
    }
    fn unmount(&self, dir: &Path) -> Answer<()> {
        self.tell(None, dir.display().to_string(), ())
    }
    fn expand_volume(
        &self,
        volume: &Volume,
        _: Option<&Path>,
        size: Resize,
    ) -> Answer<Option<Bytes>> {
        self.tell(Some(volume), format!("{volume:?}"), Some(size.new))
    }
    fn expand_fs(&self, volume: &Volume, _: &str, _: Option<&Path>, size: Resize) -> Answer<Bytes> {
        self.tell(Some(volume), format!("{volume:?}"), size.new)
    }
    fn provision(&self, volume: &Volume, size: Bytes) -> Answer<Provisioned> {
        let mut done = Provisioned::new(flexvol_sdk::Handle::from_bytes([7; 16]), size)
            .with_filesystem(volume.filesystem.clone());
        done.options = volume.options.clone().into();
        self.tell(Some(volume), format!("{volume:?}"), done)
    }
    fn delete(&self, volume: &Volume) -> Answer<()> {
        self.tell(Some(volume), format!("{volume:?}"), ())
    }
    fn capacity(&self, parameters: &Options) -> Answer<Capacity> {
        self.tell(None, format!("{parameters:?}"), Bytes(0).into())
    }
}
