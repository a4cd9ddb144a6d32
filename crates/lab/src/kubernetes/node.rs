//! The node: a process tree with its own namespaces for mounts, processes, network and host name. When its first
//! process ends, the kernel ends all others. That is how the node is rebooted, and why it leaves nothing behind.

use super::{
    command::run,
    data_disk,
    paths::{ADDRESS, Home, KEPT, KUBECONFIG, PROGRAMS, RUN, SERVICE},
};
use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{Signal, kill},
        wait::wait,
    },
    unistd::{Pid, sethostname, setsid},
};
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{self, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Host name, and name of the node in Kubernetes.
pub const NAME: &str = "node";

/// Sysctls that kubelet would otherwise set for the whole host (`setupKernelTunables` in
/// `pkg/kubelet/cm/container_manager_linux.go`). It finds them set already.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Message of the first process when the node is ready for others.
const READY: &str = "ready";

/// A running node.
#[derive(Debug)]
pub struct Node {
    init: Pid,
    /// The node ends when this pipe is closed.
    _lifeline: Option<ChildStdin>,
}

/// Lifetime of a node that is not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLifetime {
    /// Until the process that started it ends, even if that is killed.
    ThisProcessEnds,
    /// Until it is stopped.
    TakenDown,
}

impl Node {
    /// Boots a node: starts its first process, with its namespaces, mounts and network.
    ///
    /// `executable` is the one whose `init` verb calls [`become_init`].
    ///
    /// # Errors
    /// When the kernel refuses, or a node of this home runs already.
    pub fn boot(
        executable: &Path,
        home: &Home,
        programs: &Path,
        lifetime: NodeLifetime,
    ) -> Result<Self> {
        ensure!(Node::of(home)?.is_none(), "the node runs already");
        let log = fs::File::create(home.own("init.log")).context("make the node's log")?;
        let mut init = Command::new(executable)
            .arg("init")
            .args([home.path(), programs])
            .stdin(match lifetime {
                NodeLifetime::ThisProcessEnds => Stdio::piped(),
                NodeLifetime::TakenDown => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("start the node's first process")?;
        // Keeps the pipe open; waiting for the process would close it.
        let lifeline = init.stdin.take();
        let mut first_line = String::new();
        let out = init.stdout.take().context("hear the first process")?;
        BufReader::new(out)
            .read_line(&mut first_line)
            .context("hear the first process")?;
        let pid: i32 = first_line.trim().parse().map_err(|_| {
            let log = fs::read_to_string(home.own("init.log")).unwrap_or_default();
            anyhow::anyhow!("the node did not start: {}", log.trim())
        })?;
        init.wait()
            .context("wait for the process that starts the node")?;
        fs::write(home.own("init.pid"), format!("{pid}\n")).context("note the node's process")?;
        Ok(Node {
            init: Pid::from_raw(pid),
            _lifeline: lifeline,
        })
    }

    /// Returns the running node of a home.
    ///
    /// # Errors
    /// When the recorded process id is malformed.
    pub fn of(home: &Home) -> Result<Option<Self>> {
        let Ok(noted) = fs::read_to_string(home.own("init.pid")) else {
            return Ok(None);
        };
        let pid: i32 = noted
            .trim()
            .parse()
            .context("read the number of the node's process")?;
        // Process ids are reused, so check that it is the first process of this home's node.
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<_> = arguments.split(|byte| *byte == 0).skip(1).collect();
        let own = [b"init", home.path().as_os_str().as_encoded_bytes()];
        Ok(arguments.starts_with(&own).then(|| Node {
            init: Pid::from_raw(pid),
            _lifeline: None,
        }))
    }

    /// Returns the host's path of a file in the node.
    #[must_use]
    pub fn path(&self, in_node: &str) -> PathBuf {
        Path::new("/proc")
            .join(self.init.to_string())
            .join("root")
            .join(in_node.trim_start_matches('/'))
    }

    /// Returns the node's mount table.
    ///
    /// # Errors
    /// When the node has ended.
    pub fn mountinfo(&self) -> Result<Vec<u8>> {
        fs::read(format!("/proc/{}/mountinfo", self.init)).context("read the node's mounts")
    }

    /// Returns a command that runs in the node, where kubectl is the administrator.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.enter(&[]);
        command.arg(program).env("KUBECONFIG", KUBECONFIG);
        command
    }

    fn enter(&self, more: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string()]);
        command.args(["--mount", "--pid", "--net", "--ipc", "--uts", "--wd=/"]);
        command.args(more).arg("--").stdin(Stdio::null());
        command
    }

    /// Starts a long-running program. Its output goes to `/var/log/<name>.log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, name: &str, program: &str, arguments: &[String]) -> Result<()> {
        let script = format!(
            "echo $$ >{RUN}/{name}.pid.new && mv {RUN}/{name}.pid.new {RUN}/{name}.pid && exec \"$@\" >>/var/log/{name}.log 2>&1"
        );
        let noted = self.path(&format!("{RUN}/{name}.pid"));
        match fs::remove_file(&noted) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context("forget the former process");
            }
            _ => {}
        }
        let mut command = self.enter(&["--no-fork"]);
        command.args(["setsid", "--fork", "sh", "-c", &script, name, program]);
        command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        run(&mut command).with_context(|| format!("start {name}"))?;
        wait_until(&format!("{name} to start"), Duration::from_secs(30), || {
            Ok(noted.exists())
        })
    }

    /// Returns the process id, in the node, of a program started by [`Node::start`], while it runs.
    #[must_use]
    pub fn running(&self, name: &str) -> Option<i32> {
        let noted = fs::read_to_string(self.path(&format!("{RUN}/{name}.pid"))).ok()?;
        let pid: i32 = noted.trim().parse().ok()?;
        let status = fs::read_to_string(self.path(&format!("/proc/{pid}/stat"))).ok()?;
        (!is_dead(&status)).then_some(pid)
    }

    /// Sends a signal to a program started by [`Node::start`] and waits until it ends.
    ///
    /// # Errors
    /// When it has not ended after 30 seconds.
    pub fn stop(&self, name: &str, signal: Signal) -> Result<()> {
        let Some(pid) = self.running(name) else {
            return Ok(());
        };
        run(self.command("/bin/kill").args([
            "-s",
            signal.as_str().trim_start_matches("SIG"),
            &pid.to_string(),
        ]))?;
        wait_until(&format!("{name} to end"), Duration::from_secs(30), || {
            Ok(self.running(name).is_none())
        })
    }

    /// Kills everything in the node at once, like a power cut, and waits until it has ended.
    ///
    /// # Errors
    /// When it has not ended after 30 seconds.
    pub fn cut_power(&self) -> Result<()> {
        match kill(self.init, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("end the node"),
        }
        let status = format!("/proc/{}/stat", self.init);
        // The first process becomes a zombie once all other processes of the node are gone.
        wait_until("the node to end", Duration::from_secs(30), || {
            Ok(fs::read_to_string(&status).map_or(true, |status| is_dead(&status)))
        })
    }
}

