//! The process of the virtual machine: qemu without KVM. It always has the same devices, because a snapshot can only be
//! restored with these.

use super::image::Image;
use anyhow::{Context, Result};
use std::{
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Sender, channel},
    },
    thread,
};

const QEMU: &str = "qemu-system-x86_64";

/// Number of disks: `/dev/vda` and so on.
pub const DISKS: usize = 4;

/// Size of each disk in bytes.
pub const DISK_BYTES: u64 = 2 << 30;

/// Maximum size in bytes of a file copied into the machine, by way of an additional disk.
pub const PAYLOAD_BYTES: u64 = 1 << 30;

/// Memory of the machine. It uses little: its root takes about 70 MiB.
const MEMORY: &str = "1G";

/// Kernel command line. `quiet` still prints warnings on the console. Without RDRAND the kernel would wait for
/// randomness. On a busy machine the emulated timer can be too late for the kernel's test, which ends in a panic. qemu
/// caches translated code by address, so with address randomisation starting a process takes three times as long.
const KERNEL_LINE: &str = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check nowatchdog norandmaps";
const PROCESSOR: &str = "qemu64,+rdrand";

/// One disk of a machine.
#[derive(Clone, Debug)]
pub struct Disk {
    pub file: PathBuf,
    /// File in which every write is recorded.
    pub log: Option<PathBuf>,
}

/// The machine's first console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// The file `console` in the machine's directory.
    File,
    /// This process' terminal.
    Terminal,
}

/// Parameters of a machine's start.
#[derive(Debug)]
pub struct Start<'a> {
    pub image: &'a Image,
    /// Additions to the kernel command line.
    pub words: &'a str,
    /// Directory of the machine's sockets.
    pub directory: &'a Path,
    pub disks: &'a [Disk],
    pub console: Console,
    /// Saved state to restore.
    pub state: Option<&'a Path>,
}

impl Start<'_> {
    /// Starts qemu. The kernel kills it when this process ends in any way.
    pub fn spawn(&self) -> Result<Child> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", QEMU]);
        command.args(["-machine", "pc", "-accel", "tcg,thread=multi"]);
        command.args(["-cpu", PROCESSOR, "-smp", "1", "-m", MEMORY]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-append"]);
        command.arg(format!("{KERNEL_LINE} {}", self.words));
        command.arg("-kernel").arg(&self.image.kernel);
        command.arg("-initrd").arg(&self.image.root);
        for (at, disk) in self.disks.iter().enumerate() {
            let device = format!("virtio-blk-pci,drive=disk{at},serial=disk{at},write-cache=on");
            for node in disk.nodes(at) {
                command.arg("-blockdev").arg(node);
            }
            command.arg("-device").arg(device);
        }
        let socket = |id: &str| {
            let path = self.directory.join(id);
            format!("socket,id={id},path={},server=on,wait=off", comma(&path))
        };
        command.args(["-device", "virtio-serial-pci,max_ports=2"]);
        command.arg("-chardev").arg(socket("channel"));
        command.args(["-device", "virtserialport,chardev=channel,name=lab"]);
        command.arg("-chardev").arg(socket("monitor"));
        command.args(["-mon", "chardev=monitor,mode=control"]);
        let console = match self.console {
            Console::File => {
                let file = self.directory.join("console");
                format!("file,id=console,path={}", comma(&file))
            }
            Console::Terminal => "stdio,id=console,signal=off".to_owned(),
        };
        command.arg("-chardev").arg(console);
        command.args(["-serial", "chardev:console"]);
        if let Some(state) = self.state {
            // A shell runs the text after `exec:`.
            let quoted = state.display().to_string().replace('\'', r"'\''");
            command.args(["-incoming", &format!("exec:cat '{quoted}'")]);
        }
        let errors = std::fs::File::create(self.directory.join("errors"))
            .context("make the file for qemu's words")?;
        if self.console == Console::File {
            command.stdin(Stdio::null());
            command.stdout(
                errors
                    .try_clone()
                    .context("share the file for qemu's words")?,
            );
        }
        command.stderr(errors);
        spawn(command).context("start qemu (package qemu-system-x86)")
    }
}

impl Disk {
    /// Returns qemu's description of the disk; the last node is the device's.
    fn nodes(&self, at: usize) -> Vec<String> {
        let file = format!("file.driver=file,file.filename={}", comma(&self.file));
        let Some(log) = &self.log else {
            // No flushes: tests never cut the host's power, and its disk may be busy for minutes.
            return vec![format!(
                "driver=raw,node-name=disk{at},{file},discard=unmap,cache.no-flush=on"
            )];
        };
        vec![
            format!("driver=raw,node-name=file{at},{file},discard=unmap"),
            format!("driver=file,node-name=log{at},filename={}", comma(log)),
            format!(
                "driver=blklogwrites,node-name=disk{at},file=file{at},log=log{at},log-sector-size=512,log-super-update-interval=1"
            ),
        ]
    }
}

/// Doubles commas, as qemu's options require.
fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Returns qemu's version. A state can only be restored by the same version.
pub fn version() -> Result<String> {
    let output = Command::new(QEMU).arg("--version").output();
    let output = output.context("start qemu (package qemu-system-x86)")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

type Request = (Command, Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process: the parent-death signal is sent when the *thread*
/// that started the process ends.
fn spawn(command: Command) -> io::Result<Child> {
    static NURSERY: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let (sender, requests) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in requests {
                // If nobody receives the answer, the requester has ended.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, child) = channel();
    let sent = nursery
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer));
    sent.map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}
