//! `flexvol-controller recover`: takes back an expansion that cannot succeed.
//!
//! If Kubernetes allows a lower request, the request is lowered, and that is all. Kubernetes has allowed it since 1.32
//! (`RecoverVolumeExpansionFailure`), but never down to the claim's capacity. Otherwise the claim is recreated with its
//! actual size, and bound to its volume again. Meanwhile the persistent volume's reclaim policy is Retain, so its
//! storage stays in any case, and the volume has a note of the recovery, by which a second run finishes an interrupted
//! one.

mod look;
mod note;
mod preconditions;

use crate::{
    api::well_known::MANAGED,
    cli::poll::{self, LOOK, Turn},
    client::{Refusal, error_message, is_conflict, is_quota, paginate, refusal},
    k8s::{meta::uid, volume::has},
    reconcile::volume::apply,
};
use anyhow::{Context, Error, Result, anyhow, bail};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use note::{Move, NamespaceIdentity, Note};
use preconditions::{Found, Plan};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Options of the command.
#[derive(Clone, Debug)]
pub struct RecoverOptions {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The size to request, or else the actual size.
    pub size: Option<Bytes>,
    /// UID of the namespace that shall have the data, although an earlier run noted another namespace of its name.
    pub namespace_uid: Option<String>,
    /// Whether only to print what would be done.
    pub dry_run: bool,
    /// Timeout for each action of another component.
    pub patience: Duration,
}

/// Takes back a claim's expansion, and reports each step.
///
/// # Errors
/// When there is no expansion, when a precondition fails, and when a request fails. It may be repeated then.
pub async fn recover(
    client: &Client,
    wanted: &RecoverOptions,
    say: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let recovery = Recovery {
        volumes: Api::all(client.clone()),
        claims: Api::namespaced(client.clone(), &wanted.namespace),
        client,
        wanted,
        say,
    };
    let begun = match recovery.left().await? {
        Some(left) => Some(left),
        None => recovery.begin().await?,
    };
    match begun {
        Some((volume, note)) => recovery.finish(&volume, &note).await,
        None => Ok(()),
    }
}

/// Returns how to finish an interrupted recovery of the volume's claim, or why that is impossible.
pub(crate) fn to_finish(volume: &PersistentVolume) -> Option<String> {
    let note = match Note::of(volume) {
        Ok(note) => note?,
        Err(error) => return Some(format!("nobody can finish it: {}", error_message(&error))),
    };
    let (namespace, name) = note.place();
    Some(format!(
        "finish it by: flexvol-controller recover {name} --namespace {namespace}"
    ))
}

struct Recovery<'a> {
    client: &'a Client,
    volumes: Api<PersistentVolume>,
    claims: Api<PersistentVolumeClaim>,
    wanted: &'a RecoverOptions,
    say: &'a dyn Fn(&str) -> Result<()>,
}

