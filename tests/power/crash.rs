//! Crash images: the recorded disk after each write, and variants in which any part of the unflushed writes
//! was lost.

use crate::{
    HERE, NEEDS,
    check::Check,
    machine::{Backend, Keep},
    node::{Ground, Node},
    story::Story,
};
use flexvol_lab::vm::DISK_BYTES;
use flexvol_testing::{Points, Progress, Random, Replay, arena, budget, tests};
use nix::{
    errno::Errno,
    unistd::{Whence, lseek},
};
use std::{
    collections::{BTreeSet, HashSet},
    fmt::{self, Display, Formatter},
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    iter,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::PoisonError,
    thread,
    time::Instant,
};

// The longest test is first: those on this machine run beside it.
tests! {
    "lvm: an xfs volume survives a power cut after any write of its life", NEEDS
        => |points| in_machine(Backend::Lvm, "xfs", points);
    "an ext4 volume survives a power cut after any write of its life", NEEDS
        => |points| here("ext4", points);
    "an xfs volume survives a power cut after any write of its life", NEEDS
        => |points| here("xfs", points);
    "lvm: an ext4 volume survives a power cut after any write of its life", NEEDS
        => |points| in_machine(Backend::Lvm, "ext4", points);
}

/// Number of images per moment with a random part of the unflushed writes, besides the one with all. A machine
/// takes ten seconds for an image.
const TORN_HERE: u64 = 3;
const TORN_IN_MACHINE: u64 = 1;

/// Maximum number of images per pass in a run of hours, because each pass reports progress.
const LONG: usize = 40;

/// A moment, and one of its crash images.
type Cut = (usize, Surviving);

/// The unflushed writes that survive a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Surviving {
    All,
    /// A random part, with this number as seed.
    Some(u64),
    /// All but one of the two sectors of an ext4 volume's superblock. Hardly one in a thousand random images has this.
    AllButSectorOfSuperblock(u64),
}

impl Display for Surviving {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Surviving::All => f.write_str("with all that was written"),
            Surviving::Some(which) => write!(f, "image {which}"),
            Surviving::AllButSectorOfSuperblock(sector) => {
                write!(f, "without sector {sector} of its superblock")
            }
        }
    }
}

#[derive(Default)]
struct Tally {
    whole: u64,
    torn: u64,
    /// xfs file systems that became clean only by the driver's mount.
    mended: u64,
    plain: u64,
    unfinished: u64,
    lvm_was_torn: u64,
    torn_superblocks: u64,
    /// Hashes of the disks that were checked. Different cuts may leave identical disks.
    disks: HashSet<u64>,
}

impl Tally {
    fn images(&self) -> u64 {
        self.whole + self.torn + self.torn_superblocks
    }
}

/// Sectors are written atomically.
const SECTOR: u64 = 512;

/// Checks images of files on this machine.
fn here(filesystem: &'static str, points: &Points) {
    let _alone = HERE.lock().unwrap_or_else(PoisonError::into_inner);
    let story = Story::record(Backend::Loop, filesystem);
    let place = tempfile::tempdir_in(arena()).unwrap();
    let size = Size {
        pass: 24,
        torn: TORN_HERE,
        superblocks: true,
    };
    images(size, &story, place.path(), Node::here, points);
}

/// Checks images of logical volumes in a virtual machine, whose disk is replaced.
fn in_machine(backend: Backend, filesystem: &'static str, points: &Points) {
    let story = Story::record(backend, filesystem);
    let place = tempfile::tempdir_in(arena()).unwrap();
    let node = |disk: &Path| Node::in_machine(place.path(), &Keep::Disk(disk), backend);
    let size = Size {
        pass: 3,
        torn: TORN_IN_MACHINE,
        superblocks: budget().every_point,
    };
    images(size, &story, place.path(), node, points);
}

struct Size {
    /// Number of images in one pass over the log while time is limited: its moments are spread over the whole
    /// life.
    pass: usize,
    torn: u64,
    /// Whether each write of the superblock is torn.
    superblocks: bool,
}

