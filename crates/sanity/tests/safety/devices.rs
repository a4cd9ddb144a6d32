//! Devices that do not belong to the tester.

use crate::{Verdict, vendor::Vendor};
use serde_json::Value;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A loop device that does not belong to the tester. Removed on drop.
struct Foreign {
    device: PathBuf,
    file: PathBuf,
}

impl Foreign {
    fn new(file: PathBuf) -> Self {
        File::create_new(&file).unwrap().set_len(64 << 20).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let device = String::from_utf8(output.stdout).unwrap().trim().into();
        Foreign { device, file }
    }

    /// The backing file of the device, from sysfs.
    fn shows(&self) -> Option<PathBuf> {
        let name = self.device.file_name().unwrap();
        let about = Path::new("/sys/block").join(name).join("loop/backing_file");
        Some(fs::read_to_string(about).ok()?.trim_end().into())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // If the device was detached, its number may belong to another device now.
        if self.shows().as_ref() == Some(&self.file) {
            let words = ["--detach".as_ref(), self.device.as_os_str()];
            // Errors do not matter: the test has checked everything by now.
            let _ = Command::new("losetup").args(words).status();
        }
    }
}

/// A script for a driver that attaches nothing and returns this foreign device.
fn names(device: &Path) -> String {
    let all = r#""attach":true,"fsGroup":true,"requiresFSResize":false"#;
    format!(
        "case \"$1\" in\n\
         init) echo '{{\"status\":\"Success\",\"capabilities\":{{{all}}}}}' ;;\n\
         attach|waitforattach) echo '{{\"status\":\"Success\",\"device\":\"{device}\"}}' ;;\n\
         detach) echo '{{\"status\":\"Success\"}}' ;;\n\
         *) echo '{{\"status\":\"Not supported\"}}' ;;\n\
         esac",
        device = device.display(),
    )
}

pub fn wrongly_named() -> Verdict {
    let vendor = Vendor::new("");
    let foreign = Foreign::new(vendor.path("foreign"));
    fs::remove_file(vendor.path("example.com~broken/broken")).unwrap();
    vendor.script("example.com~broken/broken", &names(&foreign.device));
    vendor.configure("");
    // The data is outside the areas that blkid reads, and not at an end of the device.
    let data = vec![7; 4096];
    let file = File::options().read(true).write(true).open(&foreign.file);
    let file = file.unwrap();
    file.write_all_at(&data, 31 << 20).unwrap();
    file.sync_all().unwrap();
    let before = fs::read(&foreign.file).unwrap();
    let output = vendor
        .tester(&["run", "--format", "json", "--filter", "mnt.happy,umt.keeps"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for check in report["checks"].as_array().unwrap() {
        let reason = check["reason"].as_str().unwrap_or_default();
        assert_eq!(check["outcome"], "error", "{report:#}");
        assert!(reason.contains("is not formatted"), "{report:#}");
    }
    assert!(fs::read(&foreign.file).unwrap() == before, "it was written");
    assert_eq!(foreign.shows().as_ref(), Some(&foreign.file));
    Ok(())
}

pub fn named_by_options() -> Verdict {
    let vendor = Vendor::new("ignores-unknown forgets-the-device");
    let [shared, told] = ["shared", "told"].map(|name| Foreign::new(vendor.path(name)));
    vendor.configure("");
    let create = fs::read_to_string(vendor.path("create")).unwrap();
    let more = format!(",\"pool\":\"{}\"}}'", told.file.display());
    vendor.script("create", &create.replace("}'", &more));
    let config = fs::read_to_string(vendor.path("sanity.toml")).unwrap();
    let config = format!("{config}[options]\nshared = {:?}\n", shared.file);
    fs::write(vendor.path("sanity.toml"), config).unwrap();
    let output = vendor
        .tester(&["run", "--format", "json", "--filter", "umt.happy,mnt.happy"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["passed"], 2, "{report:#}");
    // The tester must have removed what the driver left on its own volumes.
    let left = report["checks"][0]["left-behind"].to_string();
    assert!(left.contains("a loop device on sanity-"), "{report:#}");
    for foreign in [&shared, &told] {
        assert_eq!(foreign.shows().as_ref(), Some(&foreign.file), "{report:#}");
    }
    Ok(())
}
