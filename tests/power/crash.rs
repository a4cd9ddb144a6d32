//! Crash images: the recorded disk after each write, and variants in which any part of the unflushed writes
//! was lost.

use crate::{
    HERE, NEEDS,
    check::Check,
    cut::{Cut, Surviving},
    machine::{Backend, Keep},
    node::{Ground, Node},
    story::Story,
    superblock::{self, BLOCK},
};
use flexvol_lab::vm::DISK_BYTES;
use flexvol_testing::{Points, Progress, Random, Replay, arena, budget, tests};
use nix::{
    errno::Errno,
    unistd::{Whence, lseek},
};
use std::{
    collections::HashSet,
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
    lost_blocks: u64,
    /// Hashes of the disks that were checked. Different cuts may leave identical disks.
    disks: HashSet<u64>,
}

impl Tally {
    fn images(&self) -> u64 {
        self.whole + self.torn + self.torn_superblocks + self.lost_blocks
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
        true => superblock::cuts(story),
        false => Vec::new(),
    };
    let pass = if budget().every_point {
        LONG
    } else {
        size.pass
    };
    let name = format!("power cuts, {} on {}", story.filesystem, story.backend.on());
    let (mut tally, mut progress) = (Tally::default(), Progress::default());
    run(&superblocks, story, &mut check, place, &mut tally);
    let all = cuts.len() + usize::try_from(tally.images()).unwrap();
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
        lost_blocks,
        disks,
    } = tally;
    let mut more = match story.filesystem {
        "ext4" => format!(
            ", {torn_superblocks} with a torn superblock alone, {lost_blocks} without it or without its descriptors"
        ),
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
        whole + torn + torn_superblocks + lost_blocks,
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
                let find = |to, data: &[u8]| Some(superblock::of_ext4(to, data)? + sector * SECTOR);
                assert!(replay.all_but_a_sector(&disk, find).unwrap());
                tally.torn_superblocks += 1;
            }
            Surviving::AllButBlock(block) => {
                let from = superblock::beginning(story).unwrap() + block * BLOCK;
                if !replay.all_but_range(&disk, &(from..from + BLOCK)).unwrap() {
                    continue;
                }
                tally.lost_blocks += 1;
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
