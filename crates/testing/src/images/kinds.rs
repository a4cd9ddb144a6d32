//! Kinds of non-blank images: nine made by the real tools, the others from documentation of their formats.

use super::Content;
use crate::Random;
use std::{fs::File, path::Path, process::Command};

/// Origin of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Made by the format's own program.
    Tool(&'static str),
    /// Magic numbers at their places, with adjacent fields that readers check.
    Documented,
}

/// A kind of non-blank image.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Name of the format.
    pub name: &'static str,
    /// Origin of the image.
    pub origin: Origin,
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    Run {
        arguments: &'static [&'static str],
        mebibytes: u64,
    },
    Places(&'static [(i64, &'static [u8])]),
    Random,
    Byte(u64),
}

/// Size of documented images. Small, because each is hashed twice as a whole.
const SIZE: u64 = 3 << 20;

impl Kind {
    /// Makes an image. A tool works on a file at `scratch`, which must not exist yet.
    ///
    /// # Panics
    /// When the tool fails.
    #[must_use]
    pub fn make(&self, scratch: &Path) -> Content {
        match (self.make, self.origin) {
            (
                Make::Run {
                    arguments,
                    mebibytes,
                },
                Origin::Tool(program),
            ) => by_tool(program, arguments, mebibytes, scratch),
            (Make::Places(places), _) => {
                let content = places.iter().map(|(place, bytes)| {
                    let from_end = SIZE - place.unsigned_abs();
                    let offset = u64::try_from(*place).unwrap_or(from_end);
                    (offset, bytes)
                });
                let mut content: Vec<_> = content.collect();
                content.sort_by_key(|(offset, _)| *offset);
                let new = Content::new(SIZE);
                content
                    .into_iter()
                    .fold(new, |image, (offset, bytes)| image.with(offset, bytes))
            }
            (Make::Byte(offset), _) => Content::new(SIZE).with(offset, b"\x01"),
            _ => {
                let mut random = Random::new(1);
                let bytes: Vec<_> = (0..8 << 10)
                    .flat_map(|_| random.bits().to_le_bytes())
                    .collect();
                Content::new(SIZE).with(0, &bytes)
            }
        }
    }
}

fn by_tool(program: &str, arguments: &[&str], mebibytes: u64, scratch: &Path) -> Content {
    let file = File::create_new(scratch).expect("make the tool's image");
    file.set_len(mebibytes << 20)
        .expect("size the tool's image");
    let output = Command::new(program)
        .args(arguments)
        .arg(scratch)
        .output()
        .expect("start a tool");
    assert!(output.status.success(), "{program}: {output:?}");
    // mkfs.cramfs truncates the file to the file system's length.
    file.set_len(mebibytes << 20)
        .expect("size the tool's image");
    let content = Content::of(scratch);
    std::fs::remove_file(scratch).expect("remove the tool's image");
    content
}

const fn tool(
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    mebibytes: u64,
) -> Kind {
    Kind {
        name,
        origin: Origin::Tool(program),
        make: Make::Run {
            arguments,
            mebibytes,
        },
    }
}

