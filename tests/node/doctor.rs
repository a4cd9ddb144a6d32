//! What the kernel is found to offer.

use flexvol_testing::{Need, Points, Test};
use std::{env, process::Command};

pub const TESTS: &[Test] = &[Test {
    name: "doctor: names the calls that an old kernel lacks",
    needs: &[Need::Root],
    run: substitutes,
}];

fn substitutes(points: &Points) {
    let output = Command::new(crate::executable())
        .args(["doctor", "--output", "json", "--plugin-dir", "/nonexistent"])
        .output()
        .unwrap();
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks.as_array().unwrap();
    let check = |about: &str| checks.iter().find(|check| check["check"] == about).unwrap();
    let found = check("system calls")["found"].as_str().unwrap();
    let is_old = env::var_os("FLEXVOL_KERNEL").is_some_and(|kernel| kernel == "older");
    assert_eq!(found.starts_with("substituted: "), is_old, "{found}");
    for name in [
        "fsopen",
        "move_mount",
        "openat2",
        "close_range",
        "mount_setattr",
    ] {
        assert!(found.contains(name), "{name} in {found}");
        points.add(1);
    }
}
