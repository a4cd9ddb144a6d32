//! `flexvol-controller recover`: takes back a growth that cannot be had.
//!
//! Where Kubernetes lets a request be lowered, that is all. It does so since 1.32 (`RecoverVolumeExpansionFailure`),
//! but never to what the claim has already. Otherwise the claim is made anew with the size that it has, and gets
//! its volume back. The persistent volume says Retain meanwhile, so whatever happens its storage stays, and
//! carries a note of what is to be done, by which a second run finishes what a first one has begun.

mod guard;
mod look;
mod note;

use crate::{
    api::{Refusal, is_conflict, refusal, words},
    names::{MANAGED, RECOVERY},
    observe::uid,
    pages,
};
use anyhow::{Context, Error, Result, anyhow, bail};
use flexvol_sdk::Bytes;
use guard::Plan;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
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

/// How often it is looked whether others have done their part.
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
    /// How long others may take for each part of theirs.
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
    let begun = match recovery.left().await? {
        Some(left) => Some(left),
        None => recovery.begin().await?,
    };
    match begun {
        Some((volume, note)) => recovery.finish(&volume, &note).await,
        None => Ok(()),
    }
}

struct Recovery<'a> {
    client: &'a Client,
    volumes: Api<PersistentVolume>,
    claims: Api<PersistentVolumeClaim>,
    wanted: &'a Wanted,
    say: &'a dyn Fn(&str) -> Result<()>,
}