fn images<G: Ground>(
    size: Size,
    story: &Story,
    place: &Path,
    node: impl FnOnce(&Path) -> Node<G>,
    points: &Points,
) {
    let image = place.join("image");
    let mut replay = Replay::new(&story.log, disk(&image));
    replay.advance(story.start).unwrap();
    replay.all(replay.durable()).unwrap();
    let mut check = Check::new(node(&image), &image, story);

    let mut random = Random::new(budget().seed);
    let mut cuts: Vec<Cut> = (story.start + 1..=story.log.len())
        .filter(|moment| story.log.changes_at(*moment))
        .flat_map(|moment| {
            let torn = (1..=size.torn).map(move |which| (moment, Surviving::Some(which)));
            iter::once((moment, Surviving::All)).chain(torn)
        })
        .collect();
    random.shuffle(&mut cuts);
    let superblocks = match size.superblocks {
        true => torn_superblocks(story),
        false => Vec::new(),
    };
    let all = cuts.len() + superblocks.len();
    let pass = if budget().every_point {
        LONG
    } else {
        size.pass
    };
    let name = format!("power cuts, {} on {}", story.filesystem, story.backend.on());
    let (mut tally, mut progress) = (Tally::default(), Progress::default());
    run(&superblocks, story, &mut check, place, &mut tally);
    let started = Instant::now();
    for pass in cuts.chunks_mut(pass) {
        if !budget().allows(started) {
            break;
        }
        pass.sort_unstable();
        run(pass, story, &mut check, place, &mut tally);
        progress.print(&name, tally.images(), all);
    }
    let Tally {
        whole,
        torn,
        mended,
        plain,
        unfinished,
        lvm_was_torn,
        torn_superblocks,
        disks,
    } = tally;
    let mut more = match story.filesystem {
        "ext4" => format!(", {torn_superblocks} with a torn superblock alone"),
        "xfs" => format!(
            ", {mended} of {plain} cut after the growth began were bad for xfs_repair until the driver's mount"
        ),
        _ => String::new(),
    };
    if story.backend != Backend::Loop {
        more += &format!(
            ", {unfinished} left storage of no volume to `gc`, in {lvm_was_torn} torn ones LVM could not read its own metadata"
        );
    }
    points.report(
        &name,
        whole + torn + torn_superblocks,
        all,
        &format!(
            "crash images: {whole} whole, {torn} torn, {} different{more}",
            disks.len()
        ),
    );
}

/// Passes once over the log and checks these cuts, which are sorted.
fn run<G: Ground>(
    cuts: &[Cut],
    story: &Story,
    check: &mut Check<G>,
    place: &Path,
    tally: &mut Tally,
) {
    let (durable, image) = (place.join("durable"), place.join("image"));
    let mut replay = Replay::new(&story.log, disk(&durable));
    for (moment, surviving) in cuts {
        replay.advance(*moment).unwrap();
        let copied = Command::new("cp").arg(&durable).arg(&image).status();
        assert!(copied.unwrap().success());
        let disk = File::options().write(true).open(&image).unwrap();
        let mut hasher = DefaultHasher::new();
        (moment, surviving).hash(&mut hasher);
        let mut random = Random::new(budget().seed ^ hasher.finish());
        match surviving {
            Surviving::All => {
                replay.all(&disk).unwrap();
                tally.whole += 1;
            }
            Surviving::Some(_) => {
                replay.some(&disk, &mut random).unwrap();
                tally.torn += 1;
            }
            Surviving::AllButSectorOfSuperblock(sector) => {
                let find = |to, data: &[u8]| Some(superblock(to, data)? + sector * SECTOR);
                assert!(replay.all_but_a_sector(&disk, find).unwrap());
                tally.torn_superblocks += 1;
            }
        }
        drop(disk);
        if !tally.disks.insert(content(&image)) {
            continue;
        }
        let plainly = random.below(2) == 0;
        let when = format!(
            "{} on {}, cut after write {moment} of {}, {surviving}",
            story.filesystem,
            story.backend.on(),
            story.log.len()
        );
        let kept = KeptOnFailure::new(&image, story, *moment, *surviving);
        let seen = check.check(story, plainly, &when);
        drop(kept);
        tally.plain += u64::from(seen.plain);
        assert!(
            *surviving != Surviving::All || !seen.lvm_was_torn,
            "{when}: LVM cannot read what it wrote"
        );
        tally.lvm_was_torn += u64::from(seen.lvm_was_torn);
        tally.unfinished += u64::from(seen.unfinished);
        tally.mended += u64::from(seen.xfs_was_bad);
    }
}

