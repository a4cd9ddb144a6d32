//! A complete FlexVolume driver whose volumes are images (option `image`) with xfs, for tests of `flexvol-sanity`.
//!
//! `.broken` beside the executable lists faults of real drivers, and words of `variants.rs`, which are no faults;
//! without a fault the driver is correct. `.state` beside the executable leads to the directory of its records.
//! `broken faults` prints all faults.
#![forbid(unsafe_code)]

mod attach;
mod faults;
mod grow;
mod mount;
mod node;
mod provision;
mod variants;
mod volume;

use faults::{FAULTS, Fault, Mode};
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, OFlag, fcntl};
use serde_json::{Value, json};
use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};
use variants::Variant;

/// The driver, as it was called.
struct Driver {
    faults: Vec<Fault>,
    variants: Vec<Variant>,
    attached: bool,
    /// The directory of the executable, with links unresolved.
    beside: PathBuf,
    state: PathBuf,
}

/// Fields of the reply besides its status.
type Answer = Result<Value, Stop>;

/// The reason why a callout does not succeed.
#[derive(Debug)]
enum Stop {
    Failure(String),
    NotSupported,
    /// An unhandled error: text for users, and no reply.
    Panic(String),
}

fn stop(what: &str, error: &dyn std::fmt::Display) -> Stop {
    Stop::Failure(format!("{what}: {error}"))
}

fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes)?;
    out.flush()
}

/// The message of expandfs if nothing was to do, in which most faults of the output occur.
const THERE: &str = "the volume has that size";

/// Number of the backend's sessions.
const SLOTS: usize = 12;