impl Recovery<'_> {
    /// The volume of a claim that a former run has deleted, and its note.
    async fn left(&self) -> Result<Option<(String, Note)>> {
        let Wanted {
            namespace, name, ..
        } = self.wanted;
        let (mut found, mut unread) = (None, None);
        let pages = ListParams::default().labels(MANAGED).limit(PAGE);
        let listed = pages::each(&self.volumes, pages, |volume| match Note::of(volume) {
            Ok(Some(note)) if note.is_about(namespace, name) => {
                found = Some((volume.name_any(), note));
            }
            Err(error) if note::is_for(volume, namespace, name) => unread = Some(error),
            // Somebody else's, which speaks against nothing here.
            Ok(_) | Err(_) => {}
        });
        listed.await.context("list the persistent volumes")?;
        let Some((volume, note)) = found else {
            return unread.map_or(Ok(None), Err);
        };
        let claim = self.claims.get_opt(name).await.context("read the claim")?;
        let Some(claim) = claim else {
            (self.say)("going on where a former run has stopped")?;
            return Ok(Some((volume, note)));
        };
        let of = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.as_deref());
        if of.is_some_and(|of| !of.is_empty() && of != volume) {
            (self.say)(&format!(
                "persistent volume {volume} has the data of a former claim of this name, and a note of it; to forget that: kubectl annotate pv {volume} {RECOVERY}-"
            ))?;
            return Ok(None);
        }
        // One that is there yet may have changed since.
        let is_there = uid(&claim.metadata) == note.former();
        let stays = is_there && claim.metadata.deletion_timestamp.is_none();
        Ok((!stays).then_some((volume, note)))
    }

    /// Lowers the request, or notes what is to be done instead.
    async fn begin(&self) -> Result<Option<(String, Note)>> {
        let begun = Instant::now();
        loop {
            match self.try_to_begin().await {
                // Others write into a claim that does not grow.
                Err(error) if is_conflict(&error) && begun.elapsed() < self.wanted.patience => {
                    sleep(LOOK).await;
                }
                done => return done,
            }
        }
    }

    async fn try_to_begin(&self) -> Result<Option<(String, Note)>> {
        let found = self.look().await?;
        let former = Note::of(&found.volume)?;
        let volume = found.volume.name_any();
        let against = |why: String| anyhow!("{why}{}", left_by(former.as_ref(), &volume));
        let plan = guard::plan(&found, self.wanted.size).map_err(against)?;
        let Plan { asked, has, to, .. } = &plan;
        let refused = self.lower(&found.claim, *to).await?;
        (self.say)(&format!(
            "the claim asks for {asked}, and its storage has {has}"
        ))?;
        let Some(refused) = refused else {
            let would = if self.wanted.dry_run {
                "would be"
            } else {
                "was"
            };
            let left = left_by(former.as_ref(), &volume);
            (self.say)(&format!("its request {would} lowered to {to}{left}"))?;
            return Ok(None);
        };
        (self.say)(&format!(
            "it cannot be lowered to {to} (maybe to more, with --size): {refused}"
        ))?;
        guard::nobody_uses(&found.claim.name_any(), &found.users).map_err(against)?;
        let note = Note::new(&found, &plan, former.as_ref());
        self.can_be_made(&note).await?;
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

    /// Lowers the request, or returns why Kubernetes does not let it.
    async fn lower(&self, claim: &PersistentVolumeClaim, to: Bytes) -> Result<Option<String>> {
        match self.request(claim, to, self.wanted.dry_run).await {
            Ok(()) => Ok(None),
            // What policies and rights forbid is not to be had in another way.
            Err(kube::Error::Api(status)) if is_about_size(&status) => Ok(Some(status.message)),
            Err(error) => Err(error).context("lower the request"),
        }
    }

    /// Asks for another size, if the claim is as it was read.
    async fn request(
        &self,
        claim: &PersistentVolumeClaim,
        size: Bytes,
        dry_run: bool,
    ) -> kube::Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": claim.metadata.resource_version},
            "spec": {"resources": {"requests": {"storage": size.to_string()}}},
        }));
        let parameters = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        let patched = self.claims.patch(&self.wanted.name, &parameters, &patch);
        patched.await.map(drop)
    }

    /// Whether the claim could be made anew: that of this name is in the way yet, and counts in quotas, but is
    /// found after all else was judged.
    async fn can_be_made(&self, note: &Note) -> Result<()> {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match self.claims.create(&parameters, note.claim()).await {
            Err(error) if refusal(&error) != Refusal::Changed && !is_quota(&error) => {
                Err(error).context("the claim could not be made anew")
            }
            _ => Ok(()),
        }
    }

    async fn finish(&self, volume: &str, note: &Note) -> Result<()> {
        let mut begun = Instant::now();
        loop {
            let now = self.volumes.get_opt(volume).await;
            let now = now.context("read the persistent volume")?;
            let now = now.with_context(|| format!("persistent volume {volume} is gone"))?;
            match Note::of(&now)? {
                Some(noted) if noted == *note => {}
                Some(_) => bail!("somebody else has begun anew meanwhile; repeat the command"),
                None => return (self.say)("nothing is left to do"),
            }
            let claim = self.claims.get_opt(&self.wanted.name).await;
            let claim = claim.context("read the claim")?;
            let next = note.next(&now, claim.as_ref());
            if self.wanted.dry_run {
                return (self.say)(&format!("next: {next}"));
            }
            let late = begun.elapsed() >= self.wanted.patience;
            match self.act(&next, note, &now, claim.as_ref()).await {
                Ok(true) => {
                    (self.say)(&next.to_string())?;
                    begun = Instant::now();
                    if next == Move::GiveBack {
                        return Ok(());
                    }
                }
                Ok(false) if late => {
                    return Err(self.kept(volume, &anyhow!("it took too long to {next}")));
                }
                Err(error) if late || !passes(&error) => return Err(self.kept(volume, &error)),
                Ok(false) | Err(_) => sleep(LOOK).await,
            }
        }
    }

    /// Does it, or says that it is others' turn.
    async fn act(
        &self,
        next: &Move,
        note: &Note,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<bool> {
        let name = &self.wanted.name;
        match (next, claim) {
            (Move::Stop(why), _) => bail!("{why}"),
            (Move::Keep, _) => self.write(volume, note.kept()?).await?,
            (Move::Delete, Some(claim)) => {
                let users = self.users().await?;
                guard::nobody_uses(name, &users).map_err(Error::msg)?;
                let condition = Preconditions {
                    uid: claim.metadata.uid.clone(),
                    resource_version: None,
                };
                let parameters = DeleteParams::default().preconditions(condition);
                let deleted = self.claims.delete(name, &parameters).await;
                deleted.map(drop).context("delete the claim")?;
            }
            (Move::Offer, _) => self.write(volume, note.offered()).await?,
            (Move::Make, _) => {
                let parameters = PostParams::default();
                let made = self.claims.create(&parameters, note.claim()).await;
                made.map(drop).context("make the claim anew")?;
            }
            (Move::Raise, Some(claim)) => {
                match self.request(claim, note.size(), false).await {
                    // Its storage has it, and its file system has not: that harms nobody.
                    Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                        let (size, why) = (note.size(), status.message);
                        (self.say)(&format!("it cannot ask for {size} now: {why}"))?;
                        self.write(volume, note.given_back()).await?;
                    }
                    raised => raised.context("raise the request")?,
                }
            }
            (Move::GiveBack, _) => self.write(volume, note.given_back()).await?,
            (Move::Wait(_) | Move::Delete | Move::Raise, _) => return Ok(false),
        }
        Ok(true)
    }

    /// Why it did not go on, and what a person can be sure of.
    fn kept(&self, volume: &str, error: &Error) -> Error {
        anyhow!(
            "{}; nothing is lost: persistent volume {volume} says Retain, and what is left is done by this command when it is repeated",
            words(error)
        )
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

/// Whether Kubernetes itself forbids the size (`ValidatePersistentVolumeClaimUpdate` in
/// `pkg/apis/core/validation`), not somebody's policy, which says Invalid too.
fn is_about_size(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut fields = causes.map(|cause| cause.field.as_str());
    status.code == 422 && fields.any(|field| field == "spec.resources.requests.storage")
}

/// What was just deleted is counted a moment longer (`plugin/pkg/admission/resourcequota`).
fn is_quota(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota"))
}

/// Whether something goes by itself, or is another thing when it is looked at again.
fn passes(error: &Error) -> bool {
    error.downcast_ref::<kube::Error>().is_some_and(|error| {
        matches!(refusal(error), Refusal::Changed | Refusal::Missing) || is_quota(error)
    })
}

/// What is to be said of a note that a former run has left. It is a person who takes it away: no run can
/// know that another one does not delete the claim in the same moment.
fn left_by(former: Option<&Note>, volume: &str) -> String {
    former.map_or_else(String::new, |note| {
        format!(
            "; a former run has stopped early, and persistent volume {volume} says Retain: once no run is under way, kubectl patch pv {volume} --type=merge --patch='{}'",
            note.given_back()
        )
    })
}