/// Torn writes of the superblock of a volume's ext4: right after the write, and when everything until the next flush
/// was written.
fn torn_superblocks(story: &Story) -> Vec<Cut> {
    let is_superblock = |to, data: &[u8]| superblock(to, data).is_some();
    let writes = story.log.writes(is_superblock).unwrap();
    let moments = writes.iter().flat_map(|number| {
        // A write with FUA is not torn, and the next flush may be the one of the write itself.
        [number + 1, story.log.flush_after(*number)]
    });
    let moments: BTreeSet<usize> = moments.filter(|moment| *moment > story.start).collect();
    let torn = moments.iter().flat_map(|moment| {
        [0, 1].map(|sector| (*moment, Surviving::AllButSectorOfSuperblock(sector)))
    });
    torn.collect()
}

/// Offset in a write of a superblock of ext4, except that of the disk's own file system.
fn superblock(to: u64, data: &[u8]) -> Option<u64> {
    const BLOCK: usize = 4096;
    const SUPERBLOCK: usize = 1024;
    const MAGIC: usize = SUPERBLOCK + 0x38;
    let mut blocks = data.chunks_exact(BLOCK);
    let is_one = |block: &[u8]| block[MAGIC..MAGIC + 2] == [0x53, 0xef];
    let number = blocks.position(is_one)?;
    (to > 0 || number > 0).then(|| u64::try_from(number * BLOCK + SUPERBLOCK).unwrap())
}

/// Hashes the content of a disk. Holes count as zeros.
fn content(image: &Path) -> u64 {
    const BLOCK: usize = 4096;
    let disk = File::open(image).unwrap();
    let mut hasher = DefaultHasher::new();
    let mut block = [0; BLOCK];
    let (mut from, mut to) = (0, 0);
    loop {
        if from >= to {
            match lseek(&disk, from, Whence::SeekData) {
                Err(Errno::ENXIO) => return hasher.finish(),
                found => from = found.unwrap(),
            }
            to = lseek(&disk, from, Whence::SeekHole).unwrap();
        }
        disk.read_exact_at(&mut block, from.cast_unsigned())
            .unwrap();
        if block != [0; BLOCK] {
            (from, block).hash(&mut hasher);
        }
        from += 4096;
    }
}

/// Keeps the image after a power cut, as it was before the driver saw it, if its check fails.
struct KeptOnFailure(PathBuf);

impl KeptOnFailure {
    fn new(image: &Path, story: &Story, moment: usize, surviving: Surviving) -> Self {
        let name = format!(
            "power-cut-{:?}-{}-{moment}-{}.img",
            story.backend,
            story.filesystem,
            surviving.to_string().replace(' ', "-")
        );
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let copied = Command::new("cp").arg(image).arg(&kept).status();
        assert!(copied.unwrap().success());
        KeptOnFailure(kept)
    }
}

impl Drop for KeptOnFailure {
    #[expect(clippy::print_stderr, reason = "beside what the failed check says")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the image is kept in {}", self.0.display());
        } else {
            fs::remove_file(&self.0).unwrap();
        }
    }
}

fn disk(path: &Path) -> File {
    let mut options = File::options();
    let disk = options.read(true).write(true).create(true).truncate(true);
    let disk = disk.open(path).unwrap();
    disk.set_len(DISK_BYTES).unwrap();
    disk
}