/// Whether a process has ended, according to its `/proc/PID/stat`.
fn is_dead(status: &str) -> bool {
    let rest = status.rsplit_once(") ");
    rest.is_some_and(|(_, state)| state.starts_with('Z'))
}

/// Polls until a condition holds. The pause is twice the duration of a check, so that slow checks, such as those with
/// kubectl, leave processor time to the node.
///
/// # Errors
/// When the time is over, with the description; and any error of a check.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut question: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let asked = Instant::now();
        if question()? {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("waited {} s for {what}", limit.as_secs());
        }
        let pause = asked.elapsed() * 2;
        thread::sleep(pause.clamp(Duration::from_millis(50), Duration::from_secs(1)));
    }
}

/// Creates the namespaces of a node and, in them, its first process, which stays; prints its process id.
///
/// # Errors
/// When the kernel refuses, which it does without root.
pub fn become_init(home: &Path, programs: &Path, stage: Option<&str>) -> Result<()> {
    if stage.is_none() {
        let all = CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS;
        unshare(all).context("leave the machine's namespaces")?;
        let mut first = Command::new("/proc/self/exe")
            .arg("init")
            .args([home, programs])
            .arg("first")
            .stdout(Stdio::piped())
            .spawn()
            .context("start the first process")?;
        let mut first_line = String::new();
        let out = first.stdout.take().context("hear the first process")?;
        BufReader::new(out)
            .read_line(&mut first_line)
            .context("hear the first process")?;
        ensure!(first_line.trim() == READY, "the first process ended early");
        return writeln!(std::io::stdout(), "{}", first.id()).context("tell the number");
    }
    setsid().context("leave the terminal")?;
    furnish(&Home::at(home), programs)?;
    writeln!(std::io::stdout(), "{READY}").context("tell that the node is ready")?;
    end_with_parent();
    loop {
        // The first process adopts and reaps orphans.
        if wait() == Err(Errno::ECHILD) {
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Ends this process, and thereby the node, when the process that started it closes the pipe or is killed.
fn end_with_parent() {
    let is_pipe = fs::metadata("/proc/self/fd/0").is_ok_and(|stdin| stdin.file_type().is_fifo());
    if is_pipe {
        thread::spawn(|| {
            // Nothing is ever written to the pipe.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            process::exit(0);
        });
    }
}

/// Sets up the node's mounts, name and network.
fn furnish(home: &Home, programs: &Path) -> Result<()> {
    let none = None::<&str>;
    let all =
        |kind| mount(none, "/", none, MsFlags::MS_REC | kind, none).context("separate the mounts");
    all(MsFlags::MS_PRIVATE)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        flags | MsFlags::MS_NOEXEC,
        none,
    )
    .context("mount /proc")?;
    mount(
        Some("tmpfs"),
        "/run",
        Some("tmpfs"),
        flags,
        Some("mode=0755"),
    )
    .context("mount /run")?;
    fs::create_dir(RUN).context("make a directory in /run")?;
    let bind = |from: &Path, to: &str| {
        mount(Some(from), to, none, MsFlags::MS_BIND, none).with_context(|| format!("bind {to}"))
    };
    for kept in KEPT {
        fs::create_dir_all(kept.place).with_context(|| format!("make {}", kept.place))?;
        bind(&home.kept(kept), kept.place)?;
    }
    bind(programs, PROGRAMS)?;
    data_disk::mount(home)?;
    let settings = Path::new(RUN).join("settings");
    fs::create_dir(&settings).context("make a directory in /run")?;
    for (name, value) in SETTINGS {
        let file = settings.join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n")).context("write a setting of the kernel's")?;
        bind(&file, &format!("/proc/sys/{name}"))?;
    }
    // Mounts of the driver propagate to containers only if mounts are shared, as systemd makes them.
    all(MsFlags::MS_SHARED)?;
    sethostname(NAME).context("name the node")?;
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    for address in [ADDRESS, SERVICE] {
        let address = format!("{address}/32");
        run(Command::new("ip").args(["address", "add", &address, "dev", "lo"]))?;
    }
    Ok(())
}