/// Negative places count from the end.
const fn documented(name: &'static str, places: &'static [(i64, &'static [u8])]) -> Kind {
    Kind {
        name,
        origin: Origin::Documented,
        make: Make::Places(places),
    }
}

const fn byte(name: &'static str, offset: u64) -> Kind {
    Kind {
        name,
        origin: Origin::Documented,
        make: Make::Byte(offset),
    }
}

const BOOT: (i64, &[u8]) = (510, b"\x55\xaa");
/// First entry of a partition table: Linux, from sector 2048.
const PARTITION: (i64, &[u8]) = (446, b"\0\x20\x21\0\x83\x51\x01\x01\0\x08\0\0\0\x38\0\0");
const MD: &[u8] = b"\xfc\x4e\x2b\xa9\x01\0\0\0";
const UBERBLOCK: &[u8] = b"\x0c\xb1\xba\0\0\0\0\0\x88\x13";

/// All kinds. xfs and btrfs have the minimum size of their tools, for speed.
pub const KINDS: &[Kind] = &[
    tool("ext2", "mkfs.ext2", &["-q", "-F"], 4),
    tool("ext3", "mkfs.ext3", &["-q", "-F"], 8),
    tool("ext4", "mkfs.ext4", &["-q", "-F"], 8),
    tool("xfs", "mkfs.xfs", &["-q", "--unsupported"], 40),
    tool("btrfs", "mkfs.btrfs", &["-q", "--mixed"], 20),
    tool("swap", "mkswap", &["-q"], 3),
    tool("minix", "mkfs.minix", &["-3"], 3),
    tool("bfs", "mkfs.bfs", &[], 3),
    tool("cramfs", "mkfs.cramfs", &["/usr/share/doc/util-linux"], 3),
    documented(
        "LUKS1",
        &[(0, b"LUKS\xba\xbe\0\x01aes\0"), (40, b"xts-plain64")],
    ),
    documented(
        "LUKS2",
        &[
            (0, b"LUKS\xba\xbe\0\x02\0\0\0\0\0\0\x40\0"),
            (4096, b"{\"keyslots\":{}}"),
            (0x4000, b"SKUL\xba\xbe\0\x02"),
        ],
    ),
    documented("LVM2", &[(512, b"LABELONE\x01\0\0\0"), (536, b"LVM2 001")]),
    documented("md 1.0", &[(-8192, MD)]),
    documented("md 1.1", &[(0, MD)]),
    documented("md 1.2", &[(4096, MD)]),
    documented(
        "md 0.90",
        &[(-65536, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")],
    ),
    documented(
        "ddf raid",
        &[(-512, b"\xde\x11\xde\x11"), (-480, b"01.02.00")],
    ),
    documented("isw raid", &[(-1024, b"Intel Raid ISM Cfg Sig. 1.3.00")]),
    documented("drbd", &[(-4036, b"\x83\x74\x02\x6b")]),
    documented(
        "bcache",
        &[(
            0x1018,
            b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        )],
    ),
    documented(
        "bcachefs",
        &[(
            0x1018,
            b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        )],
    ),
    documented("stratis", &[(0x204, b"!Stra0tis\x86\xff\x02^Arh")]),
    documented("vdo", &[(0, b"dmvdo001\x05")]),
    documented("ceph bluestore", &[(0, b"bluestore block device\n")]),
    documented(
        "vmfs",
        &[
            (1 << 20, b"\x0d\xd0\x01\xc0"),
            (2 << 20, b"\x5e\xf1\xab\x2f"),
        ],
    ),
    documented(
        "zfs",
        &[
            (128 << 10, UBERBLOCK),
            (384 << 10, UBERBLOCK),
            (-(384 << 10), UBERBLOCK),
            (-(128 << 10), UBERBLOCK),
        ],
    ),
    documented(
        "gpt",
        &[
            (446, b"\0\0\x02\0\xee\xff\xff\xff\x01\0\0\0\xff\x3f\0\0"),
            BOOT,
            (512, b"EFI PART\0\0\x01\0"),
            (-512, b"EFI PART\0\0\x01\0"),
        ],
    ),
    documented("gpt, backup only", &[(-512, b"EFI PART\0\0\x01\0")]),
    documented("mbr", &[PARTITION, BOOT]),
    documented("boot signature", &[BOOT]),
    documented("sun disk label", &[(508, b"\xda\xbe")]),
    documented("bsd disk label", &[(512, b"\x57\x45\x56\x82")]),
    documented("ntfs", &[(0, b"\xeb\x52\x90NTFS    \0\x02\x08"), BOOT]),
    documented("bitlocker", &[(0, b"\xeb\x58\x90-FVE-FS-\0\x02"), BOOT]),
    documented(
        "vfat",
        &[(0, b"\xeb\x58\x90mkfs.fat"), (0x52, b"FAT32   "), BOOT],
    ),
    documented("exfat", &[(0, b"\xeb\x76\x90EXFAT   "), BOOT]),
    documented("iso9660", &[(0x8000, b"\x01CD001\x01")]),
    documented(
        "udf",
        &[
            (0x8001, b"BEA01\x01"),
            (0x8801, b"NSR03\x01"),
            (0x9001, b"TEA01\x01"),
        ],
    ),
    documented("squashfs", &[(0, b"hsqs\x07\0\0\0")]),
    documented("erofs", &[(1024, b"\xe2\xe1\xf5\xe0")]),
    documented(
        "f2fs",
        &[
            (1024, b"\x10\x20\xf5\xf2\x01\0"),
            (5120, b"\x10\x20\xf5\xf2\x01\0"),
        ],
    ),
    documented("reiserfs", &[((64 << 10) + 52, b"ReIsEr2Fs")]),
    documented("jfs", &[(0x8000, b"JFS1\x01\0\0\0")]),
    documented("nilfs2", &[(1024, b"\x02\0\0\0\0\0\x34\x34")]),
    documented("ocfs2", &[(8192, b"OCFSV2\0\0")]),
    documented("gfs2", &[(65536, b"\x01\x16\x19\x70\0\0\0\x01")]),
    documented("hfs", &[(1024, b"BD\0\0")]),
    documented("hfs+", &[(1024, b"H+\0\x04"), (-1024, b"H+\0\x04")]),
    documented("romfs", &[(0, b"-rom1fs-\0\0\x01\0")]),
    documented("ufs2", &[(65536 + 0x55c, b"\x19\x01\x54\x19")]),
    documented("apfs", &[(32, b"NXSB\0\x10\0\0")]),
    documented("qcow2", &[(0, b"QFI\xfb\0\0\0\x03")]),
    documented("vhd, footer only", &[(-512, b"conectix")]),
    Kind {
        name: "random data",
        origin: Origin::Documented,
        make: Make::Random,
    },
    byte("one byte in the middle", SIZE / 2 + 12345),
    byte("one byte behind the head", 68 << 10),
    byte("the last byte", SIZE - 1),
];
