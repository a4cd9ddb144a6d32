//! `flexvol-controller realign`: gives a set's claim templates the sizes that its claims grew to.
//!
//! Templates cannot be edited, so the set is deleted without its pods (`propagationPolicy: Orphan`) and made anew
//! with other templates; it takes its pods over as they are, because templates are no part of a revision
//! (`pkg/controller/statefulset`). While it is not there nobody replaces a pod, so what it shall be is saved
//! first, and a run that was cut is finished by the next. A set that is not there is made only if pods of it are
//! there that belong to nobody: whoever deletes a set on purpose deletes its pods too.

mod save;

use crate::{
    api::{Refusal, refusal},
    names::{REALIGNED, is_object_name},
    observe::{capacity, uid},
    pages,
    sets::{claim_name, ordinals},
    turns::{self, Turn},
};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, Preconditions, PropagationPolicy},
    core::{ApiResource, DynamicObject, Selector},
};
use save::{Change, Save, is_orphaning, plan};
use serde_json::{from_value, to_value};
use std::time::Duration;

/// What a person asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Of the set.
    pub namespace: String,
    /// Of the set.
    pub name: String,
    /// Only say what would be done.
    pub dry_run: bool,
    /// How long others may take for each part of theirs.
    pub patience: Duration,
}

/// Makes a set anew with the sizes that it grew to, and says each thing that it does.
///
/// # Errors
/// When there is nothing to change, when something speaks against it, and when the API server does not do
/// what is asked. It may be repeated then.
pub async fn realign(
    client: &Client,
    wanted: &Wanted,
    say: &dyn Fn(&str) -> Result<()>,
) -> Result<()> {
    let namespace = &wanted.namespace;
    let resource = ApiResource::erase::<StatefulSet>(&());
    let mut work = Realignment {
        sets: Api::namespaced_with(client.clone(), namespace, &resource),
        saves: Api::namespaced(client.clone(), namespace),
        pods: Api::namespaced(client.clone(), namespace),
        claims: Api::namespaced(client.clone(), namespace),
        wanted,
        say,
        saved: false,
        seen: None,
        deleted: false,
    };
    let Err(error) = turns::finish(wanted.patience, async || work.turn().await).await else {
        return Ok(());
    };
    let place = format!("stateful set {namespace}/{}", wanted.name);
    match work.saved {
        false => bail!("{place}: {error}"),
        true => bail!(
            "{place}: {error}; secret {} has what it shall be: mend that, and repeat the command (or, while the set is there and no run is under way, delete that secret)",
            save::name(&wanted.name)
        ),
    }
}

/// How to finish what has begun for sets, and may have stopped early; nothing for whoever may not list secrets.
///
/// # Errors
/// When the API server does not list what was saved.
pub(crate) async fn to_finish(client: &Client) -> Result<Vec<String>> {
    let saves: Api<Secret> = Api::all(client.clone());
    let labelled = ListParams::default().labels(REALIGNED);
    let listed = match saves.list_metadata(&labelled).await {
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(Vec::new()),
        listed => listed.context("list what was saved of stateful sets")?,
    };
    let commands = listed.into_iter().filter_map(|secret| {
        let namespace = secret.namespace()?;
        let set = save::set_of(&secret.metadata).filter(|set| is_object_name(set))?;
        Some(format!(
            "stateful set {namespace}/{set} is being realigned; finish it by: flexvol-controller realign {set} --namespace {namespace}"
        ))
    });
    Ok(commands.collect())
}

struct Realignment<'a> {
    /// As they are: a field that this program does not know stays.
    sets: Api<DynamicObject>,
    saves: Api<Secret>,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    wanted: &'a Wanted,
    say: &'a dyn Fn(&str) -> Result<()>,
    /// Something is saved.
    saved: bool,
    /// What was saved when this run looked last.
    seen: Option<Save>,
    /// This run has deleted the set.
    deleted: bool,
}

