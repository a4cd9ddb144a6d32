//! The ground in a virtual machine. Its first disk has the pool, and behind it a diary.

use crate::{
    executable,
    node::{Ground, Node, fsck},
};
use flexvol_lab::vm::{Machine, Outcome, Setup};
use std::{path::Path, time::Duration};

/// Timeout of everything in the machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Index of the disk with the pool.
const DISK: usize = 0;

/// The pool ends before this byte of its disk, and the diary begins here.
pub const DIARY: u64 = 1920 << 20;

/// The kind of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Files on an ext4.
    Loop,
    /// Logical volumes.
    Lvm,
}

/// What is kept of the disk: the log of its writes, or the disk itself.
pub enum Keep<'a> {
    /// The disk.
    Disk(&'a Path),
    /// A log of all writes to it.
    Log(&'a Path),
}

pub struct There {
    machine: Machine,
    backend: Backend,
    remembered: String,
}

impl Backend {
    /// Name of the backend in reports.
    pub fn on(self) -> &'static str {
        match self {
            Backend::Loop => "a pool on ext4",
            Backend::Lvm => "a volume group",
        }
    }

    fn configuration(self) -> &'static str {
        match self {
            Backend::Loop => r#"backend = "loop"\n[pools.default]\npath = "/disk/pool"\n"#,
            Backend::Lvm => r#"backend = "lvm"\n[pools.default]\ngroup = "vg0"\n"#,
        }
    }

    /// Makes an empty pool on the disk.
    fn make(self) -> String {
        let kibibytes = DIARY >> 10;
        match self {
            Backend::Loop => format!(
                "mkfs.ext4 -q -F -m0 -E nodiscard /dev/vda {kibibytes}k && mount /dev/vda /disk && \
                 mkdir /disk/pool && /opt/flexvol pool init /disk/pool"
            ),
            Backend::Lvm => format!(
                "pvcreate -qq -y --setphysicalvolumesize {kibibytes}k /dev/vda && \
                 vgcreate -qq vg0 /dev/vda && /opt/flexvol pool init --group vg0"
            ),
        }
    }
}

impl Node<There> {
    /// A machine with a driver and an empty pool on its disk.
    pub fn with_pool(place: &Path, keep: &Keep<'_>, backend: Backend) -> Self {
        let mut node = Node::in_machine(place, keep, backend);
        node.run(&backend.make());
        node
    }

    /// A machine with a driver, whose disk may have any content.
    pub fn in_machine(place: &Path, keep: &Keep<'_>, backend: Backend) -> Self {
        let setup = Setup::new(place);
        let setup = match keep {
            Keep::Disk(disk) => setup.disk(DISK, disk),
            Keep::Log(log) => setup.record(DISK, log),
        };
        let mut machine = Machine::restore(&setup).unwrap();
        let driver = machine.put_executable(&executable(), "/opt/flexvol");
        driver.unwrap();
        let mut node = Node {
            ground: There {
                machine,
                backend,
                remembered: String::new(),
            },
        };
        node.run(&format!(
            "mkdir -p /disk /plugins /kubelet && printf '{}' >/config && \
             /opt/flexvol install --name example.com/power --plugin-dir /plugins --config /config",
            backend.configuration()
        ));
        node
    }

    /// Begins a call without waiting for its end.
    pub fn begin(&mut self, arguments: &[&str]) {
        let line = self.line(arguments);
        self.ground.machine.start(&line).unwrap();
    }

    /// Writes an entry of the diary, after everything that it states. It flushes nothing, so it is on the disk
    /// only if everything flushed before it is too.
    pub fn note(&mut self, number: usize) {
        let at = DIARY / 512 + u64::try_from(number).unwrap();
        self.run(&format!(
            "printf '%-512s' '{}' | dd of=/dev/vda bs=512 seek={at} oflag=direct \
             iflag=fullblock conv=notrunc status=none",
            entry(number).trim_end()
        ));
    }

    pub fn cut(self) {
        self.ground.machine.cut();
    }
}

impl There {
    #[track_caller]
    fn must(&mut self, script: &str) -> String {
        self.run(script).success().unwrap()
    }

    /// Everything that a callout can leave on the disk and in the kernel. Promised space in /run is released by
    /// the next boot or by `gc`.
    fn inventory(&mut self) -> String {
        let pool = match self.backend {
            Backend::Loop => "find /disk/pool -printf '%y %s\\n' | sort; stat -f -c '%f %d' /disk",
            Backend::Lvm => {
                "lvs -a --noheadings -o lv_name,lv_size,lv_attr,lv_tags,vg_free_count,vg_tags vg0
                 dmsetup info -c --noheadings -o name,open,suspended | sort"
            }
        };
        self.must(&format!(
            "{pool}
             losetup -a; grep -E ' /(kubelet|disk)' /proc/mounts; true"
        ))
    }
}

impl Ground for There {
    fn run(&mut self, script: &str) -> Outcome {
        self.machine.run(script, LIMIT).unwrap()
    }

    fn driver(&self) -> String {
        "/plugins/example.com~power/power".to_owned()
    }

    fn kubelet(&self) -> String {
        "/kubelet".to_owned()
    }

    fn storage(&self, volume: &str) -> String {
        match self.backend {
            Backend::Loop => format!("/disk/pool/volumes/{volume}"),
            Backend::Lvm => format!("/dev/vg0/flexvol-{volume}"),
        }
    }

    fn insert_disk(&mut self) -> Result<(), String> {
        // A boot clears /run, and with it promised space.
        self.must("rm -rf /run/flexvol /run/lvm && blockdev --flushbufs /dev/vda");
        if self.backend == Backend::Loop {
            self.must("mount /dev/vda /disk");
            return Ok(());
        }
        let active = self.run("vgchange -qq -ay vg0");
        match active.output.contains("Checksum error on /dev/vda") {
            true => Err(active.output),
            false => {
                assert_eq!(active.status, 0, "{}", active.output);
                Ok(())
            }
        }
    }

    fn take_out_disk(&mut self) {
        let check = match self.backend {
            Backend::Loop => format!("umount /disk && {}", fsck("ext4", "/dev/vda")),
            Backend::Lvm => "vgck vg0 && vgchange -qq -an vg0".to_owned(),
        };
        self.must(&check);
    }

    fn remember(&mut self) {
        self.remembered = self.inventory();
    }

    fn expect_as_remembered(&mut self, when: &str) {
        assert_eq!(self.inventory(), self.remembered, "{when}");
    }
}

/// The beginning of the diary's sectors.
pub fn entry(number: usize) -> String {
    format!("entry {number} ")
}
