//! Checks whether udev assembles RAIDs from what pods write.

use crate::{check::Check, config::Config};
use std::{fs, path::Path};

/// The udev rule that runs `mdadm --incremental` on every device that looks like a member of a RAID.
const RULES: &str = "64-md-raid-assembly.rules";

/// Directories of udev's rules, in order of precedence.
const DIRECTORIES: [&str; 4] = [
    "etc/udev/rules.d",
    "run/udev/rules.d",
    "usr/lib/udev/rules.d",
    "lib/udev/rules.d",
];

/// Paths of mdadm's configuration.
const CONFIGURATIONS: [&str; 2] = ["etc/mdadm/mdadm.conf", "etc/mdadm.conf"];

/// Runs the check if volumes are block devices.
pub fn checks(configs: &[&Config]) -> Vec<Check> {
    let mut configs = configs.iter();
    match configs.any(|config| config.backend.formats && !config.pools.is_empty()) {
        true => check(Path::new("/")).into_iter().collect(),
        false => Vec::new(),
    }
}

fn check(root: &Path) -> Option<Check> {
    let mut rules = DIRECTORIES
        .iter()
        .map(|directory| root.join(directory).join(RULES))
        .filter_map(|path| fs::read_to_string(path).ok());
    // An empty file masks the others.
    if rules.next()?.trim().is_empty() || is_off(root) {
        return None;
    }
    Some(Check::warn(
        "RAID",
        format!(
            "udev has {RULES}: where a pod writes the end of its volume so that it reads as the member of a RAID, or the volume grows onto such blocks, mdadm takes its device, and it is neither mounted nor deleted"
        ),
        "write `AUTO -all` into mdadm.conf: then only arrays with an ARRAY line are assembled, so give the node's own ones theirs first (mdadm --detail --scan)",
    ))
}

/// Whether mdadm assembles only what its configuration names.
fn is_off(root: &Path) -> bool {
    let texts = CONFIGURATIONS
        .iter()
        .filter_map(|path| fs::read_to_string(root.join(path)).ok());
    texts.take(1).any(|text| {
        let mut lines = text.lines().map(|line| line.split_whitespace());
        lines.any(|mut words| {
            words
                .next()
                .is_some_and(|first| first.eq_ignore_ascii_case("auto"))
                && words.next() == Some("-all")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raids_that_pods_could_write_are_told_of_unless_mdadm_makes_none() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let is_told = || check(root.path()).is_some();
        assert!(!is_told());
        put(
            "usr/lib/udev/rules.d/64-md-raid-assembly.rules",
            "SUBSYSTEM!=\"block\"\n",
        );
        assert!(is_told());
        put(
            "etc/mdadm/mdadm.conf",
            "# AUTO -all\nHOMEHOST <system>\nAUTO +1.x -all\n",
        );
        assert!(is_told());
        put(
            "etc/mdadm/mdadm.conf",
            "ARRAY /dev/md/0 metadata=1.2\nauto -all\n",
        );
        assert!(!is_told());
        put("etc/mdadm/mdadm.conf", "");
        assert!(is_told());
        put("etc/udev/rules.d/64-md-raid-assembly.rules", "");
        assert!(!is_told());
    }
}