impl Realignment<'_> {
    async fn turn(&mut self) -> Result<Turn> {
        let name = &self.wanted.name;
        let secret = self.saves.get_opt(&save::name(name)).await;
        let secret = secret.context("read what was saved")?;
        self.saved = secret.is_some();
        // After what was saved, which is about the set that was there then, or one before it.
        let set = self.sets.get_opt(name).await.context("read it")?;
        let Some(secret) = secret else {
            return self.unsaved(set).await;
        };
        let save = Save::of(&secret)?;
        self.seen = Some(save.clone());
        if self.wanted.dry_run {
            (self.say)("a former run has begun; without --dry-run it is finished")?;
            return Ok(Turn::End);
        }
        match set {
            None => self.make(&save, &secret).await,
            Some(set) if uid(&set.metadata) != save.former => match save.is_made(&set) {
                true => self.end(&set, &secret).await,
                // Somebody else was faster, with other templates.
                false => self.save(&set, Some(&secret)).await,
            },
            Some(set) if set.metadata.deletion_timestamp.is_some() => {
                ensure!(is_orphaning(&set), "it is being deleted with its pods");
                let renewed = save.renewed(&set);
                if renewed != save {
                    self.keep(&renewed, Some(&secret)).await?;
                }
                Ok(Turn::Others("delete it without its pods".to_owned()))
            }
            Some(set) => match plan(&typed(&set)?) {
                Ok(changes) if Save::new(&set, &changes) == save => self.delete(&set).await,
                _ => self.save(&set, Some(&secret)).await,
            },
        }
    }

    /// Nothing is saved: it begins, or has ended, or somebody has taken the secret away.
    async fn unsaved(&self, set: Option<DynamicObject>) -> Result<Turn> {
        let is_former = |save: &Save, set: &DynamicObject| uid(&set.metadata) == save.former;
        match (&self.seen, set) {
            (Some(save), Some(set)) if !is_former(save, &set) && save.is_made(&set) => {
                self.tell("it is realigned");
                Ok(Turn::End)
            }
            (Some(save), set)
                if self.deleted && set.as_ref().is_none_or(|set| is_former(save, set)) =>
            {
                self.keep(save, None).await?;
                Ok(Turn::Done)
            }
            (_, Some(set)) => self.save(&set, None).await,
            (_, None) => bail!("there is none"),
        }
    }

    /// Says a thing that is done. Whoever listened may have gone: that is no reason to stop half-way.
    fn tell(&self, what: &str) {
        let _ = (self.say)(what);
    }

    /// Saves what the set shall be, if nothing speaks against it.
    async fn save(&self, set: &DynamicObject, before: Option<&Secret>) -> Result<Turn> {
        let (save, changes) = self.judge(set).await?;
        if self.wanted.dry_run {
            self.tell_changes(&changes)?;
            (self.say)("the set would be made anew with these sizes, and its pods would stay")?;
            return Ok(Turn::End);
        }
        self.keep(&save, before).await?;
        if before.is_some() {
            return Ok(Turn::Others("leave it as it is".to_owned()));
        }
        let _ = self.tell_changes(&changes);
        self.tell(&format!(
            "secret {} has what it shall be",
            save::name(&self.wanted.name)
        ));
        Ok(Turn::Done)
    }

    fn tell_changes(&self, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| {
            let Change {
                template,
                is,
                shall,
            } = change;
            (self.say)(&format!(
                "claim template {template} says {is}, and its claims have {shall}"
            ))
        })
    }

    /// What the set shall be, or what speaks against it.
    async fn judge(&self, set: &DynamicObject) -> Result<(Save, Vec<Change>)> {
        let known = typed(set)?;
        let changes = plan(&known).map_err(Error::msg)?;
        for ordinal in ordinals(&known) {
            let pod = format!("{}-{ordinal}", self.wanted.name);
            let found = self.pods.get_opt(&pod).await.context("read a pod")?;
            let stays = found.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none());
            ensure!(stays, "pod {pod} is not there, or goes: wait until all are");
            for Change {
                template, shall, ..
            } in &changes
            {
                let name = claim_name(&known, template, ordinal);
                let claim = self.claims.get_opt(&name).await.context("read a claim")?;
                let has = claim.as_ref().map(capacity).unwrap_or_default();
                ensure!(
                    has >= *shall,
                    "claim {name} has {has}, and not {shall} yet: wait until it has, or ask for less by the annotation"
                );
            }
        }
        let save = Save::new(set, &changes);
        self.can_be_made(&save).await?;
        Ok((save, changes))
    }

    /// Whether the set could be made: that of its name is in the way yet, so another name is tried.
    async fn can_be_made(&self, save: &Save) -> Result<()> {
        let mut other = save.set.clone();
        other.metadata.name = None;
        other.metadata.generate_name = Some(format!("{}-", self.wanted.name));
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let made = self.sets.create(&parameters, &other).await;
        let made = made.context("it could not be made anew")?;
        ensure!(
            save.is_kept_by(&made),
            "made anew it would be another, because admission changes its spec, and its pods would be restarted"
        );
        Ok(())
    }

    async fn keep(&self, save: &Save, before: Option<&Secret>) -> Result<()> {
        let secret = save.to_secret(before)?;
        let parameters = PostParams::default();
        let kept = match before {
            None => self.saves.create(&parameters, &secret).await,
            Some(_) => {
                let name = secret.name_any();
                self.saves.replace(&name, &parameters, &secret).await
            }
        };
        kept.map(drop).context("save what it shall be")
    }

    async fn delete(&mut self, set: &DynamicObject) -> Result<Turn> {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        let parameters = parameters.preconditions(Preconditions {
            uid: set.metadata.uid.clone(),
            resource_version: set.metadata.resource_version.clone(),
        });
        let deleted = self.sets.delete(&self.wanted.name, &parameters).await;
        deleted.map(drop).context("delete it")?;
        self.deleted = true;
        self.tell("it was deleted without its pods");
        Ok(Turn::Done)
    }

    async fn make(&self, save: &Save, secret: &Secret) -> Result<Turn> {
        let name = secret.name_any();
        // Another run may have saved more before the set went.
        let now = self.saves.get_opt(&name).await;
        let now = now.context("read what was saved again")?;
        if now.and_then(|now| now.metadata.resource_version) != secret.metadata.resource_version {
            return Ok(Turn::Done);
        }
        if !self.has_orphans(&save.set).await? {
            return Err(anyhow!(
                "it is not there, nor any pod of it: if somebody has deleted it on purpose, delete secret {name}, or else make it from that"
            ));
        }
        let made = self.sets.create(&PostParams::default(), &save.set).await;
        made.map(drop).context("make it anew")?;
        self.tell("it was made anew");
        Ok(Turn::Done)
    }

    /// What was saved goes when the set has its pods.
    async fn end(&self, set: &DynamicObject, secret: &Secret) -> Result<Turn> {
        if self.has_orphans(set).await? {
            return Ok(Turn::Others("take its pods over".to_owned()));
        }
        self.forget(secret).await?;
        self.tell("its pods are its own again");
        Ok(Turn::End)
    }

    async fn forget(&self, secret: &Secret) -> Result<()> {
        let parameters = DeleteParams::default().preconditions(Preconditions {
            uid: secret.metadata.uid.clone(),
            resource_version: secret.metadata.resource_version.clone(),
        });
        match self.saves.delete(&secret.name_any(), &parameters).await {
            Err(error) if refusal(&error) == Refusal::Missing => Ok(()),
            deleted => deleted.map(drop).context("delete what was saved"),
        }
    }

    /// Whether there are pods of the set that belong to nobody.
    async fn has_orphans(&self, set: &DynamicObject) -> Result<bool> {
        let selector = typed(set)?.spec.selector;
        let selector = Selector::try_from(selector).context("read its selector")?;
        let prefix = format!("{}-", self.wanted.name);
        let is_of_set = |name: &str| {
            let ordinal = name.strip_prefix(&prefix);
            ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
        };
        let mut found = false;
        let pods = ListParams::default().labels_from(&selector).limit(500);
        let listed = pages::each(&self.pods, pods, |pod| {
            found |= is_orphan(pod) && is_of_set(&pod.name_any());
        });
        listed.await.context("list pods")?;
        Ok(found)
    }
}

/// Whether a pod is nobody's, and stays.
fn is_orphan(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    pod.metadata.deletion_timestamp.is_none() && !owners.any(|owner| owner.controller == Some(true))
}

fn typed(set: &DynamicObject) -> Result<StatefulSet> {
    let set = to_value(set).context("read the set")?;
    from_value(set).context("read the set")
}