fn main() -> ExitCode {
    let mut words = env::args();
    let executable = words.next().unwrap_or_default();
    let words: Vec<String> = words.collect();
    if words == ["faults"] {
        for (_, name, mode, check, bug) in FAULTS {
            let mode = format!("{mode:?}").to_lowercase();
            if print(&format!("{name}\t{mode}\t{check}\t{bug}\n")).is_err() {
                return ExitCode::FAILURE;
            }
        }
        return ExitCode::SUCCESS;
    }
    match Driver::new(Path::new(&executable)) {
        Ok(driver) => driver.run(&words),
        Err(words) => {
            let reply = json!({ "status": "Failure", "message": words });
            match print(&format!("{reply}\n")) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
    }
}

impl Driver {
    fn new(executable: &Path) -> Result<Self, String> {
        let beside = executable.parent().unwrap_or(Path::new("/")).to_owned();
        let text = match fs::read_to_string(beside.join(".broken")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("read .broken: {error}")),
        };
        let mut driver = Driver {
            faults: Vec::new(),
            variants: Vec::new(),
            attached: false,
            state: beside.join(".state"),
            beside,
        };
        for word in text.split_whitespace() {
            if let Some(variant) = Variant::of(word) {
                driver.attached |= variant.attaches();
                driver.variants.push(variant);
                continue;
            }
            let known = FAULTS.iter().find(|(_, name, ..)| *name == word);
            let (fault, _, mode, ..) = known.ok_or(format!("there is no fault {word}"))?;
            driver.attached |= *mode == Mode::Attached;
            driver.faults.push(*fault);
        }
        Ok(driver)
    }

    fn run(&self, words: &[String]) -> ExitCode {
        if words.is_empty() && self.has(Fault::UsageWithoutArguments) {
            return exit(print("usage: broken CALLOUT ...\n"), 2);
        }
        let slot = match self.slot() {
            Ok(slot) => slot,
            Err(_) => return ExitCode::FAILURE,
        };
        let answer = self.answer(words);
        drop(slot);
        let callout = words.first().map_or("", String::as_str);
        let (status, members) = match answer {
            Ok(members) => ("Success", members),
            Err(Stop::NotSupported) => ("Not supported", json!({})),
            Err(Stop::Panic(words)) => {
                let written = io::stderr().write_all(format!("panic: {words}\n").as_bytes());
                return exit(written, 2);
            }
            Err(Stop::Failure(message)) => {
                let expanding = callout == "expandfs";
                let message = if self.has(Fault::FailsWithoutWords) && expanding {
                    String::new()
                } else if self.has(Fault::DumpsArguments) && expanding {
                    format!("{message}: {words:?}{:300}", "")
                } else {
                    message
                };
                let word = if self.has(Fault::SaysFailed) {
                    "Failed"
                } else {
                    "Failure"
                };
                (word, json!({ "message": message }))
            }
        };
        let there = members["message"] == THERE;
        let mut reply = json!({ "status": status });
        if let (Value::Object(reply), Value::Object(members)) = (&mut reply, members) {
            reply.extend(members);
        }
        let code = u8::from(
            status.starts_with("Fail") && self.has(Fault::ExitsOneAfterFailure)
                || there && self.has(Fault::ExitsOneAfterSuccess),
        );
        let written = if there {
            self.reply_wrongly(reply)
        } else if self.has(Fault::EndsWithoutLine) {
            print(&reply.to_string())
        } else {
            print(&format!("{reply}\n"))
        };
        exit(written, code)
    }

    /// Writes the reply, with any faults of a reply.
    fn reply_wrongly(&self, mut reply: Value) -> io::Result<()> {
        if self.has(Fault::QuotesNumbers) {
            reply["volumeNewSize"] = reply["volumeNewSize"].to_string().into();
        }
        if self.has(Fault::ForeignEncoding) {
            reply["message"] = "Gr??e".into();
        }
        let mut bytes = format!("{reply}\n").into_bytes();
        for byte in bytes.iter_mut().filter(|byte| **byte == b'?') {
            *byte = 0xf6;
        }
        print_bytes(&bytes)?;
        if self.has(Fault::AnswersTwice) {
            print_bytes(&bytes)?;
        }
        if self.has(Fault::WarnsOnStderr) {
            io::stderr().write_all(b"File descriptor 3 (pipe:[1]) leaked on invocation.\n")?;
        }
        if self.has(Fault::LeavesAChild) {
            // The child is left to the process that adopts it.
            drop(
                Command::new("sleep")
                    .arg("2")
                    .stdin(Stdio::null())
                    .spawn()?,
            );
        }
        Ok(())
    }

    /// Takes one of the backend's sessions.
    fn slot(&self) -> Result<Option<Flock<File>>, Stop> {
        if !self.has(Fault::RunsOutOfSlots) {
            return Ok(None);
        }
        for slot in 0..SLOTS {
            let path = self.record("slot", Path::new(&slot.to_string()))?;
            let file = File::create(path).map_err(|e| stop("open a session", &e))?;
            if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                return Ok(Some(lock));
            }
        }
        Err(Stop::Failure("there are no more sessions".to_owned()))
    }

    fn answer(&self, words: &[String]) -> Answer {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((callout, arguments)) = words.split_first() else {
            return Err(Stop::Failure("there is no callout".to_owned()));
        };
        self.environment(callout)?;
        if self.has(Fault::IndexesArguments) && *callout == "expandfs" && arguments.len() < 5 {
            return Err(Stop::Panic("index out of range".to_owned()));
        }
        let plain = !self.attached || self.is(Variant::ThreeStages);
        let staged = self.attached && !self.is(Variant::LeavesMounting);
        let attached = self.attached;
        match (*callout, arguments) {
            ("expandvolume" | "expandfs", _) if self.is(Variant::FixedSize) => {
                Err(Stop::NotSupported)
            }
            ("init", []) => self.init(),
            ("getvolumename", [options]) => self.name(options),
            ("mount", [target, options]) if plain => self.mount(target, options, ""),
            ("unmount", [target]) if plain => self.unmount(target),
            ("mountdevice", [target, device, options]) if staged => {
                self.mount(target, options, device)
            }
            ("unmountdevice", [target]) if staged => self.unmount(target),
            ("attach", [options, node]) if attached => self.attach(options, node),
            ("waitforattach", [device, options]) if attached => self.waitforattach(device, options),
            ("isattached", [options, node]) if attached => self.isattached(options, node),
            ("detach", [name, node]) if attached => self.detach(name, node),
            ("expandvolume", [options, _, new, old]) => self.expandvolume(options, [new, old]),
            ("expandfs", [options, device, target, new, old]) => {
                self.expandfs(options, device, target, [new, old])
            }
            ("provision", [options]) => self.provision(options),
            ("delete", [options]) => self.delete(options),
            ("capacity", [options]) => self.capacity(options),
            ("init" | "getvolumename" | "expandvolume" | "expandfs", _) => self.miscounted(callout),
            ("provision" | "delete" | "capacity", _) => self.miscounted(callout),
            ("mount" | "unmount", _) if plain => self.miscounted(callout),
            ("mountdevice" | "unmountdevice", _) if staged => self.miscounted(callout),
            ("attach" | "waitforattach" | "isattached" | "detach", _) if attached => {
                self.miscounted(callout)
            }
            _ if self.has(Fault::InvalidCommand) && *callout == "sanity-unknown" => {
                Err(Stop::Failure("invalid command".to_owned()))
            }
            _ => Err(Stop::NotSupported),
        }
    }

    fn miscounted(&self, callout: &str) -> Answer {
        let more = env::args()
            .next_back()
            .is_some_and(|last| last == "sanity-extra");
        if self.has(Fault::UsageForOneMore) && more {
            return Err(Stop::Panic(format!("usage: broken {callout} ...")));
        }
        Err(Stop::Failure(format!(
            "{callout} has another number of arguments"
        )))
    }

    fn init(&self) -> Answer {
        if self.has(Fault::MapInMemory) {
            // A restart of kubelet, which calls `init`, loses the map.
            let _ = fs::remove_dir_all(self.state.join("known"));
        }
        if self.has(Fault::InitWritesBeside) {
            let log = format!(".init-{}.log", std::process::id());
            fs::write(self.beside.join(log), "init\n").map_err(|e| stop("write the log", &e))?;
        }
        if self.has(Fault::InitWritesTheSame) {
            fs::write(self.beside.join(".init.log"), "init\n")
                .map_err(|e| stop("write the log", &e))?;
        }
        if self.has(Fault::InitListens) {
            listen().map_err(|e| stop("start the daemon", &e))?;
        }
        if self.has(Fault::NullCapabilities) {
            return Ok(json!({ "capabilities": null }));
        }
        if self.has(Fault::TellsTwoCapabilities) {
            return Ok(json!({ "capabilities": { "attach": false, "fsGroup": false } }));
        }
        let mut reply = json!({ "capabilities": {
            "attach": self.attached, "selinuxRelabel": false, "supportsMetrics": true,
            "fsGroup": self.attached, "requiresFSResize": !self.is(Variant::FixedSize),
            "concurrentFSResize": !self.is(Variant::FixedSize),
        } });
        if self.has(Fault::InitTellsItsProcess) {
            reply["message"] = format!("ready, process {}", std::process::id()).into();
        }
        Ok(reply)
    }

    fn name(&self, options: &str) -> Answer {
        let options = self.options(options)?;
        let image = options.get("image").and_then(Value::as_str);
        let is_there = self.has_image(&options);
        if self.has(Fault::NameNeedsTheVolume) && !is_there {
            return Err(Stop::Failure("the backend has no such volume".to_owned()));
        }
        if self.has(Fault::SometimesNotSupported) && !is_there {
            return Err(Stop::NotSupported);
        }
        let name = options
            .get("kubernetes.io/pvOrVolumeName")
            .and_then(Value::as_str)
            .or(image)
            .unwrap_or("unnamed");
        let name = if self.has(Fault::OneNameForAll) {
            "volume"
        } else {
            name
        };
        Ok(json!({ "volumeName": name }))
    }

    /// Fails if the environment lacks what a faulty driver needs.
    fn environment(&self, callout: &str) -> Result<(), Stop> {
        // If a descriptor was closed, the standard library opened /dev/null for reading and writing.
        let opened = fcntl(io::stdin(), FcntlArg::F_GETFL).map(OFlag::from_bits_truncate);
        let closed = opened.is_ok_and(|flags| flags.contains(OFlag::O_RDWR));
        if self.has(Fault::ReadsInput) && closed {
            return Err(Stop::Failure(
                "read standard input: it is closed".to_owned(),
            ));
        }
        if self.has(Fault::NeedsTheLog) && callout == "unmount" {
            self.log_at_the_node()?;
        }
        Ok(())
    }

    /// Creates and removes a file in the node's log directory.
    fn log_at_the_node(&self) -> Result<(), Stop> {
        let log = format!("/var/log/.broken-{}.log", std::process::id());
        File::create(&log)
            .and_then(|_| fs::remove_file(&log))
            .map_err(|e| stop("open the log", &e))
    }
}

/// Starts a short-lived daemon, which inherits a socket from this process.
fn listen() -> io::Result<()> {
    let socket = TcpListener::bind("127.0.0.1:0")?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty()))?;
    // The child is left to the process that adopts it.
    let daemon = Command::new("sleep")
        .arg("2")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    drop(daemon);
    Ok(())
}

fn exit(written: io::Result<()>, code: u8) -> ExitCode {
    if written.is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::from(code)
}
