//! `flexvol-controller recover`: takes back a growth that cannot be had.
//!
//! Where Kubernetes lets a request be lowered, that is all. It does so since 1.34, but never to what the claim
//! has already. Otherwise the claim is made anew with the size that it has, and gets its volume back. The
//! persistent volume says Retain meanwhile, so whatever happens its storage stays, and carries a note of what
//! is to be done, by which a second run finishes what a first one has begun.

mod guard;
mod note;

use crate::{api::is_conflict, names::MANAGED, objects::NodeVolume, observe::uid, pages};
use anyhow::{Context, Result, bail};
use flexvol_sdk::Bytes;
use guard::{Found, Plan};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use note::{Move, Note};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// So many objects are read at a time.
const PAGE: u32 = 500;

/// How often it is looked whether Kubernetes has done its part.
const LOOK: Duration = Duration::from_millis(250);

/// What a person asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Of the claim.
    pub namespace: String,
    /// Of the claim.
    pub name: String,
    /// What it shall ask for; otherwise what it has.
    pub size: Option<Bytes>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// How long Kubernetes may take for each part of its own.
    pub patience: Duration,
}

/// Takes the growth of a claim back, and says each thing that it does.
///
/// # Errors
/// When there is nothing to take back, when something speaks against it, and when the API server does not do
/// what is asked. It may be repeated then.
pub async fn recover(
    client: &Client,
    wanted: &Wanted,
    say: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let recovery = Recovery {
        volumes: Api::all(client.clone()),
        claims: Api::namespaced(client.clone(), &wanted.namespace),
        client,
        wanted,
        say,
    };
    let (volume, note) = match recovery.begun().await? {
        Some(begun) => {
            say("going on with what was begun")?;
            begun
        }
        None => match recovery.begin().await? {
            Some(begun) => begun,
            None => return Ok(()),
        },
    };
    recovery.finish(&volume, &note).await
}

struct Recovery<'a> {
    client: &'a Client,
    volumes: Api<PersistentVolume>,
    claims: Api<PersistentVolumeClaim>,
    wanted: &'a Wanted,
    say: &'a dyn Fn(&str) -> Result<()>,
}

