//! Deletions that call a volume by a name: only its own will do.

use crate::{
    NOW,
    matrix::ready,
    model::{GLOBAL, Model},
};
use flexvol_sdk::{ErrorKind, VolumeName};
use flexvol_storage::{
    Goal,
    decide::{Next, Step, decide},
};
use std::time::Duration;

/// Deletes a volume that is called by a name or by none.
fn delete(called: Option<&str>) -> Goal {
    Goal::Deleted {
        name: called.map(|name| VolumeName::parse(name).expect("a name")),
        now: NOW,
        keep: Some(Duration::ZERO),
    }
}

/// Deletes a volume under the name of another one.
pub fn delete_as_another() -> Goal {
    delete(Some("other"))
}

#[test]
fn a_volume_is_deleted_by_its_handle_with_its_own_name_or_with_none() {
    let mut model = ready(1, 1, false, &[]);
    let next = |model: &Model, called| {
        let goal = delete(called);
        decide(&model.seen(GLOBAL, &goal), &goal)
    };
    for called in [None, Some("data")] {
        assert!(matches!(next(&model, called), Next::Do(Step::Mark(_))));
    }
    let Next::Refuse(kind, why) = next(&model, Some("other")) else {
        panic!("deleted under the name of another one");
    };
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(why.contains("other") && !why.contains("data"), "{why}");
    // Nothing contradicts the name.
    model.asset.as_mut().expect("ready").1.name = None;
    assert!(matches!(
        next(&model, Some("other")),
        Next::Do(Step::Mark(_))
    ));
}
