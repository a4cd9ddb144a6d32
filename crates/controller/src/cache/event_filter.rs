//! Event filter: which changes of a claim are a reason to reconcile its volume.

use crate::{
    api::well_known::CLAIM_FINALIZER,
    k8s::{
        claim,
        meta::{has_finalizer, uid},
    },
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use std::time::Duration;
use tokio::time::Instant;

/// The last seen state of a claim, reduced to fields whose change may be a reason to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimSummary {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub held: bool,
    pub deleting: bool,
    /// The volume to which it is, or will be, bound.
    pub volume: Option<String>,
    pub class: Option<String>,
    version: Option<String>,
    phase: Option<String>,
    node: Option<String>,
    request: Bytes,
    /// It may change and stay below the request: kubelet finishes a growth that a larger request has overtaken.
    capacity: Bytes,
    file_system_resize_pending: bool,
    /// Compared because Kubernetes' own expander may remove it although the storage still fails to grow.
    failure: Option<String>,
    looks: Looks,
}

/// Rate limit of reconciliations because of changes of one claim. Its author may edit a claim endlessly, and each
/// reconciliation takes several requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Looks {
    last: Option<Instant>,
    /// Number of immediate ones since the last quiet period.
    quick: u32,
}

/// Minimum interval between reconciliations of a claim with irrelevant changes.
const APART: Duration = Duration::from_secs(5);

/// Number of relevant changes that cause an immediate reconciliation, until the claim was quiet for [`LATELY`]. The
/// life of a claim has fewer changes.
const QUICK: u32 = 10;
const LATELY: Duration = Duration::from_secs(60);

/// Relevance of a claim's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// No change.
    Old,
    /// A change of fields that decisions ignore.
    Touched,
    /// A change that may change decisions.
    Changed,
}

impl Looks {
    /// Returns when to reconcile after a change.
    fn at(&mut self, now: Instant, news: News) -> Instant {
        let is_long_ago = |last| now.saturating_duration_since(last) >= LATELY;
        if self.last.is_none_or(is_long_ago) {
            self.quick = 0;
        }
        let at = if news == News::Changed && self.quick < QUICK {
            self.quick += 1;
            now
        } else {
            match self.last {
                Some(last) if last > now => last,
                Some(last) => now.max(last + APART),
                None => now,
            }
        };
        self.last = Some(at);
        at
    }
}

