//! The growth of a volume that is settled, with as few requests as possible: the claim is read live, and
//! of volume and order what watches have told. What is written to these is written on the condition of
//! the version that was told of, so a decision from old news is refused, and everything is read.

use crate::{
    api::labels::claim_uid,
    client::{is_conflict, is_refused, words},
    decide::{Observed, Step, decide},
    k8s::claim,
    observe::{self, Live},
    reconcile::volume::{Controller, OTHERS, STEPS, apply::Act},
    runtime::work_queue::Outcome,
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
        let Some(claim) = observe::read_claim(&self.client, claim_uid(act.name), place).await?
        else {
            return Ok(None);
        };
        // What is not understood is told.
        if claim.cut {
            return Ok(None);
        }
        match self.grow_claim(act, claim.object).await {
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
        let class = match claim::class_name(&claim) {
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
            let most = order.what.most;
            let observed = Observed {
                volume: Some(volume.what),
                order: Some(order.what),
                ..live.observed(act.name, &self.ours)
            };
            let step = decide(&observed);
            match step {
                Step::Rest if live.claim.as_ref().is_some_and(claim::grows) => {
                    return Ok(Some(Outcome::InVain(OTHERS)));
                }
                Step::Rest => return Ok(Some(Outcome::Settled)),
                Step::Resize(size) => {
                    let resized = act.resize(&order.version, size, most).await?;
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
