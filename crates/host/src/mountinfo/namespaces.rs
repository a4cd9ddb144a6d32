//! The mount tables of all processes.

use super::{Mount, parse};
use flexvol_sdk::{Error, Result};
use rustix::io::Errno;
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// The mounts of every mount namespace that a process seen in `/proc` lives in.
///
/// # Errors
/// When there is a process whose mounts cannot be read, so that any may be hidden. One that ends
/// while it is asked is passed over.
pub fn all_namespaces() -> Result<Vec<Mount>> {
    let failed = |error: io::Error| Error::system("list processes", error);
    let mut mounts = Vec::new();
    let mut namespaces = HashSet::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_process = entry.file_name().as_encoded_bytes()[0].is_ascii_digit();
        if !is_process {
            continue;
        }
        let path = entry.path();
        // Its table may be read also where this is not told.
        let namespace = fs::read_link(path.join("ns/mnt")).ok();
        if namespace.as_ref().is_some_and(|it| namespaces.contains(it)) {
            continue;
        }
        match table(&path) {
            Ok(found) => mounts.extend(found),
            // Others may live where it lived.
            Err(error) if has_ended(&error) => continue,
            Err(error) => {
                return Err(Error::system("read the mount table of a process", error)
                    .because(path.display().to_string()));
            }
        }
        // A process sees only what is below its root, others in the same place may see more.
        if let Some(namespace) = namespace
            && fs::read_link(path.join("root")).is_ok_and(|root| root == Path::new("/"))
        {
            namespaces.insert(namespace);
        }
    }
    Ok(mounts)
}

/// The mounts that a process sees.
fn table(process: &Path) -> io::Result<Vec<Mount>> {
    let mut text = Vec::new();
    match File::open(process.join("mountinfo"))?.read_to_end(&mut text) {
        // The kernel stops before a mount of a control group whose path is too long for it
        // (`cgroup_show_path`). Everybody who has a namespace of control groups can make one, below
        // what was mounted before; he hides his own uses from us, and nobody else's.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::RANGE) => log::warn!(
            "the kernel tells only the first mounts of {}: {error}",
            process.display()
        ),
        read => drop(read?),
    }
    Ok(parse(&text))
}

/// What `mounts_open_common` (fs/proc_namespace.c) and the lookup in /proc say of a process that
/// is no more, or of which only the number is left.
fn has_ended(error: &io::Error) -> bool {
    let ended = [Errno::NOENT, Errno::SRCH, Errno::INVAL];
    Errno::from_io_error(error).is_some_and(|error| ended.contains(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_among_them() {
        let all = all_namespaces().unwrap();
        let here = crate::mountinfo::read().unwrap();
        assert!(!here.is_empty());
        let known = |mount: &&Mount| all.iter().any(|other| other.id == mount.id);
        assert!(here.iter().any(|mount| known(&mount)));
    }

    #[test]
    fn a_process_that_has_ended_is_told_from_one_that_is_not_understood() {
        let ended = |path: &str| table(Path::new(path)).unwrap_err();
        assert!(has_ended(&ended("/proc/4194305")));
        assert!(!has_ended(&io::Error::from(Errno::MFILE)));
        assert!(!has_ended(&io::Error::from(Errno::ACCESS)));
    }
}
