//! Runs the examples of flex-spec.md one after another with an installed driver.

use crate::{
    examples::{examples, filled},
    sandbox,
};
use flexvol_testing::{Need, Points, tests, volume_id};
use std::fs;

tests! {
    "spec: every example gets the reply it shows", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => examples_are_true;
}

fn examples_are_true(points: &Points) {
    let sandbox = sandbox();
    let local = sandbox.install("example.com/loop", false, "");
    let attaching = sandbox.install("example.com/attaching", true, "");
    let dir = format!("{}/", sandbox.kubelet_root().join("spec").display());
    for name in ["", "node", "pod"] {
        fs::create_dir(format!("{dir}{name}")).unwrap();
    }
    let (mut handle, mut id) = (String::new(), String::new());
    for example in examples() {
        let driver = if example.attach { &attaching } else { &local };
        let argv: Vec<String> = example
            .argv
            .iter()
            .map(|word| {
                let values = [("DIR/", &*dir), ("HANDLE", &handle), ("VOLUMEID", &id)];
                filled(word, &values)
            })
            .collect();
        let call = driver.call(&argv);
        // Values that are not known before the call are in its reply.
        let object = call.object().unwrap_or_else(|e| panic!("{e}: {call}"));
        if example.section == "provision" && handle.is_empty() {
            handle = call.text("volumeName");
            id = volume_id(&handle);
        }
        let bytes = object.get("capacity").map(ToString::to_string);
        let space = object.get("poolspace");
        let size = space.map(|space| space["size"].to_string());
        let values = [
            ("HANDLE", handle.as_str()),
            ("VOLUMEID", id.as_str()),
            ("BYTES", bytes.as_deref().unwrap_or("BYTES")),
            ("POOLSIZE", size.as_deref().unwrap_or("POOLSIZE")),
        ];
        let reply = format!("{}\n", filled(&example.reply, &values));
        assert_eq!(String::from_utf8_lossy(&call.output), reply, "{call}");
        points.add(1);
    }
}
