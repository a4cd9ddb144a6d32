//! Mounting, looking at and growing volumes, compared with programs that make the same system calls.

use super::{
    Bench, MEBI,
    programs::{Cost, Line, line},
    series::Series,
};
use flexvol_testing::{PersistentVolume, Pod};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

const SAFE: &[&str] = &["-DSAFE"];

impl Bench {
    /// Mounts and unmounts a formatted volume.
    pub fn mounting(&self) {
        let volume = self.volume("mounting");
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        pod.unmount().success();
        let [image, dir, lock] = self.paths(&volume, &pod);
        let programs = [("raw", &[][..]), ("safe", SAFE)].map(|(label, flags)| {
            let build = |source| {
                self.programs
                    .build(source, &format!("{source}-{label}"), flags)
            };
            (build("loop_mount"), build("loop_unmount"))
        });
        let [raw, safe] = &programs;
        // The commands of a script. The loop device goes with the mount.
        let tools = format!("mount -t xfs -o loop,nosuid,nodev {image} {dir} && umount {dir}");
        let lines = [
            line("driver-mount", &self.argv(&pod.mount_arguments("rw"))),
            line(
                "driver-unmount",
                &self.argv(&["unmount".to_owned(), dir.clone()]),
            ),
            line("raw-mount", &[&raw.0, &image, "xfs", &dir, &lock]),
            line("raw-unmount", &[&raw.1, &dir, &lock]),
            line("safe-mount", &[&safe.0, &image, "xfs", &dir, &lock]),
            line("safe-unmount", &[&safe.1, &dir, &lock]),
            line("tools", &["/bin/sh", "-c", &tools]),
        ];
        let costs = self.programs.run(100, &lines, false);
        let both = |whose: &str| {
            let [mount, unmount] =
                ["mount", "unmount"].map(|what| &costs[&format!("{whose}-{what}")]);
            Cost {
                cpu: &mount.cpu + &unmount.cpu,
                elapsed: &mount.elapsed + &unmount.elapsed,
                faults: &mount.faults + &unmount.faults,
            }
        };
        let driver = both("driver");
        let what = "mount + unmount";
        self.compare(
            what,
            "C, the same system calls",
            &driver,
            &both("raw"),
            Some(1.6),
        );
        self.compare(
            what,
            "C that is safe, too",
            &driver,
            &both("safe"),
            Some(1.35),
        );
        self.count_faults(what, &driver, &both("raw"), 3.6);
        self.compare(what, "mount and umount", &driver, &costs["tools"], None);
        fs::remove_dir(pod.dir()).unwrap();
        self.delete(&volume);
    }

    /// Callouts that are repeated: the volume is mounted, and has its size.
    pub fn repeating(&self) {
        let volume = self.volume("repeating");
        let pod = self.pod(&volume);
        pod.mount("rw").success();
        let [image, dir, lock] = self.paths(&volume, &pod);
        let look = self.programs.build("loop_look", "loop_look", &[]);
        let device = loop_of(Path::new(&image));
        let size = 300 * MEBI;
        let lines = [
            line("driver-mount", &self.argv(&pod.mount_arguments("rw"))),
            line(
                "driver-expandfs",
                &self.argv(&pod.expand_arguments(size, size)),
            ),
            line("look", &[&look, &image, "xfs", &device, &dir, &lock]),
        ];
        let costs = self.programs.run(100, &lines, false);
        for (what, label) in [
            ("mount when mounted", "driver-mount"),
            ("expandfs when grown", "driver-expandfs"),
        ] {
            self.compare(
                what,
                "C that is safe",
                &costs[label],
                &costs["look"],
                Some(1.5),
            );
        }
        pod.unmount().success();
        self.delete(&volume);
    }

