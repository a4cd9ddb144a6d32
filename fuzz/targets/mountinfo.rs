//! A mount table: a parsed table is written as the kernel would write it, and parsed again with the same result.
#![no_main]

use flexvol_fuzz::within;
use flexvol_host::mountinfo::{Mount, parse};
use libfuzzer_sys::fuzz_target;
use std::{ffi::OsStr, io::Write};

fuzz_target!(|data: &[u8]| {
    // A mount takes 200 bytes in memory, and its shortest line has ten; the vector doubles.
    let mounts = within(4096 + 64 * data.len(), || parse(data));
    let lines = data.split(|&byte| byte == b'\n');
    // A line does not affect its neighbours, whatever it contains.
    let apart: Vec<Mount> = lines.clone().flat_map(parse).collect();
    assert_eq!(mounts, apart);
    // Each line that begins like a mount's is one mount, however it continues.
    let lines: Vec<&[u8]> = lines.filter(|line| begins_as_a_mount(line)).collect();
    assert_eq!(mounts.len(), lines.len());
    let mut table = Vec::new();
    for (mount, line) in mounts.iter().zip(lines) {
        is_on(line, mount);
        if let Some(volume) = mount.volume() {
            let root = mount.root.to_str().expect("an id is text");
            assert!(root.contains(&format!("/{volume}")), "{root}");
        }
        write(mount, &mut table);
    }
    assert_eq!(parse(&table), mounts);
});

/// Whether a line begins with two numbers, a device's two numbers, a root and a mount point.
fn begins_as_a_mount(line: &[u8]) -> bool {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let number = |text: &[u8], most: u64| {
        let text = str::from_utf8(text).ok().filter(|it| !it.starts_with('+'));
        let number = text.and_then(|text| text.parse::<u64>().ok());
        number.is_some_and(|number| number <= most)
    };
    let [id, parent, device, _, _, ..] = fields[..] else {
        return false;
    };
    let Some(colon) = device.iter().position(|&byte| byte == b':') else {
        return false;
    };
    let most = u32::MAX.into();
    number(id, u64::MAX)
        && number(parent, u64::MAX)
        && number(&device[..colon], most)
        && number(&device[colon + 1..], most)
}

/// Checks fields that are on the line unchanged.
fn is_on(line: &[u8], mount: &Mount) {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let number = |field: usize| str::from_utf8(fields[field]).map(str::parse);
    assert_eq!(number(0), Ok(Ok(mount.id)));
    assert_eq!(number(1), Ok(Ok(mount.parent)));
    for (field, read) in [(3, &mount.root), (4, &mount.mount_point)] {
        let read = read.as_os_str().as_encoded_bytes();
        assert!(fields[field].contains(&b'\\') || fields[field] == read);
    }
    let mut options = fields
        .get(5)
        .into_iter()
        .flat_map(|it| it.split(|&c| c == b','));
    assert_eq!(mount.read_only, options.any(|option| option == b"ro"));
}

/// Writes a line as `show_mountinfo` (fs/proc_namespace.c) does.
fn write(mount: &Mount, table: &mut Vec<u8>) {
    let read_only = |is| if is { "ro" } else { "rw" };
    let Mount {
        id, parent, number, ..
    } = mount;
    let write = &mut |text: &str| table.write_all(text.as_bytes()).expect("memory");
    write(&format!("{id} {parent} {number} "));
    let root = mangle(mount.root.as_os_str());
    let point = mangle(mount.mount_point.as_os_str());
    write(&format!("{root} {point} {}", read_only(mount.read_only)));
    write(if mount.is_confined {
        ",nosuid,nodev,relatime"
    } else {
        ",noatime"
    });
    write(if mount.shared {
        " shared:7 master:3 - "
    } else {
        " - "
    });
    let (filesystem, source) = (mangle(mount.filesystem.as_ref()), mangle(&mount.source));
    write(&format!(
        "{filesystem} {source} {}\n",
        read_only(mount.superblock_read_only)
    ));
}

/// Escapes as the kernel's `mangle`, but every byte that is not a plain character.
fn mangle(text: &OsStr) -> String {
    let bytes = text.as_encoded_bytes().iter();
    bytes
        .map(|&byte| match byte {
            b'!'..=b'~' if !b"\\#".contains(&byte) => char::from(byte).to_string(),
            _ => format!("\\{byte:03o}"),
        })
        .collect()
}
