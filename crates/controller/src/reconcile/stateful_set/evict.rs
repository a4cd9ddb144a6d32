//! Evicts pods, one at a time, whose volumes grow only while no pod uses them.
//!
//! This happens only for stateful sets that permit it. No state is kept except for which growths a pod was evicted:
//! pods, claims and NodeVolumes are read live, and again in the turn after the one that found a pod to evict. A turn
//! reads a few claims, and the next one goes on. The eviction API respects disruption budgets.

use super::{
    SOON, WAITS,
    eviction_decision::{Decision, Snapshot, WaitReason, decide},
    recent_evictions::RecentEvictions,
    snapshot::{Claims, Pods},
};
use crate::{
    api::well_known::RESIZE_FAILED,
    client::{Refusal, is_forbidden, refusal},
    drivers::ServedDrivers,
    events::{EventRecorder, EventType},
    runtime::{backoff::Backoff, work_queue::Outcome},
    support::log,
};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt, api::PostParams, core::Status};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time after which a first look does not count any more.
const STALE: Duration = Duration::from_secs(30);

/// The result of a set's turn.
pub(super) enum Turn {
    /// A pod was evicted, or the set waits for one.
    Taken(Outcome),
    /// The next turn goes on.
    GoesOn {
        /// No pod down to this ordinal can be evicted yet.
        passed: Option<i64>,
        /// What is known of the next pod.
        unfinished: Option<Unfinished>,
    },
}

/// A pod that one turn does not suffice for.
#[derive(Clone, Debug, Default)]
pub(super) struct Unfinished {
    claims: Claims,
    /// The UID of the pod that may be evicted if a second look, which began then, confirms it.
    to_confirm: Option<(String, Instant)>,
}

/// Evicts pods whose volumes grow only then.
pub(super) struct Evictions {
    client: Client,
    ours: ServedDrivers,
    events: Arc<EventRecorder>,
    recent_evictions: RecentEvictions,
}

impl Evictions {
    /// Creates the state, without any evictions.
    pub fn new(client: Client, ours: ServedDrivers, events: Arc<EventRecorder>) -> Self {
        Evictions {
            client,
            ours,
            events,
            recent_evictions: RecentEvictions::default(),
        }
    }

    /// Evicts the first of these pods that may be evicted, or waits for it. A pod is passed over if the storage of
    /// any of its claims has to grow first. Ends after some claims, so that the next set has its turn, and after it has
    /// found a pod, which the next turn looks at again. Events are recorded if it `tells`.
    pub async fn evict_next(
        &self,
        set: &StatefulSet,
        ordinals: &[i64],
        begun: Option<Unfinished>,
        tells: bool,
    ) -> Result<Turn> {
        let Unfinished { claims, to_confirm } = begun.unwrap_or_default();
        let mut pods = match Pods::list(&self.client, &self.ours, set, ordinals, claims).await {
            Err(error) if is_forbidden(&error) => return Ok(Turn::Taken(self.may_not(set))),
            listed => listed?,
        };
        let mut passed = None;
        for ordinal in ordinals {
            let Some((seen, decision)) = self.judged(set, &mut pods, *ordinal).await? else {
                let claims = pods.into_claims(*ordinal);
                let unfinished = Some(Unfinished { claims, to_confirm });
                return Ok(Turn::GoesOn { passed, unfinished });
            };
            match decision {
                Decision::Evict { name, uid } => {
                    let first = to_confirm.as_ref().filter(|(first, _)| *first == uid);
                    let is_confirmed = match first {
                        Some((_, since)) if since.elapsed() < STALE => true,
                        // The turns of other sets took longer. With a second look in the next turn, none would be evicted.
                        Some(_) => self.looks_the_same(set, *ordinal, &uid).await?,
                        None => false,
                    };
                    if is_confirmed {
                        let outcome = self.evict(set, &seen, &name, &uid).await?;
                        return Ok(Turn::Taken(outcome));
                    }
                    let unfinished = Some(Unfinished {
                        claims: Claims::new(),
                        to_confirm: Some((uid, Instant::now())),
                    });
                    return Ok(Turn::GoesOn { passed, unfinished });
                }
                Decision::Wait(why @ WaitReason::Storage(_)) => {
                    self.passes_over(set, *ordinal, &why, tells);
                    passed = Some(*ordinal);
                }
                Decision::Wait(why) => return Ok(Turn::Taken(self.waits(set, &seen, &why))),
            }
        }
        Ok(Turn::GoesOn {
            passed,
            unfinished: None,
        })
    }

    /// Whether a second look finds the same pod to evict. It reads all claims of that one pod, because the first look
    /// may have taken several turns, and so would be too old again.
    async fn looks_the_same(&self, set: &StatefulSet, ordinal: i64, uid: &str) -> Result<bool> {
        let (client, ours) = (&self.client, &self.ours);
        let pods = Pods::list(client, ours, set, &[ordinal], Claims::new()).await?;
        let mut pods = pods.without_limit();
        let judged = self.judged(set, &mut pods, ordinal).await?;
        Ok(matches!(judged, Some((_, Decision::Evict { uid: now, .. })) if now == uid))
    }

    /// Reads and judges a pod. Returns `None` if that takes more claims than this turn may read.
    async fn judged(
        &self,
        set: &StatefulSet,
        pods: &mut Pods<'_>,
        ordinal: i64,
    ) -> Result<Option<(Snapshot, Decision)>> {
        let Some(mut seen) = pods.snapshot(ordinal).await? else {
            return Ok(None);
        };
        let namespace = set.namespace().unwrap_or_default();
        self.recent_evictions.mark(&namespace, &mut seen.claims);
        let decision = decide(&seen, Timestamp::now());
        Ok(Some((seen, decision)))
    }

