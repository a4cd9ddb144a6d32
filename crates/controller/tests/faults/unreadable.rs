//! Claims whose author wrote a time of the year 10000. kube-apiserver 1.37 takes "9999-12-31T23:59:59-12:00" in an update
//! of `metadata.managedFields`, and answers it in UTC.

use crate::{
    large_claims,
    world::{World, tell},
};
use serde_json::{Value, json};
use std::process::Command;

fn metadata() -> Value {
    json!({"managedFields": [{
        "manager": "author", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {}}, "time": "10000-01-01T11:59:59Z",
    }]})
}

/// Another claim is created with the name of a deleted one.
pub fn successor() {
    large_claims::replaced_by(&metadata());
}

/// A claim of ours has such a time.
pub fn own() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        for claim in ["data", "other"] {
            world.claim(claim, "plain");
        }
        world.eventually("the claims to be bound", |world| {
            world.is_bound("data") && world.is_bound("other")
        })?;
        world.edit("data", &json!({"metadata": metadata()}));
        world.ask_for("data", "20Mi");
        world.eventually("it to grow", |world| {
            world.the_claim("data")["status"]["capacity"]["storage"] == "20Mi"
        })?;
        let status = Command::new(env!("CARGO_BIN_EXE_flexvol-controller"))
            .arg("status")
            .arg(format!("--kubeconfig={}", world.path("kubeconfig")))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&[status.stdout, status.stderr].concat()).into_owned();
        assert!(status.status.success(), "{told}");
        for words in ["default/data", "not understood", "1 volumes are settled"] {
            assert!(told.contains(words), "{words}: {told}");
        }
        world.delete_claim("data");
        world.delete_claim("other");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