    /// Grows four mounted volumes step by step, each in another way.
    pub fn growing(&self) {
        const STEPS: u64 = 20;
        let names = ["grow-driver", "grow-raw", "grow-safe", "grow-tools"];
        let volumes = names.map(|name| self.volume(name));
        let pods = volumes.each_ref().map(|volume| self.pod(volume));
        for pod in &pods {
            pod.mount("rw").success();
        }
        let paths: [_; 4] = std::array::from_fn(|at| self.paths(&volumes[at], &pods[at]));
        let devices = paths
            .each_ref()
            .map(|[image, ..]| loop_of(Path::new(image)));
        let raw = self.programs.build("xfs_grow", "xfs_grow", &[]);
        let safe = self.programs.build("xfs_grow", "xfs_grow_safe", SAFE);
        let mut lines: Vec<Line<'_>> = Vec::new();
        for step in 1..=STEPS {
            let bytes = (300 + 16 * step) * MEBI;
            let size = bytes.to_string();
            lines.push(line(
                "driver",
                &self.argv(&pods[0].expand_arguments(bytes, bytes - 16 * MEBI)),
            ));
            for (at, label, program) in [(1, "raw", &raw), (2, "safe", &safe)] {
                let [image, dir, lock] = &paths[at];
                lines.push(line(
                    label,
                    &[program, image, &devices[at], dir, &size, lock],
                ));
            }
            let ([image, dir, _], device) = (&paths[3], &devices[3]);
            let tools =
                format!("truncate -s {size} {image} && losetup -c {device} && xfs_growfs -d {dir}");
            lines.push(line("tools", &["/bin/sh", "-c", &tools]));
        }
        let costs = self.programs.run(1, &lines, false);
        let driver = &costs["driver"];
        let what = "expandfs, xfs";
        self.compare(
            what,
            "C, the same system calls",
            driver,
            &costs["raw"],
            Some(1.8),
        );
        self.compare(
            what,
            "C that is safe, too",
            driver,
            &costs["safe"],
            Some(1.5),
        );
        self.count_faults(what, driver, &costs["safe"], 2.4);
        self.compare(
            what,
            "truncate, losetup, xfs_growfs",
            driver,
            &costs["tools"],
            None,
        );
        for pod in &pods {
            pod.unmount().success();
        }
        volumes.iter().for_each(|volume| self.delete(volume));
    }

    /// The same callouts with 1, 100 and 1,000 volumes mounted on the node.
    pub fn many_volumes(&self) {
        let probe = self.volume("probe");
        let pod = self.pod(&probe);
        pod.mount("rw").success();
        pod.unmount().success();
        let mut others: Vec<PersistentVolume> = Vec::new();
        let mut first: Option<[Series; 3]> = None;
        for count in [1, 100, 1000] {
            while others.len() + 1 < count {
                let name = format!("other-{}", others.len());
                let other = PersistentVolume::provision(&self.driver, &name, "ext4", 16 * MEBI);
                self.pod(&other).mount("rw").success();
                others.push(other);
            }
            let mount = self.argv(&pod.mount_arguments("rw"));
            let dir = pod.dir().to_str().unwrap().to_owned();
            let lines = [
                line("mount", &mount),
                line("again", &mount),
                line("unmount", &self.argv(&["unmount".to_owned(), dir])),
            ];
            let costs = self.programs.run(40, &lines, false);
            let all = ["mount", "again", "unmount"].map(|label| costs[label].cpu.clone());
            let ones = first.get_or_insert_with(|| all.clone());
            for (at, what) in ["mount", "mount again", "unmount"].iter().enumerate() {
                let what = format!("{what}, µs: {count} volumes against 1");
                self.table.row(&what, &all[at], &ones[at], Some(2.0));
            }
        }
        for other in &others {
            self.pod(other).unmount().success();
            self.delete(other);
        }
        fs::remove_dir(pod.dir()).unwrap();
        self.delete(&probe);
    }

    /// The image, the pod's directory, and a lock's file for another program.
    fn paths(&self, volume: &PersistentVolume, pod: &Pod<'_>) -> [String; 3] {
        let image = volume.image(&self.sandbox);
        let lock = self.sandbox.path("lock-of-c");
        [&image, pod.dir(), &lock].map(|path| path.to_str().unwrap().to_owned())
    }

    /// Processor time with a budget, and the time that a caller waits.
    fn compare(&self, what: &str, other: &str, driver: &Cost, theirs: &Cost, budget: Option<f64>) {
        self.table.row(
            &format!("{what}, µs: {other}"),
            &driver.cpu,
            &theirs.cpu,
            budget,
        );
        self.table
            .row("  elapsed", &driver.elapsed, &theirs.elapsed, None);
    }

    fn count_faults(&self, what: &str, driver: &Cost, theirs: &Cost, budget: f64) {
        let (driver, theirs) = (driver.faults.median(), theirs.faults.median());
        self.table.count(
            &format!("{what}, page faults: the same"),
            driver,
            theirs,
            budget,
        );
    }
}

/// The loop device of an image, according to losetup.
fn loop_of(image: &Path) -> String {
    let output = Command::new("losetup")
        .args(["-n", "-O", "NAME", "-j"])
        .arg(image)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
