//! Properties of the virtual machine itself, and faults that the host causes.

use crate::{NEEDS, guest::image_of};
use flexvol_lab::vm::{DISK_BYTES, Machine, ScriptOutput, Setup};
use flexvol_testing::{Points, arena, tests};
use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

tests! {
    "machines that are restored do not repeat each other's random numbers", NEEDS => random_numbers;
    "what was synced is on the disks after a reset in the middle of writing", NEEDS => reset;
    "every write to a recorded disk is in the record", NEEDS => recorded;
    "files go into the machine and come back as they are", NEEDS => files;
    "a machine ends with the process that started it, however that ends", NEEDS => ends;
    "a machine that boots is as one that is restored", NEEDS => boots;
}

const LIMIT: Duration = Duration::from_secs(120);

fn restore() -> Machine {
    Machine::restore(&Setup::new(&arena())).unwrap()
}

fn run(machine: &mut Machine, script: &str) -> String {
    machine.run(script, LIMIT).unwrap().success().unwrap()
}

fn random_numbers(_: &Points) {
    let draw = || {
        let script = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid";
        run(&mut restore(), script)
    };
    let (one, other) = (draw(), draw());
    for (one, other) in one.lines().zip(other.lines()) {
        assert_ne!(one, other);
    }
    assert_eq!((one.lines().count(), other.lines().count()), (2, 2));
}

fn reset(_: &Points) {
    let place = tempfile::tempdir_in(arena()).unwrap();
    let setup = Setup::new(place.path()).disk(0, &place.path().join("disk"));
    let mut machine = Machine::restore(&setup).unwrap();
    run(
        &mut machine,
        "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && echo kept >/mnt/synced && sync",
    );
    machine
        .start("while true; do date >>/mnt/file; sync /mnt/file; echo again; done")
        .unwrap();
    for _ in 0..3 {
        assert_eq!(
            machine.next(LIMIT).unwrap(),
            ScriptOutput::Line("again".to_owned())
        );
    }
    machine.cut();
    let mut machine = Machine::restore(&setup).unwrap();
    let script = "mount /dev/vda /mnt && cat /mnt/synced && wc -l </mnt/file";
    let found = run(&mut machine, script);
    let (synced, lines) = found.trim().split_once('\n').unwrap();
    assert_eq!(synced, "kept");
    assert!(lines.parse::<u32>().unwrap() >= 3, "{lines} lines");
    assert_eq!(
        run(
            &mut machine,
            "umount /mnt && e2fsck -fn /dev/vda >/dev/null 2>&1 && echo clean"
        ),
        "clean\n"
    );
    machine.shut_down().unwrap();
}

fn recorded(_: &Points) {
    let place = tempfile::tempdir_in(arena()).unwrap();
    let (disk, log) = (place.path().join("disk"), place.path().join("log"));
    let setup = Setup::new(place.path()).disk(0, &disk).record(0, &log);
    let mut machine = Machine::restore(&setup).unwrap();
    run(
        &mut machine,
        "yes recorded | head -c 4096 | dd of=/dev/vda bs=4k seek=5 oflag=direct conv=fsync status=none",
    );
    machine.cut();
    let pattern = "recorded\n".repeat(456);
    let pattern = &pattern.as_bytes()[..4096];
    let log = fs::read(log).unwrap();
    // The first sector: magic number, version, number of entries (drivers/md/dm-log-writes.c).
    let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
    assert_eq!(number(0), 0x006a_7366_7773_6872, "the magic number");
    assert!(number(16) >= 1, "no entries");
    // The first entry: sector, sectors, flags, bytes; the next sector has the written data.
    assert_eq!((number(512), number(520)), (5 * 8, 8));
    assert_eq!(&log[1024..][..4096], pattern);
    let disk = File::open(disk).unwrap();
    let mut found = vec![0; 4096];
    disk.read_exact_at(&mut found, 5 * 4096).unwrap();
    assert_eq!(found, pattern);
    assert_eq!(disk.metadata().unwrap().len(), DISK_BYTES);
}

fn files(_: &Points) {
    let place = tempfile::tempdir_in(arena()).unwrap();
    let mut bytes = vec![0; 3 << 20];
    let mut source = File::open("/dev/urandom").unwrap();
    source.read_exact(&mut bytes).unwrap();
    // An unaligned length, and bytes that look like the end of a script.
    bytes.extend_from_slice(b"\n0 0\n");
    let mut machine = restore();
    for (name, bytes) in [("long", &bytes[..]), ("empty", b"")] {
        let (there, back) = (place.path().join(name), place.path().join("back"));
        fs::write(&there, bytes).unwrap();
        machine.put(&there, "/srv/with 'quotes'/file").unwrap();
        machine.get("/srv/with 'quotes'/file", &back).unwrap();
        assert!(fs::read(&back).unwrap() == bytes, "{name}");
        fs::remove_file(&back).unwrap();
    }
    machine.put(place.path(), "/srv/copy").unwrap();
    let images = tempfile::tempdir_in(arena()).unwrap();
    let image = images.path().join("image");
    image_of(place.path(), &image, 16);
    machine.mount(&image, "/srv/image").unwrap();
    machine
        .put(&place.path().join("long"), "/srv/long")
        .unwrap();
    run(
        &mut machine,
        "cmp /srv/image/long /srv/long && cmp /srv/copy/long /srv/long",
    );
    assert_eq!(run(&mut machine, "ls /srv/copy"), "empty\nlong\n");
}

fn boots(_: &Points) {
    let look = |machine: &mut Machine| {
        let script =
            "uname -r; grep CapEff /proc/self/status; ls /dev/vd? | wc -l; cat /proc/misc | wc -l";
        run(machine, script)
    };
    let mut booted = Machine::boot(&Setup::new(&arena())).unwrap();
    assert_eq!(look(&mut booted), look(&mut restore()));
}

/// Directory in which this process must start a machine and wait, if it is a child of [`ends`].
pub fn place_of_held() -> Option<PathBuf> {
    let mut arguments = env::args().skip(1);
    (arguments.next()? == "--hold-a-machine").then(|| PathBuf::from(arguments.next().unwrap()))
}

pub fn hold(place: &Path) -> ExitCode {
    let machine = Machine::restore(&Setup::new(place)).unwrap();
    println!("{}", machine.process());
    loop {
        thread::park();
    }
}

fn ends(_: &Points) {
    let place = tempfile::tempdir_in(arena()).unwrap();
    let mut holder = Command::new(env::current_exe().unwrap())
        .arg("--hold-a-machine")
        .arg(place.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let said = holder.stdout.take().unwrap();
    BufReader::new(said).read_line(&mut line).unwrap();
    let process = Path::new("/proc").join(line.trim());
    let name = || fs::read_to_string(process.join("comm")).unwrap_or_default();
    assert!(
        name().starts_with("qemu"),
        "process {}: {}",
        line.trim(),
        name()
    );
    // SIGKILL cannot be handled.
    holder.kill().unwrap();
    holder.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while name().starts_with("qemu") {
        assert!(Instant::now() < deadline, "the machine goes on");
        thread::sleep(Duration::from_millis(10));
    }
}
