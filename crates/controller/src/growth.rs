//! The growth of a volume that is settled, with as few requests as possible: the claim is read live, and
//! of volume and order what watches have told. What is written to these is written on the condition of
//! the version that was told of, so a decision from old news is refused, and everything is read.

use crate::{
    act::Act,
    api::{is_conflict, is_refused, words},
    controller::{Controller, OTHERS, STEPS},
    decide::{Observed, Step, decide},
    names::claim_uid,
    observe::{self, Live},
    queue::Outcome,
    wish,
};
use anyhow::{Context, Result};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{Api, Client};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Kubernetes has looked at the class when the claim was edited; so it need not be read each time.
const CLASS_KNOWN: Duration = Duration::from_secs(60);

/// Classes that were read lately, and that let their volumes grow: of others there may be news.
#[derive(Debug, Default)]
pub(crate) struct Classes(Mutex<HashMap<String, (Instant, StorageClass)>>);

impl Classes {
    /// It may have changed.
    pub fn forget(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(name);
    }

    async fn get(&self, client: &Client, name: &str) -> Result<Option<StorageClass>> {
        let known = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(name).cloned()
        };
        if let Some((when, class)) = known
            && when.elapsed() < CLASS_KNOWN
        {
            return Ok(Some(class));
        }
        let classes: Api<StorageClass> = Api::all(client.clone());
        let class = classes
            .get_opt(name)
            .await
            .context("read the storage class")?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (when, _)| when.elapsed() < CLASS_KNOWN);
        if let Some(class) = &class
            && class.allow_volume_expansion == Some(true)
        {
            all.insert(name.to_owned(), (Instant::now(), class.clone()));
        }
        Ok(class)
    }
}

/// Why a class lets a claim not grow, if that asks for more: otherwise the class may not have been read.
pub(crate) fn forbids(
    class: Option<&StorageClass>,
    claim: &PersistentVolumeClaim,
) -> Option<String> {
    let name = wish::class_name(claim).unwrap_or_default();
    let why = match class {
        None => "is not there, so nobody can know whether the volume may grow; make it",
        Some(class) if class.allow_volume_expansion != Some(true) => {
            "does not allow growth any more; set its allowVolumeExpansion to true"
        }
        Some(_) => return None,
    };
    observe::grows(claim).then(|| format!("storage class {name:?} {why}"))
}

impl Controller {
    /// Takes the next steps of a growth; none if this is no usual one, and everything has to be read.
    pub(crate) async fn grow(
        &self,
        act: &Act<'_>,
        place: &(String, String),
    ) -> Result<Option<Outcome>> {
        if !self.index.has_both(act.name) || self.is_silent(act.name) {
            return Ok(None);
        }
        let Some(claim) = observe::claim(&self.client, claim_uid(act.name), place).await? else {
            return Ok(None);
        };
        match self.grow_claim(act, claim).await {
            Err(error) if is_conflict(&error) => Ok(None),
            done => done,
        }
    }

    /// Whether nothing is heard of the node that has the storage: then there is more to be read.
    fn is_silent(&self, name: &str) -> bool {
        let order = self.index.get(name).order;
        order.is_some_and(|order| self.nodes.silence(&order.what.node).is_some())
    }

    async fn grow_claim(
        &self,
        act: &Act<'_>,
        claim: PersistentVolumeClaim,
    ) -> Result<Option<Outcome>> {
        let class = match wish::class_name(&claim) {
            Some(name) => self.classes.get(&self.client, name).await?,
            None => None,
        };
        let mut live = Live {
            claim: Some(claim),
            class,
            ..Live::default()
        };
        for _ in 0..STEPS {
            let known = self.index.get(act.name);
            let (Some(volume), Some(order)) = (known.volume, known.order) else {
                return Ok(None);
            };
            let observed = Observed {
                volume: Some(volume.what),
                order: Some(order.what),
                ..live.observed(act.name, &self.ours)
            };
            let step = decide(&observed);
            match step {
                Step::Rest if live.claim.as_ref().is_some_and(observe::grows) => {
                    return Ok(Some(Outcome::InVain(OTHERS)));
                }
                Step::Rest => return Ok(Some(Outcome::Settled)),
                Step::Resize(size) => {
                    let resized = act.resize(&order.version, size).await?;
                    self.index
                        .order_written(&order.version, &resized, &self.ours);
                    live.order = Some(resized);
                }
                Step::SizeVolume(size) => {
                    let sized = act.size_volume(&volume.version, size).await?;
                    self.index
                        .volume_written(&volume.version, &sized, &self.ours);
                    live.volume = Some(sized);
                }
                Step::FinishClaim(_) | Step::AwaitNode(_) => {
                    let done = act.step(&step, &mut live).await;
                    if let Err(error) = &done
                        && is_refused(error)
                    {
                        self.tell(&live, &words(error));
                    }
                    done?;
                }
                _ => return Ok(None),
            }
            self.done(act.name, &step, &live);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn who_asks_for_growth_that_the_class_does_not_allow_any_more_is_told() {
        let forbidden = |asked: &str, allows: Option<bool>| {
            let claim = from_value(json!({
                "spec": {
                    "storageClassName": "disk", "volumeName": "pvc-1",
                    "resources": {"requests": {"storage": asked}},
                },
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            }));
            let class = allows.map(|allows| StorageClass {
                allow_volume_expansion: Some(allows),
                ..StorageClass::default()
            });
            forbids(class.as_ref(), &claim.unwrap()).unwrap_or_default()
        };
        assert!(forbidden("2Gi", None).contains("\"disk\" is not there"));
        assert!(forbidden("2Gi", Some(false)).contains("does not allow growth"));
        assert_eq!(forbidden("2Gi", Some(true)), "");
        for class in [None, Some(false)] {
            assert_eq!(forbidden("1Gi", class), "", "nothing is asked");
        }
    }
}
