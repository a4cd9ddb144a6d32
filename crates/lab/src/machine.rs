//! The verbs of `scripts/lab vm`.

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use flexvol_lab::vm::{Machine, ScriptOutput, Setup, directory, quoted};
use std::{
    env, fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// A machine's disks and files.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// A file that is the next of the four disks; it is made if missing, and kept
    #[arg(long, value_name = "FILE")]
    disk: Vec<PathBuf>,
    /// Record every write to the first disk in a file, as dm-log-writes does
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// A file or directory that is in the machine at the same path; executables without symbols
    #[arg(long, value_name = "PATH")]
    payload: Vec<PathBuf>,
    /// Boot instead of going on from the snapshot
    #[arg(long)]
    cold: bool,
}

/// What can be done with the virtual machine.
#[derive(Debug, Subcommand)]
pub enum Vm {
    /// Build the image and the snapshot, if they are not there
    Build,
    /// Run a script of bash or a command in a new machine; its exit status comes back
    Run {
        #[command(flatten)]
        arguments: MachineArgs,
        /// How long it may take
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        limit: u64,
        /// A file with a script, or a command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Have a look around in a new machine; it ends with the shell
    Shell(MachineArgs),
    /// Run the tests that need the machine, with a filter and flags of Rust's tests
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Remove images, snapshots and packages
    Clean,
}

impl Vm {
    /// Runs the verb. The exit status is that of the command in the machine.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Vm::Build => {
                let started = Instant::now();
                let place = env::temp_dir();
                let machine = Machine::restore(&Setup::new(&place))?;
                println!(
                    "ready after {:.1} s; kept in {}",
                    started.elapsed().as_secs_f64(),
                    directory()?.display()
                );
                machine.cut();
                Ok(ExitCode::SUCCESS)
            }
            Vm::Run {
                arguments,
                limit,
                command,
            } => {
                let script = script(&command)?;
                let mut machine = arguments.machine(false)?;
                let deadline = Instant::now() + Duration::from_secs(limit);
                let mut out = io::stdout().lock();
                machine.start(&script)?;
                let status = loop {
                    let left = deadline.saturating_duration_since(Instant::now());
                    match machine.next(left)? {
                        ScriptOutput::Line(line) => writeln!(out, "{line}").context("print")?,
                        ScriptOutput::End(status) => break status,
                    }
                };
                machine.shut_down()?;
                Ok(u8::try_from(status).unwrap_or(1).into())
            }
            Vm::Shell(arguments) => {
                let mut machine = arguments.machine(true)?;
                let size = "stty rows 40 columns 120 </dev/ttyS0";
                let shell = "setsid --ctty --wait bash -i </dev/ttyS0 >/dev/ttyS0 2>&1";
                println!("the machine's shell; `exit` ends the machine");
                let terminal = Terminal::raw()?;
                let ran = machine.run(&format!("{size}; {shell}"), Duration::MAX);
                drop(terminal);
                ran?;
                Ok(ExitCode::SUCCESS)
            }
            Vm::Test { flags } => {
                let mut cargo = Command::new("cargo");
                cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
                cargo
                    .args(["test", "--locked", "--test", "vm", "--"])
                    .args(flags);
                Err(cargo.exec()).context("run cargo")
            }
            Vm::Clean => {
                let all = directory()?;
                if all.exists() {
                    fs::remove_dir_all(&all)
                        .with_context(|| format!("remove {}", all.display()))?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl MachineArgs {
    fn machine(&self, terminal: bool) -> Result<Machine> {
        let mut setup = Setup::new(&env::temp_dir());
        ensure!(
            self.disk.len() <= flexvol_lab::vm::DISKS,
            "a machine has four disks"
        );
        for (at, file) in self.disk.iter().enumerate() {
            setup = setup.disk(at, file);
        }
        if let Some(log) = &self.record {
            setup = setup.record(0, log);
        }
        if terminal {
            setup = setup.on_the_terminal();
        }
        let mut machine = if self.cold {
            Machine::boot(&setup)?
        } else {
            Machine::restore(&setup)?
        };
        for path in &self.payload {
            let path = path
                .canonicalize()
                .with_context(|| format!("find {}", path.display()))?;
            let to = path.to_str().context("a path that is text")?;
            if is_executable(&path)? {
                machine.put_executable(&path, to)?;
            } else {
                machine.put(&path, to)?;
            }
        }
        Ok(machine)
    }
}

/// Whether a file can be stripped.
fn is_executable(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(bytes.starts_with(b"\x7fELF"))
}

/// Returns the script in a file, or the command as a script.
fn script(command: &[String]) -> Result<String> {
    let [program, arguments @ ..] = command else {
        bail!("name a script or a command");
    };
    if Path::new(program).is_file() && !is_executable(Path::new(program))? {
        let text = fs::read_to_string(program).with_context(|| format!("read {program}"))?;
        let arguments: Vec<_> = arguments.iter().map(|word| quoted(word)).collect();
        return Ok(format!("set -- {}\n{text}", arguments.join(" ")));
    }
    let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
    Ok(words.join(" "))
}

/// The terminal in raw mode, so that each key reaches the machine.
struct Terminal(String);

impl Terminal {
    fn raw() -> Result<Self> {
        let stty = |words: &[&str]| {
            let mut stty = Command::new("stty");
            let output = stty.args(words).stdin(Stdio::inherit()).output();
            let output = output.context("start stty")?;
            ensure!(output.status.success(), "standard input is no terminal");
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let before = stty(&["-g"])?;
        stty(&["raw", "-echo"])?;
        Ok(Terminal(before))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = Command::new("stty").arg(&self.0).status();
    }
}
