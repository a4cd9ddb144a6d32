//! Magic numbers of storage formats, and where they lie.
//!
//! Signatures give a name to what is on a device. They do not prove that it is blank: only reading every byte as zero
//! does. Sources are each format's own documents and headers (the kernel's `include/uapi/linux/magic.h` and file
//! systems, the LUKS, LVM2, md, DDF, GPT, ECMA-119 and ECMA-167 specifications, and the projects' on-disk headers).

use flexvol_sdk::Bytes;

/// Part of a device that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a> {
    /// Its offset on the device.
    pub start: u64,
    /// Its content.
    pub bytes: &'a [u8],
}

impl<'a> Window<'a> {
    fn at(&self, offset: u64, length: usize) -> Option<&'a [u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(length)?)
    }
}

/// A magic number and where it lies.
#[derive(Debug)]
pub(super) struct Signature {
    /// Name of the format.
    pub kind: &'static str,
    position: Position,
    magic: &'static [u8],
}

/// Position of a magic number, which for some formats depends on the device's size.
#[derive(Clone, Copy, Debug)]
enum Position {
    /// Offset from the start.
    Start(u64),
    /// At `first` and then every `step` bytes, `count` times.
    Every { first: u64, step: u64, count: u64 },
    /// Offset before the end.
    End(u64),
    /// `before` bytes before the last multiple of `align`, and then as `Every`.
    Aligned {
        align: u64,
        before: u64,
        step: u64,
        count: u64,
    },
}

impl Position {
    /// Returns the first offset, the step and the number of offsets on a device of this size.
    fn resolve(self, size: u64) -> Option<(u64, u64, u64)> {
        match self {
            Position::Start(offset) => Some((offset, 0, 1)),
            Position::Every { first, step, count } => Some((first, step, count)),
            Position::End(before) => Some((size.checked_sub(before)?, 0, 1)),
            Position::Aligned {
                align,
                before,
                step,
                count,
            } => Some(((size - size % align).checked_sub(before)?, step, count)),
        }
    }
}

impl Signature {
    /// Returns the first offset below `before` at which this signature lies inside the window.
    pub(super) fn find(&self, window: Window<'_>, size: Bytes, before: u64) -> Option<u64> {
        let (first, step, count) = self.position.resolve(size.0)?;
        (0..count)
            .map(|turn| first + turn * step)
            .take_while(|&offset| offset < before)
            .find(|&offset| window.at(offset, self.magic.len()) == Some(self.magic))
    }
}

const fn start(kind: &'static str, offset: u64, magic: &'static [u8]) -> Signature {
    let position = Position::Start(offset);
    Signature {
        kind,
        position,
        magic,
    }
}

const fn every(
    kind: &'static str,
    (first, step, count): (u64, u64, u64),
    magic: &'static [u8],
) -> Signature {
    let position = Position::Every { first, step, count };
    Signature {
        kind,
        position,
        magic,
    }
}

const fn end(kind: &'static str, before: u64, magic: &'static [u8]) -> Signature {
    let position = Position::End(before);
    Signature {
        kind,
        position,
        magic,
    }
}

