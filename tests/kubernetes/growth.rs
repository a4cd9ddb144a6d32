//! Claims are edited, and volumes grow.

use crate::{
    lab::{BLOCK, DISK},
    objects::pod,
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::json;

tests! {
    "a running pod's volume grows when its claim is edited", &[Need::Root] => online;
    "a volume that nobody uses has grown when its next pod's first command runs", &[Need::Root]
        => offline;
}

fn online(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "online", 320);
    let app = pod("app", "online");
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let before = scenario.size_in(&app);
    scenario.ask_for("online", 640);
    scenario.wait_grown("online", 640);
    let after = scenario.size_in(&app);
    // The size of XFS's metadata is the same before and after.
    assert_eq!(after - before, 320, "{before} MiB became {after} MiB");
    assert_eq!(scenario.image_bytes("online"), 640 << 20);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    let calls = scenario.calls(&["expandfs", "expandvolume"], "online");
    assert!(
        calls
            .iter()
            .all(|call| call.callout() == "expandfs" && call.succeeded()),
        "{calls:?}"
    );
    scenario.end();
}

fn offline(_: &Points) {
    for driver in [DISK, BLOCK] {
        let scenario = Scenario::begin();
        scenario.volume(driver, "offline", 320);
        let early = pod("early", "offline");
        scenario.run_pod(&early);
        scenario.exec(&early, "head -c 5000000 /dev/urandom >/data/file");
        let sum = scenario.exec(&early, "sha256sum /data/file");
        let before = scenario.size_in(&early);
        scenario.delete_pod(&early);
        scenario.ask_for("offline", 640);
        let waits = || {
            let status = scenario.claim("default", "offline")["status"].clone();
            assert_eq!(status["capacity"]["storage"], "320Mi", "nobody grew it");
            let conditions = status["conditions"].to_string();
            conditions.contains("FileSystemResizePending")
        };
        scenario.eventually("the claim to wait for a pod", waits);
        let mut late = pod("late", "offline");
        late["spec"]["containers"][0]["command"] = json!([
            "sh",
            "-c",
            "stat -f -c '%b %S' /data >/data/size && exec sleep infinity"
        ]);
        scenario.run_pod(&late);
        let after = scenario.size_in(&late);
        assert_eq!(after - before, 320, "{before} MiB became {after} MiB");
        let first = scenario.exec(&late, "cat /data/size");
        assert_eq!(first, scenario.exec(&late, "stat -f -c '%b %S' /data"));
        assert_eq!(scenario.exec(&late, "sha256sum /data/file"), sum);
        assert_eq!(scenario.image_bytes("offline"), 640 << 20);
        scenario.wait_grown("offline", 640);
        scenario.end();
    }
}
