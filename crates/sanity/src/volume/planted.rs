//! Content that a driver must never format. It consists of a few pieces of bytes, which can be looked for
//! again.

use super::content;
use crate::system::command;
use anyhow::{Context, Result};
use std::{
    ffi::OsStr,
    io::{Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

/// Bytes and their offsets.
type Pieces = Vec<(u64, Vec<u8>)>;

/// Content that was written to a device.
#[derive(Clone, Debug)]
pub struct Planted {
    pub what: String,
    /// Bytes that must be unchanged, whatever the driver answered.
    pieces: Pieces,
}

/// Offset of simulated user data.
const DATA: u64 = 5 << 20;

/// A block of data with a recognizable pattern.
fn block(seed: u8) -> Vec<u8> {
    (0..4096u32)
        .map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
        .collect()
}

fn at(offset: u64, bytes: &[u8]) -> (u64, Vec<u8>) {
    (offset, bytes.to_vec())
}

/// Names and signatures of containers, without the rest of the format. Every driver that checks for signatures must
/// recognize them, but they may not suffice for a library that validates more.
pub fn containers() -> Vec<(&'static str, Pieces)> {
    let mut luks = b"LUKS\xba\xbe\x00\x01".to_vec();
    luks.extend(b"aes\0".iter().chain(&[0; 28]));
    let mut lvm = b"LABELONE".to_vec();
    lvm.extend(1u64.to_le_bytes());
    lvm.extend(0u32.to_le_bytes());
    lvm.extend(32u32.to_le_bytes());
    lvm.extend(b"LVM2 001");
    let mut raid = 0xa92b_4efc_u32.to_le_bytes().to_vec();
    raid.extend(1u32.to_le_bytes());
    let mut swap = vec![0; 4096];
    swap[1024] = 1;
    swap[4086..].copy_from_slice(b"SWAPSPACE2");
    vec![
        ("a LUKS header", vec![at(0, &luks)]),
        ("a physical volume of LVM", vec![at(512, &lvm)]),
        ("a member of a RAID", vec![at(4096, &raid)]),
        ("a swap area", vec![at(0, &swap)]),
    ]
}

/// An MBR partition table, and a GPT behind its protective MBR.
pub fn tables() -> Vec<(&'static str, Pieces)> {
    let table = |kind: u8| {
        let mut sector = vec![0; 512];
        sector[446..462]
            .copy_from_slice(&[0, 0, 2, 0, kind, 255, 255, 255, 1, 0, 0, 0, 255, 255, 7, 0]);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    };
    let mut header = b"EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00".to_vec();
    header.resize(512, 0);
    header[24] = 1;
    vec![
        ("an MBR partition table", vec![at(0, &table(0x83))]),
        (
            "a GPT partition table",
            vec![at(0, &table(0xee)), at(512, &header)],
        ),
    ]
}

/// Data without a known signature, only at the beginning or only at the end.
pub fn unsigned(size: u64) -> Vec<(&'static str, Pieces)> {
    let end = (size - (64 << 10)) / 4096 * 4096;
    vec![
        ("data near the beginning", vec![at(64 << 10, &block(1))]),
        ("data near the end", vec![at(end, &block(2))]),
    ]
}

/// Writes pieces, and simulated user data behind them.
pub fn plant(content: &Path, what: &str, mut pieces: Pieces) -> Result<Planted> {
    pieces.push(at(DATA, &block(3)));
    plant_alone(content, what, pieces)
}

/// Writes pieces without further data.
pub fn plant_alone(content: &Path, what: &str, pieces: Pieces) -> Result<Planted> {
    let file = content::open(content)?;
    for (offset, bytes) in &pieces {
        file.write_all_at(bytes, *offset)
            .context("write to the volume's content")?;
    }
    file.sync_all().context("sync the volume's content")?;
    Ok(Planted {
        what: what.to_owned(),
        pieces,
    })
}

/// The file systems whose mkfs is installed.
pub fn filesystems() -> Vec<&'static str> {
    ["ext4", "xfs", "btrfs"]
        .into_iter()
        .filter(|kind| command::has_tool(&format!("mkfs.{kind}")))
        .collect()
}

/// Makes a file system and writes data into its free space, which a mount does not change.
pub fn plant_filesystem(content: &Path, kind: &str) -> Result<Planted> {
    let force: &[&str] = match kind {
        "ext4" => &["-q", "-F", "-E", "nodiscard"],
        "xfs" => &["-q", "-f", "-K"],
        _ => &["-q", "-f", "-K"],
    };
    let mut arguments: Vec<&OsStr> = force.iter().map(OsStr::new).collect();
    arguments.push(content.as_os_str());
    command::tool(&format!("mkfs.{kind}"), &arguments)?;
    let file = content::open(content)?;
    let mut head = vec![0; 68 << 10];
    file.read_exact_at(&mut head, 0)
        .context("read the new file system")?;
    // The magic and identity of the superblock, without times and counters that a mount changes.
    let identity = match kind {
        "ext4" => 1024 + 0x68..1024 + 0x78,
        "xfs" => 0..48,
        _ => (64 << 10) + 32..(64 << 10) + 72,
    };
    let size = (&file)
        .seek(SeekFrom::End(0))
        .context("measure the volume's content")?;
    let free = size / 2 / 4096 * 4096 + (13 << 20);
    file.write_all_at(&block(4), free)
        .context("write to the volume's content")?;
    file.sync_all().context("sync the volume's content")?;
    let offset = identity.start as u64;
    let identity = (offset, head[identity].to_vec());
    Ok(Planted {
        what: format!("a file system, {kind}"),
        pieces: vec![identity, (free, block(4))],
    })
}

impl Planted {
    /// Returns a description of the first piece that changed, if any.
    pub fn changed(&self, content: &Path) -> Result<Option<String>> {
        let file = content::open_to_read(content)?;
        for (offset, bytes) in &self.pieces {
            let mut now = vec![0; bytes.len()];
            file.read_exact_at(&mut now, *offset)
                .context("read the volume's content")?;
            if now != *bytes {
                return Ok(Some(format!(
                    "{} at byte {offset} was overwritten",
                    self.what
                )));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_planted_is_found_again_and_missed_when_it_is_gone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        assert!(content::is_blank(file.path()).unwrap());
        for (what, pieces) in containers().into_iter().chain(tables()) {
            let planted = plant(file.path(), what, pieces.clone()).unwrap();
            assert_eq!(planted.changed(file.path()).unwrap(), None);
            assert!(!content::is_blank(file.path()).unwrap());
            file.as_file()
                .write_all_at(&[0xff; 8], pieces[0].0)
                .unwrap();
            assert!(planted.changed(file.path()).unwrap().is_some());
            file.as_file().write_all_at(&[0; 8192], 0).unwrap();
            file.as_file().write_all_at(&[0; 4096], DATA).unwrap();
            assert!(content::is_blank(file.path()).unwrap());
        }
    }
}