    /// Reports that nobody has allowed the controller to stop pods of this namespace.
    fn may_not(&self, set: &StatefulSet) -> Outcome {
        let text = format!(
            "no pod is stopped so that its volumes grow: the controller may not list pods in namespace {}; bind it to the ClusterRole flexvol-stop-pods there, or stop the pods yourself",
            set.namespace().unwrap_or_default()
        );
        log::warn(
            "pods may not be stopped",
            &[("set", &set.name_any()), ("error", &text)],
        );
        self.events
            .record(set, EventType::Warning, RESIZE_FAILED, &text);
        Outcome::RequeueWithBackoff(WAITS)
    }

    /// Reports why another pod has its turn.
    pub fn passes_over(&self, set: &StatefulSet, ordinal: i64, why: &WaitReason, tells: bool) {
        self.tell(set, ordinal, why, tells.then_some(EventType::Normal));
    }

    /// Reports what blocks an eviction, unless it is reported elsewhere or temporary.
    fn waits(&self, set: &StatefulSet, seen: &Snapshot, why: &WaitReason) -> Outcome {
        let its_own = |name: &String| {
            let pod = seen.pods.iter().find(|pod| pod.name == *name);
            pod.is_some_and(|pod| pod.ordinal == seen.last)
        };
        let tone = match why {
            WaitReason::InVain { .. } | WaitReason::Large(_) => Some(EventType::Warning),
            WaitReason::Rolls
            | WaitReason::Revision(_)
            | WaitReason::Unready(_)
            | WaitReason::KeptOut(_) => Some(EventType::Normal),
            WaitReason::Going(pod) if !its_own(pod) => Some(EventType::Normal),
            _ => None,
        };
        self.tell(set, seen.last, why, tone);
        match why {
            WaitReason::MayExpand(rest) => Outcome::RequeueAfter(*rest),
            _ => Outcome::RequeueWithBackoff(WAITS),
        }
    }

    /// Writes to the log, and an event of this type, if any.
    fn tell(&self, set: &StatefulSet, ordinal: i64, why: &WaitReason, tone: Option<EventType>) {
        let text = format!(
            "pod {}-{ordinal} is not stopped so that its volumes grow: {why}",
            set.name_any()
        );
        log::info("a pod waits to grow", &[("error", &text)]);
        if let Some(tone) = tone {
            let reason = match tone {
                EventType::Normal => "Resizing",
                EventType::Warning => RESIZE_FAILED,
            };
            self.events.record(set, tone, reason, &text);
        }
    }

    async fn evict(
        &self,
        set: &StatefulSet,
        seen: &Snapshot,
        name: &str,
        uid: &str,
    ) -> Result<Outcome> {
        let namespace = set.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let plain = PostParams::default();
        let asked = pods.create_subresource("eviction", name, &plain, &eviction);
        let claims: Vec<_> = seen.claims.iter().map(|claim| &*claim.name).collect();
        let claims = claims.join(", ");
        let refused = match asked.await {
            // A pod with two budgets is not evicted, and the response is a failed status with HTTP code 2xx.
            Ok(status) if Status::is_failure(&status) => status,
            Ok(_) => {
                self.recent_evictions.add(&namespace, &seen.claims);
                log::info("a pod is stopped", &[("pod", name), ("claims", &claims)]);
                let text = format!("pod {name} was evicted; until it is back, {claims} can grow");
                self.events
                    .record(set, EventType::Normal, "Resizing", &text);
                return Ok(Outcome::RequeueAfter(SOON));
            }
            // The pod is gone, or was replaced.
            Err(error) if refusal(&error) != Refusal::Other => {
                return Ok(Outcome::RequeueAfter(SOON));
            }
            Err(kube::Error::Api(status)) => *status,
            Err(error) => return Err(error).context("evict a pod"),
        };
        let text = format!(
            "pod {name} is not stopped so that {claims} can grow: {}",
            refusal_message(&refused)
        );
        log::warn("a pod is not stopped", &[("error", &text)]);
        self.events
            .record(set, EventType::Warning, RESIZE_FAILED, &text);
        Ok(Outcome::RequeueWithBackoff(backoff(&refused)))
    }
}

/// The pause before the next attempt, at least as long as the API server demands.
fn backoff(refused: &Status) -> Backoff {
    let details = refused.details.as_ref();
    let seconds = details.map_or(0, |details| details.retry_after_seconds);
    let first = Duration::from_secs(seconds.into());
    Backoff {
        first: first.clamp(WAITS.first, WAITS.longest),
        ..WAITS
    }
}

/// The API server's message, with the disruption budget that it names.
fn refusal_message(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes = causes.map(|cause| cause.message.as_str());
    let all: Vec<_> = std::iter::once(status.message.as_str())
        .chain(causes)
        .collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn a_pod_whose_budget_holds_it_is_asked_for_again_when_the_api_server_says_so() {
        let first = |details| {
            let status = json!({
                "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "no",
                "details": details,
            });
            backoff(&from_value(status).unwrap()).first.as_secs()
        };
        assert_eq!(first(json!({"retryAfterSeconds": 10})), 10);
        assert_eq!(first(json!({"retryAfterSeconds": 9999})), 300);
        assert_eq!(first(json!({})), 5);
        assert_eq!(first(json!(null)), 5);
    }
}