impl Recovery<'_> {
    /// Finds the volume, with its note, of a claim that an earlier run has deleted.
    async fn left(&self) -> Result<Option<(String, Note)>> {
        let RecoverOptions {
            namespace, name, ..
        } = self.wanted;
        let place = (namespace.as_str(), name.as_str());
        let mut found = Vec::new();
        let pages = ListParams::default()
            .labels(MANAGED)
            .limit(paginate::PAGE_SIZE);
        let listed = paginate::each(&self.volumes, pages, |volume| match Note::of(volume) {
            Ok(Some(note)) if note.place() == place => {
                found.push(Ok((volume.name_any(), note)));
            }
            Err(error) if note::is_for(volume, place) => found.push(Err(error)),
            // Notes about other claims are irrelevant.
            Ok(_) | Err(_) => {}
        });
        listed.await.context("list the persistent volumes")?;
        let mut found = found.into_iter().collect::<Result<Vec<_>>>()?;
        let Some((volume, note)) = found.pop() else {
            return Ok(None);
        };
        if let Some((other, _)) = found.pop() {
            bail!("{}", note::either(&volume, &other));
        }
        let claim = self.claims.get_opt(name).await.context("read the claim")?;
        if let Some(claim) = claim {
            let spec = claim.spec.as_ref();
            let of = spec.and_then(|spec| spec.volume_name.as_deref());
            if let Some(other) = of.filter(|of| !of.is_empty() && *of != volume) {
                bail!("{}", note::either(&volume, other));
            }
            // The former claim still exists, and may have changed since.
            let is_there = uid(&claim.metadata) == note.former();
            if is_there && claim.metadata.deletion_timestamp.is_none() {
                return Ok(None);
            }
        }
        (self.say)(&format!(
            "going on where a former run has stopped: the claim comes with {}",
            note.size()
        ))?;
        Ok(Some((volume, note)))
    }

    /// Lowers the request, or writes a note for the recreation.
    async fn begin(&self) -> Result<Option<(String, Note)>> {
        let begun = Instant::now();
        loop {
            match self.try_to_begin().await {
                // Other writers may change a claim that does not grow.
                Err(error) if is_conflict(&error) && begun.elapsed() < self.wanted.patience => {
                    sleep(LOOK).await;
                }
                done => return done,
            }
        }
    }

    async fn try_to_begin(&self) -> Result<Option<(String, Note)>> {
        let found = self.look_when_measured().await?;
        let former = Note::of(&found.volume)?;
        let volume = found.volume.name_any();
        let against = |why: String| anyhow!("{why}{}", left_by(&found, former.as_ref()));
        let plan = preconditions::plan(&found, self.wanted.size).map_err(against)?;
        let Plan { asked, has, to, .. } = &plan;
        let asks = format!("the claim asks for {asked}, and its storage has {has}");
        let version = found.claim.metadata.resource_version.as_deref();
        let Some(refused) = self.lower(version, *to).await? else {
            let would = match self.wanted.dry_run {
                true => "would be",
                false => "was",
            };
            let left = left_by(&found, former.as_ref());
            (self.say)(&format!(
                "{asks}; its request {would} lowered to {to}{left}"
            ))?;
            return Ok(None);
        };
        let asks = format!(
            "{asks}; its request cannot be lowered to {to} (maybe to more, with --size): {refused}"
        );
        preconditions::nobody_uses(&found.users)
            .map_err(|why| against(format!("{asks}; {why}")))?;
        let note = Note::new(&found, &plan, former.as_ref());
        self.can_be_made(&note).await?;
        if self.wanted.dry_run {
            (self.say)(&format!(
                "{asks}\nit would be deleted and recreated with {}, and get persistent volume {volume} back",
                plan.base
            ))?;
            return Ok(None);
        }
        self.write(&found.volume, note.to_keep()?).await?;
        (self.say)(&format!(
            "{asks}\npersistent volume {volume} says Retain now, and carries a note of this"
        ))?;
        Ok(Some((volume, note)))
    }

    /// Lowers the request, or returns why Kubernetes rejects it.
    async fn lower(&self, version: Option<&str>, to: Bytes) -> Result<Option<String>> {
        match self.request(version, to, self.wanted.dry_run).await {
            Ok(()) => Ok(None),
            // Rejections by policies or permissions must not be bypassed by a recreation.
            Err(kube::Error::Api(status)) if is_about_size(&status) => Ok(Some(status.message)),
            Err(error) => Err(error).context("lower the request"),
        }
    }

    /// Requests another size, if the claim has this version.
    async fn request(&self, version: Option<&str>, size: Bytes, dry_run: bool) -> kube::Result<()> {
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

    /// Checks by a dry run whether the claim could be recreated. The existing claim conflicts and counts in quotas, but
    /// Kubernetes checks both after everything else.
    async fn can_be_made(&self, note: &Note) -> Result<()> {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match self.claims.create(&parameters, note.claim()).await {
            Err(error) if refusal(&error) != Refusal::Changed && !is_quota(&error) => {
                Err(error).context("the claim could not be recreated")
            }
            _ => Ok(()),
        }
    }

    async fn finish(&self, volume: &str, note: &Note) -> Result<()> {
        let mut is_kept = true;
        let turn = async || self.turn(volume, note, &mut is_kept).await;
        let Err(error) = poll::finish(self.wanted.patience, turn).await else {
            return Ok(());
        };
        let kept = match is_kept {
            true => format!(" persistent volume {volume} says Retain, so its data stays;"),
            false => String::new(),
        };
        bail!("{error};{kept} mend that, and repeat the command");
    }

    async fn turn(&self, volume: &str, note: &Note, is_kept: &mut bool) -> Result<Turn> {
        let now = self.volumes.get_opt(volume).await;
        let now = now.context("read the persistent volume")?;
        let now = now.with_context(|| format!("persistent volume {volume} is gone"))?;
        *is_kept = note::is_kept(&now);
        let claim = self.claims.get_opt(&self.wanted.name).await;
        let claim = claim.context("read the claim")?;
        match Note::of(&now)? {
            Some(noted) if noted == *note => {}
            None if claim.as_ref().is_some_and(|claim| has(claim, &now)) => {
                (self.say)("the claim has its volume: another run has finished")?;
                return Ok(Turn::End);
            }
            _ => bail!("somebody has changed the note of persistent volume {volume}"),
        }
        let uid = self.namespace_uid().await?;
        let place = NamespaceIdentity {
            uid: &uid,
            accepted: self.wanted.namespace_uid.as_deref(),
        };
        let next = note.next(&now, claim.as_ref(), place);
        if self.wanted.dry_run {
            (self.say)(&format!("next: {next}"))?;
            return Ok(Turn::End);
        }
        self.act(&next, note, &now).await
    }

    /// Reports a finished step. A failed write is ignored: it is no reason to stop half-way.
    fn tell(&self, what: &str) {
        let _ = (self.say)(what);
    }

    async fn act(&self, next: &Move, note: &Note, volume: &PersistentVolume) -> Result<Turn> {
        let name = &self.wanted.name;
        match next {
            Move::Stop(why) => bail!("{why}"),
            Move::Wait(_) => return Ok(Turn::Waiting(next.to_string())),
            Move::Keep => {
                self.write(volume, note.to_keep()?).await?;
                // Counts as waiting, so that repeated resets by another writer reach the timeout.
                return Ok(Turn::Waiting(next.to_string()));
            }
            Move::Delete(former) => {
                let users = self.users().await?;
                preconditions::nobody_uses(&users).map_err(Error::msg)?;
                let condition = Preconditions {
                    uid: Some(note.former().to_owned()),
                    resource_version: Some(former.clone()),
                };
                let parameters = DeleteParams::default().preconditions(condition);
                let deleted = self.claims.delete(name, &parameters).await;
                deleted.map(drop).context("delete the claim")?;
            }
            Move::Offer(claim) => self.write(volume, note.to_offer(claim)).await?,
            Move::Make => {
                let parameters = PostParams::default();
                let made = self.claims.create(&parameters, note.claim()).await;
                made.map(drop).context("make the claim anew")?;
            }
            Move::Raise(claim) => match self.request(Some(claim), note.size(), false).await {
                // The storage has the size and the file system has not, which is harmless.
                Err(kube::Error::Api(status)) if status.code == 422 => {
                    self.write(volume, note.to_give_back()).await?;
                    self.tell(&format!(
                        "the claim has its volume again, and cannot ask for {}: {}",
                        note.size(),
                        status.message
                    ));
                    return Ok(Turn::End);
                }
                raised => raised.context("raise the request")?,
            },
            Move::GiveBack => {
                self.write(volume, note.to_give_back()).await?;
                self.tell(&next.to_string());
                return Ok(Turn::End);
            }
        }
        self.tell(&next.to_string());
        Ok(Turn::Done)
    }

    /// Patches a persistent volume, if it is unchanged since it was read.
    async fn write(&self, volume: &PersistentVolume, mut patch: Value) -> Result<()> {
        patch["metadata"]["resourceVersion"] = json!(volume.metadata.resource_version);
        let written = apply::patched(&self.volumes, &volume.name_any(), &patch).await;
        written.map(drop).context("write the persistent volume")
    }
}

/// Whether Kubernetes itself rejects the size (`ValidatePersistentVolumeClaimUpdate` in `pkg/apis/core/validation`),
/// and not an admission policy, which responds Invalid too.
fn is_about_size(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut fields = causes.map(|cause| cause.field.as_str());
    status.code == 422 && fields.any(|field| field == "spec.resources.requests.storage")
}

/// Returns a hint about an earlier run's note on a claim that stays. An administrator has to remove the note, because a
/// run cannot know whether another one is about to delete the claim.
fn left_by(found: &Found, former: Option<&Note>) -> String {
    let Some(note) = former.filter(|_| found.claim.metadata.deletion_timestamp.is_none()) else {
        return String::new();
    };
    let volume = found.volume.name_any();
    let mut patch = note.to_give_back();
    patch["metadata"]["resourceVersion"] = json!(found.volume.metadata.resource_version);
    format!(
        "; a former run has stopped early, and persistent volume {volume} says Retain: if no run is under way, and the claim is there and not being deleted, kubectl patch pv {volume} --type=merge --patch='{patch}'"
    )
}
