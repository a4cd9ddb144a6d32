//! Requests of a set's annotations, and what a claim needs to meet them.

use crate::{
    drivers::ServedDrivers,
    k8s::{
        claim::{asked, capacity, failure, is_bound, provisioner},
        stateful_set::{claim_name, ordinals, too_large, wanted},
    },
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};

/// The need of one claim of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The claim does not exist or is large enough.
    Nothing,
    /// It cannot be asked yet, because it is unbound or deleted, or its patch failed.
    Time,
    /// It was asked, and has not grown yet.
    Growth,
    /// It was asked, and its storage cannot grow, according to its status.
    Storage,
    /// It has to be asked for this size.
    Ask(Bytes),
    /// It has this larger size, and volumes do not shrink.
    Smaller(Bytes),
}

pub(super) fn need(claim: &PersistentVolumeClaim, wanted: Bytes) -> Need {
    let asked = asked(claim);
    if claim.metadata.deletion_timestamp.is_some() || !is_bound(claim) {
        Need::Time
    } else if let Some(has) = too_large(claim, wanted) {
        Need::Smaller(has)
    } else if capacity(claim) >= wanted {
        Need::Nothing
    } else if asked < wanted {
        Need::Ask(wanted)
    } else if failure(claim).is_some() {
        Need::Storage
    } else {
        Need::Growth
    }
}

/// Returns the provisioner of a claim that is not ours to grow.
pub(super) fn stranger<'a>(
    claim: &'a PersistentVolumeClaim,
    ours: &ServedDrivers,
) -> Option<&'a str> {
    provisioner(claim).filter(|name| ours.driver_of(name).is_none())
}

/// A claim to which a set's annotations apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedClaim {
    pub claim: String,
    /// Ordinal of its pod.
    pub ordinal: i64,
    /// The requested size.
    pub size: Bytes,
}

/// A template's claims, the highest ordinal first, which is the order in which sets update pods.
fn claims_of<'a>(
    set: &'a StatefulSet,
    template: &str,
    size: Bytes,
) -> impl Iterator<Item = WantedClaim> + use<'a> {
    let template = template.to_owned();
    let ordinals = ordinals(set).rev();
    ordinals.map(move |ordinal| WantedClaim {
        claim: claim_name(set, &template, ordinal),
        ordinal,
        size,
    })
}

/// All claims to which a set's annotations apply, with the requested sizes.
pub(super) fn wanted_claims(set: &StatefulSet) -> impl Iterator<Item = WantedClaim> {
    let sizes = wanted(set).into_iter();
    let sizes = sizes.filter_map(|(template, size)| Some((template, size.ok()?)));
    sizes.flat_map(|(template, size)| claims_of(set, &template, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::stateful_set::tests::set;
    use serde_json::{Value, from_value, json};

    #[test]
    fn claims_are_named_by_ordinal_and_taken_from_the_last() {
        let names = |more: Value| {
            let set = set(more);
            let claims = claims_of(&set, "data", Bytes(1));
            claims.map(|asked| asked.claim).collect::<Vec<_>>()
        };
        assert_eq!(names(json!({})), ["data-db-2", "data-db-1", "data-db-0"]);
        let later = json!({"ordinals": {"start": 5}, "replicas": 1});
        assert_eq!(names(later), ["data-db-5"]);
        assert!(names(json!({"replicas": 0})).is_empty());
        let mut endless = set(json!({"replicas": i32::MAX}));
        assert_eq!(claims_of(&endless, "data", Bytes(1)).count(), 100);
        endless.status = Some(from_value(json!({"replicas": 500})).unwrap());
        assert_eq!(claims_of(&endless, "data", Bytes(1)).count(), 600);
    }

    #[test]
    fn claims_of_other_provisioners_are_strangers_and_those_of_volumes_by_hand_are_not() {
        let claim = |annotations: Value| -> PersistentVolumeClaim {
            from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let by = |driver: &str| claim(json!({"volume.kubernetes.io/storage-provisioner": driver}));
        let ours = ServedDrivers::from(["a/b"]);
        assert_eq!(stranger(&by("a/b"), &ours), None);
        assert_eq!(stranger(&by("csi.c"), &ours), Some("csi.c"));
        assert_eq!(stranger(&claim(json!({})), &ours), None);
    }

    #[test]
    fn a_claim_is_asked_once_it_is_bound_and_never_for_less() {
        let claim = |phase: &str, asked: &str, has: &str| -> PersistentVolumeClaim {
            from_value(json!({
                "metadata": {"name": "data-db-0"},
                "spec": {"resources": {"requests": {"storage": asked}}},
                "status": {"phase": phase, "capacity": {"storage": has}},
            }))
            .unwrap()
        };
        let size = Bytes(2 << 30);
        assert_eq!(need(&claim("Pending", "1Gi", "0"), size), Need::Time);
        assert_eq!(need(&claim("Bound", "1Gi", "1Gi"), size), Need::Ask(size));
        assert_eq!(need(&claim("Bound", "2Gi", "1Gi"), size), Need::Growth);
        assert_eq!(need(&claim("Bound", "3Gi", "1Gi"), size), Need::Growth);
        assert_eq!(need(&claim("Bound", "2Gi", "2Gi"), size), Need::Nothing);
        let mut fails = claim("Bound", "2Gi", "1Gi");
        let condition = json!([{"type": "ControllerResizeError", "status": "True"}]);
        fails.status.as_mut().unwrap().conditions = from_value(condition).unwrap();
        assert_eq!(need(&fails, size), Need::Storage);
        let rounded = need(&claim("Bound", "2Gi", "2052Mi"), size);
        assert_eq!(rounded, Need::Nothing, "the driver rounds up");
        let roomy = need(&claim("Bound", "1Gi", "3Gi"), size);
        assert_eq!(
            roomy,
            Need::Nothing,
            "the driver makes none that are smaller"
        );
        assert_eq!(
            need(&claim("Bound", "3Gi", "3Gi"), size),
            Need::Smaller(Bytes(3 << 30))
        );
    }
}
