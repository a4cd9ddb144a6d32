use super::*;
use crate::{Answer, Driver, ErrorKind, MountRequest, Result, Volume, step};
use std::{os::unix::net::UnixDatagram, path::Path, time::Duration};

const SECRET: &str = r#"{"kubernetes.io/secret/key":"aHVudGVyMg=="}"#;

struct Disk;

impl Driver for Disk {
    fn mount(&self, request: &MountRequest) -> Answer<()> {
        let secret = str::from_utf8(request.secrets["key"].expose()).unwrap_or_default();
        let error = Error::new(ErrorKind::Denied, format!("the server refused {secret}"));
        Err(error.because(format!("login {secret} at 10.0.0.1")).into())
    }

    fn unmount(&self, _: &Path) -> Answer<()> {
        step("unmount");
        Ok(())
    }

    fn is_attached(&self, _: &Volume, _: &str) -> Answer<bool> {
        Ok(true)
    }

    fn delete(&self, _: &Volume) -> Answer<()> {
        Err(Error::new(ErrorKind::Bug, "the driver lost its mind")
            .because("age")
            .into())
    }
}

fn open() -> Result<Box<dyn Driver>> {
    Ok(Box::new(Disk))
}

/// Runs one exec and returns its exit code and output.
fn exec(program: &Program, log: &Log, argv: &[&str]) -> (u8, String) {
    let arguments: Vec<OsString> = argv.iter().map(Into::into).collect();
    let mut output = Vec::new();
    let code = program.run_in(
        &mut Environment {
            program: "disk",
            arguments: &arguments,
            output: &mut output,
            clock: &|| SystemTime::UNIX_EPOCH + Duration::from_secs(1),
            log,
        },
        &open,
    );
    (code.unwrap(), String::from_utf8(output).unwrap())
}

fn program() -> Program {
    Program::new(Capabilities::default())
}

#[test]
fn a_failure_shows_no_secret_and_names_the_log_that_has_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journald");
    let daemon = UnixDatagram::bind(&path).unwrap();
    let log = Log::at(path.display().to_string(), "");
    let (code, output) = exec(&program(), &log, &["mount", "/d", SECRET]);
    let mut event = vec![0; 64 << 10];
    let length = daemon.recv(&mut event).unwrap();
    let event = String::from_utf8_lossy(&event[..length]).into_owned();
    let id = event
        .split("FLEXVOL_ID=")
        .nth(1)
        .unwrap()
        .split('\n')
        .next()
        .unwrap();
    assert_eq!(
        output,
        format!(
            "{{\"status\":\"Failure\",\"message\":\"the server refused [secret] (log id {id})\",\"errorClass\":\"infeasible\"}}\n"
        )
    );
    assert!(
        event.contains("MESSAGE=mount: the server refused [secret]: login [secret] at 10.0.0.1\n")
    );
    assert_eq!(code, 0, "kubelet logs the arguments on any other code");

    exec(&program(), &log, &["unmount", "/d/v"]);
    let mut event = vec![0; 64 << 10];
    let length = daemon.recv(&mut event).unwrap();
    let event = String::from_utf8_lossy(&event[..length]).into_owned();
    assert!(
        event.contains("FLEXVOL_STEPS=unmount\nFLEXVOL_OUTCOME=Success\n"),
        "{event}"
    );
    assert!(event.contains("FLEXVOL_VOLUME=v\n"), "{event}");
}

#[test]
fn a_secret_is_one_in_every_way_that_json_can_be_written() {
    let json = SECRET.replace('/', "\\/").replace("aHV", "\\u0061HV");
    let (_, output) = exec(&program(), &Log::nowhere(), &["mount", "/d", &json]);
    assert!(output.contains("the server refused [secret]\""), "{output}");
}

#[test]
fn what_is_asked_all_the_time_is_not_logged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journald");
    let daemon = UnixDatagram::bind(&path).unwrap();
    daemon.set_nonblocking(true).unwrap();
    let log = Log::at(path.display().to_string(), "");
    for argv in [
        &["init"][..],
        &["getvolumename", "{}"],
        &["isattached", "{}", "node"],
    ] {
        exec(&program(), &log, argv);
    }
    assert!(daemon.recv(&mut [0]).is_err());
    exec(&program(), &log, &["isattached", "{}", "-"]);
    assert!(daemon.recv(&mut [0]).is_ok());
}

#[test]
fn without_a_log_no_id_is_promised() {
    let (code, output) = exec(&program(), &Log::nowhere(), &["delete", "{}"]);
    assert_eq!(
        output,
        "{\"status\":\"Failure\",\"message\":\"the driver lost its mind\",\"errorClass\":\"retryable\"}\n"
    );
    assert_eq!(code, 1);
}

#[test]
fn init_prints_the_prepared_line_if_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".disk.init");
    let program = program().init_line(&path);
    let own = exec(&program, &Log::nowhere(), &["init"]);
    assert_eq!(
        own.1,
        DriverStatus::initialized(Capabilities::default()).to_line()
    );
    for spoilt in [
        "",
        "{}",
        "{\"status\":\"Success\",}",
        "x\n{\"status\":\"Success\",}\n",
    ] {
        fs::write(&path, spoilt).unwrap();
        assert_eq!(
            exec(&program, &Log::nowhere(), &["init"]),
            own,
            "{spoilt:?}"
        );
    }
    let local = Capabilities {
        attach: false,
        ..Capabilities::default()
    };
    let line = DriverStatus::initialized(local).to_line();
    fs::write(&path, &line).unwrap();
    assert_eq!(exec(&program, &Log::nowhere(), &["init"]), (0, line));
}