const fn aligned(
    kind: &'static str,
    (align, before): (u64, u64),
    (step, count): (u64, u64),
    magic: &'static [u8],
) -> Signature {
    let position = Position::Aligned {
        align,
        before,
        step,
        count,
    };
    Signature {
        kind,
        position,
        magic,
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The uberblock ring of a ZFS label: 128 KiB into the 256 KiB of the label, an uberblock each KiB.
const ZFS_RING: (u64, u64) = (KIB, 128);
const ZFS_LITTLE: &[u8] = b"\x0c\xb1\xba\x00\x00\x00\x00\x00";
const ZFS_BIG: &[u8] = b"\x00\x00\x00\x00\x00\xba\xb1\x0c";

/// Signatures of formats other than ext, XFS and Btrfs, which have readers of their own. More specific signatures come
/// first; the boot signature that many formats share is last.
pub(super) const SIGNATURES: &[Signature] = &[
    start("LUKS1", 0, b"LUKS\xba\xbe\x00\x01"),
    start("LUKS2", 0, b"LUKS\xba\xbe\x00\x02"),
    start("LUKS", 0, b"LUKS\xba\xbe"),
    start("LUKS2 second header", 0x4000, b"SKUL\xba\xbe"),
    start("LUKS2 second header", 0x8000, b"SKUL\xba\xbe"),
    start("LUKS2 second header", 0x10000, b"SKUL\xba\xbe"),
    every("LVM2 physical volume", (0, 512, 4), b"LABELONE"),
    start("LVM1 physical volume", 0, b"HM\x01\x00"),
    start("LVM1 physical volume", 0, b"HM\x02\x00"),
    every("md raid member", (0, 4096, 2), b"\xfc\x4e\x2b\xa9"),
    aligned("md raid member", (4096, 8192), (0, 1), b"\xfc\x4e\x2b\xa9"),
    aligned(
        "md raid member",
        (65536, 65536),
        (0, 1),
        b"\xfc\x4e\x2b\xa9",
    ),
    aligned(
        "md raid member",
        (65536, 65536),
        (0, 1),
        b"\xa9\x2b\x4e\xfc",
    ),
    end("ddf raid member", 512, b"\xde\x11\xde\x11"),
    aligned(
        "ddf raid member",
        (512, 257 * 512),
        (0, 1),
        b"\xde\x11\xde\x11",
    ),
    end("isw raid member", 1024, b"Intel Raid ISM Cfg Sig. "),
    end("nvidia raid member", 1024, b"NVIDIA  "),
    end("lsi raid member", 512, b"$XIDE$"),
    start("hpt37x raid member", 9 * 512, b"\xf0\x16\x78\x5a"),
    start("hpt37x raid member", 9 * 512, b"\xfd\x16\x78\x5a"),
    end("drbd", 4096 - 60, b"\x83\x74\x02\x6b"),
    end("drbd", 4096 - 60, b"\x83\x74\x02\x6c"),
    start("swap", 4096 - 10, b"SWAPSPACE2"),
    start("swap", 4096 - 10, b"SWAP-SPACE"),
    start("swap", 8192 - 10, b"SWAPSPACE2"),
    start("swap", 16384 - 10, b"SWAPSPACE2"),
    start("swap", 32768 - 10, b"SWAPSPACE2"),
    start("swap", 65536 - 10, b"SWAPSPACE2"),
    start("suspended system", 4096 - 10, b"S1SUSPEND"),
    start("suspended system", 4096 - 10, b"S2SUSPEND"),
    start("suspended system", 4096 - 10, b"ULSUSPEND"),
    start("suspended system", 4096 - 10, b"LINHIB0001"),
    start(
        "bcache",
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    start(
        "bcachefs",
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    start("stratis", 0x204, b"!Stra0tis\x86\xff\x02^Arh"),
    start("stratis", 0x1204, b"!Stra0tis\x86\xff\x02^Arh"),
    start("vdo", 0, b"dmvdo001"),
    start("dm-verity", 0, b"verity\0\0"),
    start("dm-integrity", 0, b"integrt\0"),
    start("dm snapshot store", 0, b"SnAp"),
    start("ceph bluestore", 0, b"bluestore block device"),
    start("oracle asm disk", 32, b"ORCLDISK"),
    start("vmfs volume member", MIB, b"\x0d\xd0\x01\xc0"),
    start("vmfs", 2 * MIB, b"\x5e\xf1\xab\x2f"),
    every("zfs", (128 * KIB, KIB, 128), ZFS_LITTLE),
    every("zfs", (128 * KIB, KIB, 128), ZFS_BIG),
    aligned("zfs", (256 * KIB, 128 * KIB), ZFS_RING, ZFS_LITTLE),
    aligned("zfs", (256 * KIB, 128 * KIB), ZFS_RING, ZFS_BIG),
    start("f2fs", KIB, b"\x10\x20\xf5\xf2"),
    start("f2fs", 5 * KIB, b"\x10\x20\xf5\xf2"),
    start("erofs", KIB, b"\xe2\xe1\xf5\xe0"),
    start("nilfs2", KIB + 6, b"\x34\x34"),
    start("ocfs2", KIB, b"OCFSV2"),
    start("ocfs2", 2 * KIB, b"OCFSV2"),
    start("ocfs2", 4 * KIB, b"OCFSV2"),
    start("ocfs2", 8 * KIB, b"OCFSV2"),
    start("ocfs", 8, b"OracleCFS"),
    start("gfs2", 64 * KIB, b"\x01\x16\x19\x70\x00\x00\x00\x01"),
    start("reiserfs", 8 * KIB + 52, b"ReIsEr"),
    start("reiserfs", 64 * KIB + 52, b"ReIsEr"),
    start("reiser4", 64 * KIB, b"ReIsEr4"),
    start("jfs", 32 * KIB, b"JFS1"),
    start("vxfs", KIB, b"\xf5\xfc\x01\xa5"),
    start("ufs", 8 * KIB + 0x55c, b"\x54\x19\x01\x00"),
    start("ufs", 8 * KIB + 0x55c, b"\x00\x01\x19\x54"),
    start("ufs", 64 * KIB + 0x55c, b"\x19\x01\x54\x19"),
    start("ufs", 64 * KIB + 0x55c, b"\x19\x54\x01\x19"),
    start("apfs", 32, b"NXSB"),
    start("befs", 512 + 32, b"1SFB"),
    start("bfs", 0, b"\xce\xfa\xad\x1b"),
    start("squashfs", 0, b"hsqs"),
    start("squashfs", 0, b"sqsh"),
    start("cramfs", 0, b"\x45\x3d\xcd\x28"),
    start("cramfs", 0, b"\x28\xcd\x3d\x45"),
    start("cramfs", 512, b"\x45\x3d\xcd\x28"),
    start("romfs", 0, b"-rom1fs-"),
    start("zonefs", 0, b"SFOZ"),
    start("ubi", 0, b"UBI#"),
    start("ubifs", 0, b"\x31\x18\x10\x06"),
    start("jffs2", 0, b"\x85\x19\x03\x20"),
    start("iso9660", 32 * KIB + 1, b"CD001"),
    start("high sierra", 32 * KIB + 9, b"CDROM"),
    every("udf", (32 * KIB + 1, 2 * KIB, 16), b"NSR02"),
    every("udf", (32 * KIB + 1, 2 * KIB, 16), b"NSR03"),
    every("udf", (32 * KIB + 1, 2 * KIB, 16), b"BEA01"),
    start("hfs", KIB, b"BD\0"),
    start("hfs+", KIB, b"H+\x00\x04"),
    start("hfs+", KIB, b"HX\x00\x05"),
    start("minix", KIB + 16, b"\x7f\x13"),
    start("minix", KIB + 16, b"\x8f\x13"),
    start("minix", KIB + 16, b"\x68\x24"),
    start("minix", KIB + 16, b"\x78\x24"),
    start("minix", KIB + 24, b"\x5a\x4d"),
    start("qcow2 image", 0, b"QFI\xfb"),
    start("vmdk image", 0, b"KDMV"),
    start("vhdx image", 0, b"vhdxfile"),
    start("vhd image", 0, b"conectix"),
    end("vhd image", 512, b"conectix"),
    start("bitlocker", 3, b"-FVE-FS-"),
    start("ntfs", 3, b"NTFS    "),
    start("refs", 3, b"ReFS\0\0\0\0"),
    start("hpfs", 8 * KIB, b"\x49\xe8\x95\xf9"),
    start("exfat", 3, b"EXFAT   "),
    start("vfat", 0x52, b"FAT32   "),
    start("vfat", 0x36, b"FAT16   "),
    start("vfat", 0x36, b"FAT12   "),
    start("vfat", 0x36, b"MSDOS"),
    start("gpt partition table", 512, b"EFI PART"),
    start("gpt partition table", 4096, b"EFI PART"),
    end("gpt partition table", 512, b"EFI PART"),
    end("gpt partition table", 4096, b"EFI PART"),
    start("apple partition table", 512, b"PM\0\0"),
    start("bsd disk label", 512, b"\x57\x45\x56\x82"),
    start("bsd disk label", 64, b"\x57\x45\x56\x82"),
    start("sgi disk label", 0, b"\x0b\xe5\xa9\x41"),
    start("sun disk label", 508, b"\xda\xbe"),
    start("partition table or boot sector", 510, b"\x55\xaa"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_at_least_forty_kinds() {
        let kinds: BTreeSet<_> = SIGNATURES.iter().map(|signature| signature.kind).collect();
        assert!(kinds.len() >= 40, "{} kinds", kinds.len());
    }

    #[test]
    fn every_signature_is_found_at_each_of_its_places_and_not_beside_it() {
        let size = 3 * MIB + 7 * 512;
        for signature in SIGNATURES {
            let (first, step, count) = signature.position.resolve(size).unwrap();
            for turn in 0..count {
                let offset = first + turn * step;
                let mut bytes = vec![0; usize::try_from(size).unwrap()];
                let from = usize::try_from(offset).unwrap();
                bytes[from..from + signature.magic.len()].copy_from_slice(signature.magic);
                let window = |bytes| Window { start: 0, bytes };
                assert_eq!(
                    signature.find(window(&bytes), Bytes(size), u64::MAX),
                    Some(offset),
                    "{signature:?}"
                );
                assert_eq!(signature.find(window(&bytes), Bytes(size), offset), None);
                assert_eq!(
                    signature.find(window(&bytes[1..]), Bytes(size), u64::MAX),
                    None
                );
            }
        }
    }

    proptest! {
        #[test]
        fn no_size_and_no_window_panic(
            size: u64,
            start in 0..8 * MIB,
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            for signature in SIGNATURES {
                let window = Window { start, bytes: &bytes };
                let _ = signature.find(window, Bytes(size), u64::MAX);
            }
        }
    }
}
