//! How `flexvol_sdk::run` manages its process, seen from outside. The misbehaving driver is this test's own
//! executable under another name.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the double prints where no driver should"
)]

use flexvol_sdk::{Answer, Capabilities, Driver, run};
use flexvol_testing::{Points, tests};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    env, fs,
    io::Read,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

tests! {
    "sdk: what a driver prints never reaches the reply" => prints_stay_away;
    "sdk: a panic is one line of Failure" => a_panic_is_a_failure;
    "sdk: closed descriptors change nothing" => closed_descriptors;
    "sdk: a child that lives on does not hold the caller" => a_child_holds_nothing;
    "sdk: what a driver creates is for root alone" => files_are_private;
    "sdk: SIGTERM answers Failure within seconds" => sigterm_is_answered;
    "sdk: SIGTERM lets a short callout end by itself" => sigterm_leaves_time;
}

const NAME: &str = "misbehaving-driver";
const SUCCESS: &[u8] = b"{\"status\":\"Success\"}\n";

/// Runs the driver if this process was started under its name.
pub fn double() -> Option<ExitCode> {
    let program = env::args_os().next()?;
    (Path::new(&program).file_name()? == NAME)
        .then(|| run(Capabilities::default(), &|| Ok(Box::new(Misbehaving))))
}

struct Misbehaving;

impl Driver for Misbehaving {
    /// The last component of the directory selects the misbehaviour.
    fn unmount(&self, dir: &Path) -> Answer<()> {
        let misbehaviour = dir.file_name().and_then(|name| name.to_str());
        match misbehaviour.unwrap_or_default() {
            "print" => {
                println!("to standard output");
                eprintln!("to standard error");
                let mut child = Command::new("/bin/sh");
                child.args(["-c", "echo out; echo error >&2"]);
                assert!(child.status().is_ok_and(|status| status.success()));
            }
            "panic" => panic!("the driver panicked\non two lines"),
            "spawn" => drop(Command::new("/bin/sleep").arg("5").spawn()),
            "create" => {
                fs::create_dir(dir).expect("create the directory");
                fs::write(dir.join("file"), "").expect("create the file");
            }
            "hang" => wait(dir, Duration::from_secs(60)),
            "dawdle" => wait(dir, Duration::from_secs(1)),
            other => panic!("no such misbehaviour: {other}"),
        }
        Ok(())
    }
}

/// Tells the test that the driver's own code has begun, and sleeps.
fn wait(begun: &Path, time: Duration) {
    fs::write(begun, "").expect("tell that it has begun");
    thread::sleep(time);
}

/// A directory with the driver in it.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let executable = env::current_exe().expect("this executable");
        symlink(executable, dir.path().join(NAME)).expect("a link to it");
        Installed(dir)
    }

    fn driver(&self) -> flexvol_testing::Driver {
        flexvol_testing::Driver::new("test/misbehaving-driver", self.0.path().join(NAME))
    }

    fn unmount(&self, misbehaviour: &str) -> [String; 2] {
        let dir = self.0.path().join(misbehaviour);
        ["unmount".to_owned(), dir.display().to_string()]
    }

    /// Sends SIGTERM when the driver's own code runs. Returns the reply, the exit code, and the time from the
    /// signal to the end.
    fn terminate(&self, misbehaviour: &str) -> (String, Option<i32>, Duration) {
        let argv = self.unmount(misbehaviour);
        let mut child = Command::new(self.0.path().join(NAME))
            .args(&argv)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the driver");
        while !Path::new(&argv[1]).exists() {
            assert_eq!(child.try_wait().expect("its state"), None, "it ended early");
            thread::sleep(Duration::from_millis(5));
        }
        let pid = i32::try_from(child.id()).expect("a process id");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("send the signal");
        let sent = Instant::now();
        let mut reply = String::new();
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_to_string(&mut reply).expect("the reply");
        let status = child.wait().expect("its end");
        (reply, status.code(), sent.elapsed())
    }
}

fn prints_stay_away(_: &Points) {
    let installed = Installed::new();
    let call = installed.driver().call(&installed.unmount("print"));
    assert_eq!(call.output, SUCCESS, "{call}");
}

fn a_panic_is_a_failure(_: &Points) {
    let installed = Installed::new();
    let message = installed
        .driver()
        .call(&installed.unmount("panic"))
        .failure();
    assert!(message.starts_with("the driver panicked"), "{message}");
    assert!(!message.contains("two lines"), "{message}");
}

fn closed_descriptors(points: &Points) {
    let installed = Installed::new();
    let driver = installed.driver();
    for (closed, output) in [
        ("<&-", SUCCESS),
        ("2>&-", SUCCESS),
        ("<&- 2>&-", SUCCESS),
        (">&-", b""),
        ("<&- >&- 2>&-", b""),
    ] {
        let script = format!("exec \"$@\" {closed}");
        let through = ["/bin/sh", "-c", &script, "sh"];
        let call = driver.call_through(&through, &installed.unmount("print"));
        assert_eq!(
            (call.output.as_slice(), call.exit),
            (output, Some(0)),
            "{closed}: {call}"
        );
        let init = driver.call_through(&through, &["init"]);
        assert_eq!(
            init.output.is_empty(),
            output.is_empty(),
            "{closed}: {init}"
        );
        points.add(2);
    }
}

fn a_child_holds_nothing(_: &Points) {
    let installed = Installed::new();
    let call = installed
        .driver()
        .call(&installed.unmount("spawn"))
        .success();
    assert!(call.took < Duration::from_secs(3), "{call}");
}

fn files_are_private(_: &Points) {
    let installed = Installed::new();
    let argv = installed.unmount("create");
    installed.driver().call(&argv).success();
    let mode = |path: &Path| {
        fs::metadata(path)
            .expect("what it made")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(Path::new(&argv[1])), 0o700);
    assert_eq!(mode(&Path::new(&argv[1]).join("file")), 0o600);
}

fn sigterm_is_answered(_: &Points) {
    let (reply, exit, took) = Installed::new().terminate("hang");
    assert!(
        reply.starts_with(r#"{"status":"Failure","message":"the driver was told to stop"#),
        "{reply}"
    );
    assert!(
        reply.ends_with("\"errorClass\":\"uncertain\"}\n"),
        "{reply}"
    );
    assert_eq!(exit, Some(1));
    assert!(took < Duration::from_secs(8), "{took:?}");
}

fn sigterm_leaves_time(_: &Points) {
    let (reply, exit, _) = Installed::new().terminate("dawdle");
    assert_eq!((reply.as_bytes(), exit), (SUCCESS, Some(0)));
}