impl Recovery<'_> {
    fn claim(&self) -> String {
        format!("claim {}/{}", self.wanted.namespace, self.wanted.name)
    }

    /// The volume that carries a note about the claim.
    async fn begun(&self) -> Result<Option<(String, Note)>> {
        let mut found = Ok(None);
        let pages = ListParams::default().labels(MANAGED).limit(PAGE);
        let listed = pages::each(&self.volumes, pages, |volume| {
            match Note::of(volume) {
                Ok(Some(note)) if note.is_about(&self.wanted.namespace, &self.wanted.name) => {
                    found = Ok(Some((volume.name_any(), note)));
                }
                Ok(_) => {}
                // It may be about this very claim.
                Err(error) => found = Err(error),
            }
        });
        listed.await.context("list the persistent volumes")?;
        found
    }

    /// Lowers the request, or notes what is to be done instead.
    async fn begin(&self) -> Result<Option<(String, Note)>> {
        loop {
            match self.try_to_begin().await {
                // Others write into a claim that does not grow.
                Err(error) if is_conflict(&error) => sleep(LOOK).await,
                begun => return begun,
            }
        }
    }

    async fn try_to_begin(&self) -> Result<Option<(String, Note)>> {
        let found = self.look().await?;
        let plan = guard::plan(&found, self.wanted.size).map_err(anyhow::Error::msg)?;
        let Plan { asked, has, to, .. } = &plan;
        let refused = self.lower(&found.claim, *to).await?;
        (self.say)(&format!(
            "{} asks for {asked}, and its storage has {has}",
            self.claim()
        ))?;
        let Some(refused) = refused else {
            (self.say)(&match self.wanted.dry_run {
                true => format!("its request would be lowered to {to}"),
                false => format!("its request was lowered to {to}"),
            })?;
            return Ok(None);
        };
        (self.say)(&format!("it cannot be lowered to {to}: {refused}"))?;
        guard::nobody_uses(&found).map_err(anyhow::Error::msg)?;
        let note = Note::new(&found, &plan);
        let volume = found.volume.name_any();
        if self.wanted.dry_run {
            (self.say)(&format!(
                "it would be deleted and made anew with {}, and get persistent volume {volume} back",
                plan.base
            ))?;
            return Ok(None);
        }
        self.write(&found.volume, note.kept()?).await?;
        (self.say)(&format!(
            "persistent volume {volume} says Retain now, and carries a note of this"
        ))?;
        Ok(Some((volume, note)))
    }

    async fn look(&self) -> Result<Found> {
        let claim = self.claims.get_opt(&self.wanted.name).await;
        let claim = claim.context("read the claim")?;
        let claim = claim.with_context(|| format!("there is no {}", self.claim()))?;
        let name = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.clone());
        let name = name.filter(|name| !name.is_empty());
        let name = name.with_context(|| {
            format!("{} has no volume yet; edit it, or delete it", self.claim())
        })?;
        let volume = self.volumes.get_opt(&name).await;
        let volume = volume.context("read the persistent volume")?;
        let volume = volume.with_context(|| format!("persistent volume {name} is gone"))?;
        let orders: Api<NodeVolume> = Api::all(self.client.clone());
        let order = orders.get_opt(&name).await.context("read the order")?;
        let namespace = &self.wanted.namespace;
        let (mut pods, mut sets) = (Vec::new(), Vec::new());
        let all: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let listed = pages::each(&all, ListParams::default().limit(PAGE), |pod| {
            if guard::uses(pod, &self.wanted.name) {
                pods.push(pod.name_any());
            }
        });
        listed.await.context("list pods")?;
        let all: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let listed = pages::each(&all, ListParams::default().limit(PAGE), |set| {
            if guard::template(set, &self.wanted.name).is_some() {
                sets.push(set.clone());
            }
        });
        listed.await.context("list stateful sets")?;
        Ok(Found {
            claim,
            volume,
            order,
            pods,
            sets,
        })
    }

    /// Lowers the request, or returns why Kubernetes does not let it.
    async fn lower(&self, claim: &PersistentVolumeClaim, to: Bytes) -> Result<Option<String>> {
        let version = claim.metadata.resource_version.as_deref();
        match self.request(to, version, self.wanted.dry_run).await {
            Ok(()) => Ok(None),
            // Its rules forbid it, not somebody's rights.
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(Some(status.message)),
            Err(error) => Err(error).context("lower the request"),
        }
    }

    /// Asks for another size, if the claim is as it was read.
    async fn request(&self, size: Bytes, version: Option<&str>, dry_run: bool) -> kube::Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": version},
            "spec": {"resources": {"requests": {"storage": size.to_string()}}},
        }));
        let parameters = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        let patched = self.claims.patch(&self.wanted.name, &parameters, &patch);
        patched.await.map(drop)
    }

    async fn finish(&self, volume: &str, note: &Note) -> Result<()> {
        let mut begun = Instant::now();
        loop {
            let now = self.volumes.get_opt(volume).await;
            let now = now.context("read the persistent volume")?;
            let now = now.with_context(|| format!("persistent volume {volume} is gone"))?;
            let claim = self.claims.get_opt(&self.wanted.name).await;
            let claim = claim.context("read the claim")?;
            let next = note.next(&now, claim.as_ref());
            let kept =
                || format!("persistent volume {volume} says Retain meanwhile; repeat the command");
            match &next {
                Move::Done => return (self.say)("the claim asks for what it has"),
                Move::Stop(why) => bail!("{why}"),
                _ if self.wanted.dry_run => return (self.say)(&format!("next: {next}")),
                Move::Wait(what) if begun.elapsed() >= self.wanted.patience => {
                    bail!("waited for {what} for too long; {}", kept());
                }
                Move::Wait(_) => sleep(LOOK).await,
                _ => match self.act(&next, note, &now, claim.as_ref()).await {
                    Ok(()) => {
                        (self.say)(&next.to_string())?;
                        begun = Instant::now();
                    }
                    // It is looked at again.
                    Err(error) if is_conflict(&error) => sleep(LOOK).await,
                    Err(error) => return Err(error.context(kept())),
                },
            }
        }
    }

    async fn act(
        &self,
        next: &Move,
        note: &Note,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<()> {
        let name = &self.wanted.name;
        match next {
            Move::Delete => {
                // Whoever repeats the command may have waited for long.
                guard::nobody_uses(&self.look().await?).map_err(anyhow::Error::msg)?;
                let condition = Preconditions {
                    uid: claim.map(|claim| uid(&claim.metadata).to_owned()),
                    resource_version: None,
                };
                let parameters = DeleteParams::default().preconditions(condition);
                let deleted = self.claims.delete(name, &parameters).await;
                deleted.map(drop).context("delete the claim")
            }
            Move::Offer => self.write(volume, note.offered()).await,
            Move::Make => {
                let parameters = PostParams::default();
                let made = self.claims.create(&parameters, note.claim()).await;
                made.map(drop).context("make the claim anew")
            }
            Move::GiveBack => self.write(volume, note.given_back()).await,
            Move::Raise => self
                .request(note.size(), None, false)
                .await
                .context("raise the request"),
            Move::Wait(_) | Move::Stop(_) | Move::Done => Ok(()),
        }
    }

    /// Writes into a persistent volume, if it is as it was read.
    async fn write(&self, volume: &PersistentVolume, mut patch: Value) -> Result<()> {
        patch["metadata"]["resourceVersion"] = json!(volume.metadata.resource_version);
        let parameters = PatchParams::default();
        let written = self
            .volumes
            .patch(&volume.name_any(), &parameters, &Patch::Merge(patch))
            .await;
        written.map(drop).context("write the persistent volume")
    }
}
