//! Claims that are edited, and volumes that grow.

use crate::{
    lab::DISK,
    scenario::{Scenario, pod},
};
use flexvol_testing::{Need, Points, Test};

pub const TESTS: &[Test] = &[Test {
    name: "a running pod's volume grows when its claim is edited",
    needs: &[Need::Root],
    run: online,
}];

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
    // What XFS keeps for itself is the same before and after.
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