impl ClaimSummary {
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let spec = claim.spec.clone().unwrap_or_default();
        ClaimSummary {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
            uid: uid(&claim.metadata).to_owned(),
            held: has_finalizer(&claim.metadata, CLAIM_FINALIZER),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            volume: spec.volume_name.clone().filter(|name| !name.is_empty()),
            class: claim::class_name(claim).map(str::to_owned),
            version: claim.metadata.resource_version.clone(),
            phase: claim
                .status
                .as_ref()
                .and_then(|status| status.phase.clone()),
            node: claim::selected_node(claim).map(str::to_owned),
            request: claim::request_or_most(&spec),
            capacity: claim::capacity(claim),
            file_system_resize_pending: claim::file_system_resize_pending(claim, Bytes(0))
                .is_some(),
            failure: claim::failure(claim),
            looks: Looks::default(),
        }
    }

    /// Returns when to reconcile the claim's volume, given the previously seen state. Returns `None` if the change is
    /// irrelevant or this process has `written` it.
    pub fn look(
        &mut self,
        before: Option<&ClaimSummary>,
        written: bool,
        now: Instant,
    ) -> Option<Instant> {
        if let Some(before) = before {
            self.looks = before.looks.clone();
        }
        match self.news(before) {
            News::Old => None,
            _ if written => None,
            news => Some(self.looks.at(now, news)),
        }
    }

    /// The volume to which the claim is bound.
    pub fn bound_to(&self) -> Option<&str> {
        let bound = self.phase.as_deref() == Some("Bound");
        self.volume.as_deref().filter(|_| bound)
    }

    /// Whether the claim waits for a volume, or for a requested growth.
    pub fn is_waiting(&self) -> bool {
        let has = match self.bound_to() {
            Some(_) => self.request <= self.capacity,
            None => !self.held,
        };
        !has && !self.deleting
    }

    /// Classifies the change since the previously seen state. While the claim is unbound, any change is a reason to
    /// reconcile, which its author may want. A new request to kubelet is no reason, because nobody else can act. The
    /// end of that request is a reason if the claim still requests more.
    pub fn news(&self, before: Option<&ClaimSummary>) -> News {
        let Some(before) = before else {
            return News::Changed;
        };
        // Our finalizer on an unbound claim is this controller's own write.
        let held = self.held && !before.held && self.volume.is_none();
        let same = ClaimSummary {
            held: before.held || held,
            file_system_resize_pending: self.file_system_resize_pending,
            version: self.version.clone(),
            looks: self.looks.clone(),
            ..before.clone()
        };
        if *self != same || before.file_system_resize_pending && !self.file_system_resize_pending {
            News::Changed
        } else if self.volume.is_none() && self.version != before.version && !held {
            News::Touched
        } else {
            News::Old
        }
    }

    /// Whether the change is a reason to reconcile.
    #[cfg(test)]
    fn is_news(&self, before: Option<&ClaimSummary>) -> bool {
        self.news(before) != News::Old
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::well_known::SELECTED_NODE;
    use serde_json::{from_value, json};

    fn seen(capacity: &str, file_system_resize_pending: bool) -> ClaimSummary {
        let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
        let conditions = if file_system_resize_pending {
            pending
        } else {
            json!([])
        };
        let claim = json!({
            "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "3Gi"}}},
            "status": {
                "phase": "Bound", "capacity": {"storage": capacity}, "conditions": conditions,
            },
        });
        ClaimSummary::of(&from_value(claim).unwrap())
    }

    #[test]
    fn the_end_of_a_growth_that_a_larger_one_has_overtaken_is_news() {
        let growing = seen("1Gi", true);
        assert!(seen("1Gi", false).is_news(Some(&growing)));
        assert!(seen("2Gi", true).is_news(Some(&growing)));
        assert!(!growing.is_news(Some(&growing)));
        // The controller, or Kubernetes' own expander, asks kubelet to grow the file system.
        assert!(!growing.is_news(Some(&seen("1Gi", false))));
        assert!(growing.is_news(None));
    }

    #[test]
    fn whoever_touches_a_claim_that_is_not_bound_asks_for_it_to_be_looked_at() {
        let claim = |volume: &str, version: &str| {
            let claim = json!({
                "metadata": {"name": "data", "resourceVersion": version},
                "spec": {"volumeName": volume},
            });
            ClaimSummary::of(&from_value(claim).unwrap())
        };
        assert!(claim("", "2").is_news(Some(&claim("", "1"))));
        assert!(
            !claim("", "2").is_news(Some(&claim("", "2"))),
            "listed anew"
        );
        assert!(!claim("pv", "2").is_news(Some(&claim("pv", "1"))));
    }

    #[test]
    fn whoever_touches_a_claim_again_and_again_has_it_looked_at_every_five_seconds() {
        let begun = Instant::now();
        let mut before: Option<ClaimSummary> = None;
        let mut looks = Vec::new();
        // Ten changes a second. After a minute, the selected node changes each time.
        for tenth in 0..1200_u32 {
            let moved = (tenth >= 600).then(|| json!({SELECTED_NODE: format!("n{tenth}")}));
            let claim = from_value(json!({"metadata": {
                "name": "data", "resourceVersion": tenth.to_string(), "annotations": moved,
            }}))
            .unwrap();
            let mut seen = ClaimSummary::of(&claim);
            let now = begun + Duration::from_millis(u64::from(tenth) * 100);
            if let Some(at) = seen.look(before.as_ref(), false, now) {
                looks.push((at - begun).as_millis());
            }
            before = Some(seen);
        }
        looks.dedup();
        let touched = looks.iter().filter(|at| **at < 60_000).count();
        assert!((12..=13).contains(&touched), "{looks:?}");
        let moved = looks.iter().filter(|at| **at >= 60_000).count();
        assert!((12..=12 + 10).contains(&moved), "{looks:?}");
        assert!(
            looks[..touched]
                .windows(2)
                .all(|two| two[1] - two[0] >= 5000)
        );
    }

    #[test]
    fn what_is_chosen_for_a_claim_is_seen_at_once_although_it_was_touched() {
        let of = |version: &str, node: &str| {
            let claim = json!({"metadata": {
                "name": "data", "resourceVersion": version,
                "annotations": {SELECTED_NODE: node},
            }});
            ClaimSummary::of(&from_value(claim).unwrap())
        };
        let now = Instant::now();
        let mut first = of("1", "a");
        assert_eq!(first.look(None, false, now), Some(now));
        let mut touched = of("2", "a");
        assert_eq!(touched.look(Some(&first), false, now), Some(now + APART));
        let mut own = of("3", "a");
        assert_eq!(own.look(Some(&touched), true, now), None);
        let mut chosen = of("4", "b");
        assert_eq!(chosen.look(Some(&own), false, now), Some(now));
    }

    #[test]
    fn a_claim_waits_while_it_is_made_or_has_less_than_it_asks_for() {
        let waits = |phase: &str, held: bool, has: &str, deleting: bool| {
            let claim = json!({
                "metadata": {
                    "finalizers": held.then_some([CLAIM_FINALIZER]),
                    "deletionTimestamp": deleting.then_some("2026-11-22T12:00:00Z"),
                },
                "spec": {
                    "volumeName": (phase == "Bound").then_some("pvc-1"),
                    "resources": {"requests": {"storage": "2Gi"}},
                },
                "status": {"phase": phase, "capacity": {"storage": has}},
            });
            ClaimSummary::of(&from_value(claim).unwrap()).is_waiting()
        };
        assert!(waits("Pending", true, "0", false));
        assert!(waits("Bound", true, "1Gi", false));
        assert!(waits("Bound", false, "1Gi", false));
        assert!(!waits("Pending", false, "0", false), "for its first pod");
        assert!(!waits("Bound", true, "2Gi", false));
        assert!(!waits("Bound", false, "1Gi", true));
    }
}
