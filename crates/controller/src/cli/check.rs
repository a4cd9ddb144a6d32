//! `flexvol-controller check`: makes a claim, grows it and deletes it, and says what it saw.
//!
//! It does what a tenant does, so it needs no rights but those to claims of one namespace, and to read what became of
//! them. The claim is deleted in any case.

use crate::{
    api::v1alpha1::NodeVolume,
    cli::poll::{self, Turn},
    client::{Refusal, error_message, refusal},
    k8s::{
        claim::{capacity, failure, file_system_resize_pending, is_bound},
        meta::{storage, uid},
    },
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use flexvol_sdk::Bytes;
use k8s_openapi::{
    api::{
        core::v1::{Event, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{from_value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Options of the command.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's storage class, whose claims are bound at once.
    pub class: String,
    /// The claim's first request.
    pub size: Bytes,
    /// The claim's second request.
    pub larger_size: Bytes,
    /// Timeout for each part of the claim's life.
    pub patience: Duration,
}

/// Sees a claim through its life, and reports each part of it.
///
/// # Errors
/// When a part fails, takes longer than the timeout, or `interrupted` ends first. The error has the claim's events.
pub async fn check(
    client: &Client,
    wanted: &CheckOptions,
    say: &dyn Fn(&str),
    interrupted: impl Future<Output = anyhow::Error>,
) -> Result<()> {
    let (size, larger) = (wanted.size, wanted.larger_size);
    ensure!(
        size < larger,
        "the larger size is {larger}, which is not more than {size}"
    );
    check_class(client, &wanted.class).await?;
    // A claim that an interrupted run has left must not be taken for this one's.
    let name = format!("flexvol-check-{:x}", Timestamp::now().as_millisecond());
    let check = Check {
        client,
        claims: Api::namespaced(client.clone(), &wanted.namespace),
        name,
        wanted,
        say,
    };
    tokio::pin!(interrupted);
    // Not interrupted: a request that is given up may still be carried out, after the deletion.
    let seen = match check.make().await {
        Ok(made) => {
            let seen = tokio::select! {
                seen = check.grow(&made) => seen,
                error = &mut interrupted => Err(error),
            };
            match seen {
                Ok(volume) => Ok(volume),
                Err(error) => Err(error_message(&error) + &check.told(uid(&made.metadata)).await),
            }
        }
        Err(error) => Err(error_message(&error)),
    };
    let gone = check.delete().await;
    match (seen, gone) {
        (Ok(volume), Ok(())) => tokio::select! {
            gone = check.wait_until_gone(&volume) => gone,
            error = interrupted => Err(error),
        },
        (Ok(_), Err(error)) => Err(error),
        (Err(text), Ok(())) => bail!("{text}"),
        (Err(text), Err(error)) => {
            let (namespace, name) = (&wanted.namespace, &check.name);
            let left = error_message(&error);
            bail!("{text}\nclaim {namespace}/{name} is left: {left}")
        }
    }
}

/// Fails if a claim of the class would not be bound, or would leave its volume.
async fn check_class(client: &Client, name: &str) -> Result<()> {
    let all: Api<StorageClass> = Api::all(client.clone());
    let class = all.get(name).await.context("read the storage class")?;
    ensure!(
        class.reclaim_policy.as_deref() != Some("Retain"),
        "storage class {name} keeps the volumes of deleted claims (reclaimPolicy Retain), so a check would leave one; name a class that deletes them"
    );
    ensure!(
        class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer"),
        "storage class {name} binds a claim only when a pod uses it (volumeBindingMode WaitForFirstConsumer), and a check has no pods; name a class that binds at once (Immediate)"
    );
    Ok(())
}

struct Check<'a> {
    client: &'a Client,
    claims: Api<PersistentVolumeClaim>,
    /// The claim's name.
    name: String,
    wanted: &'a CheckOptions,
    say: &'a dyn Fn(&str),
}

impl Check<'_> {
    async fn make(&self) -> Result<PersistentVolumeClaim> {
        let CheckOptions {
            namespace,
            class,
            size,
            ..
        } = self.wanted;
        let claim = from_value(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.name},
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": size.to_string()}},
            },
        }))?;
        let made = self.claims.create(&PostParams::default(), &claim).await;
        let name = &self.name;
        let made = made.with_context(|| format!("make claim {namespace}/{name}"))?;
        (self.say)(&format!(
            "made claim {namespace}/{name} of {size}, storage class {class}"
        ));
        Ok(made)
    }

    /// Waits until the claim is bound, and until it has grown. Returns the name of its volume.
    async fn grow(&self, made: &PersistentVolumeClaim) -> Result<String> {
        let volume = self.wait_until_bound(made).await?;
        let larger = self.wanted.larger_size;
        let more = json!({"spec": {"resources": {"requests": {"storage": larger.to_string()}}}});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&more));
        let patched = self.claims.patch(&self.name, &parameters, &patch).await;
        patched.context("ask for more")?;
        (self.say)(&format!("asked for {larger}"));
        let begun = Instant::now();
        let turn = async || {
            let claim = self.claim().await?;
            let (has, node_volume) = self.volume(&volume).await?;
            let status = node_volume.and_then(|found| found.status);
            let measured = status.as_ref().and_then(|status| status.size.map(Bytes));
            // Kubernetes' own expander says so of volumes without a file system of their own too.
            let is_pending = status.is_none_or(|status| status.node_expansion_required)
                && file_system_resize_pending(&claim, has).is_some();
            // Kubernetes' own expander raises the volume's capacity before the storage has grown.
            let may_have_grown = measured.is_none_or(|measured| measured >= larger);
            let waiting = |what: &str| {
                let why = failure(&claim).map(|why| format!(": {why}"));
                Ok(Turn::Waiting(what.to_owned() + &why.unwrap_or_default()))
            };
            if !may_have_grown || has < larger {
                return waiting("grow the volume");
            }
            let grown = match (capacity(&claim) >= larger, is_pending) {
                (true, _) => Some(format!("grown to {}", measured.unwrap_or(has))),
                (false, true) => measured.map(|size| {
                    format!("grown to {size}; its file system grows when a pod uses it")
                }),
                (false, false) => return waiting("tell the claim's new size"),
            };
            match grown {
                Some(grown) => self.after(begun, &grown),
                // The volume's capacity and the claim's condition say what was asked for.
                None => (self.say)(
                    "no growth was seen: nothing tells the size of the storage, and only a pod that uses the volume can show whether it grows",
                ),
            }
            Ok(Turn::End)
        };
        poll::finish(self.wanted.patience, turn).await?;
        Ok(volume)
    }

    async fn wait_until_bound(&self, made: &PersistentVolumeClaim) -> Result<String> {
        let begun = Instant::now();
        let turn = async || match self.claim().await? {
            claim if is_bound(&claim) => Ok(Turn::End),
            _ => Ok(Turn::Waiting("bind the claim".to_owned())),
        };
        poll::finish(self.wanted.patience, turn).await?;
        let claim = self.claim().await?;
        ensure!(
            uid(&claim.metadata) == uid(&made.metadata),
            "somebody has made the claim anew"
        );
        let name = claim.spec.and_then(|spec| spec.volume_name);
        let name = name.context("the claim is bound to no volume")?;
        let (has, node_volume) = self.volume(&name).await?;
        let on = node_volume.map(|found| {
            let spec = found.spec;
            format!(", made by {} on node {}", spec.driver, spec.node)
        });
        let on = on.unwrap_or_default();
        let said = format!("bound to persistent volume {name} of {has}{on}");
        self.after(begun, &said);
        Ok(name)
    }

    async fn delete(&self) -> Result<()> {
        let parameters = DeleteParams::default();
        match self.claims.delete(&self.name, &parameters).await {
            Ok(_) => (self.say)("deleted the claim"),
            // It was never made, or somebody has deleted it.
            Err(error) if refusal(&error) == Refusal::Missing => {}
            Err(error) => return Err(error).context("delete the claim"),
        }
        Ok(())
    }

    async fn wait_until_gone(&self, volume: &str) -> Result<()> {
        let begun = Instant::now();
        let turn = async || {
            let claim = self.claims.get_opt(&self.name).await;
            let claim = claim.context("read the claim")?;
            let all: Api<PersistentVolume> = Api::all(self.client.clone());
            let found = all.get_opt(volume).await;
            let found = found.context("read the persistent volume")?;
            let of_node: Api<NodeVolume> = Api::all(self.client.clone());
            let of_node = of_node
                .get_opt(volume)
                .await
                .context("read the NodeVolume")?;
            let error = of_node
                .as_ref()
                .and_then(|found| found.status.clone()?.error);
            let what = match (claim, found, of_node) {
                (None, None, None) => {
                    self.after(begun, "gone, with its volume and storage");
                    return Ok(Turn::End);
                }
                (Some(_), ..) => "remove the claim".to_owned(),
                (_, Some(_), _) => format!("remove persistent volume {volume}"),
                _ => format!("remove NodeVolume {volume}"),
            };
            let why = error.map(|error| format!(": {}", error.message));
            Ok(Turn::Waiting(what + &why.unwrap_or_default()))
        };
        poll::finish(self.wanted.patience, turn).await
    }

    async fn claim(&self) -> Result<PersistentVolumeClaim> {
        let claim = self.claims.get_opt(&self.name).await;
        let claim = claim.context("read the claim")?;
        claim.ok_or_else(|| anyhow!("somebody has deleted the claim"))
    }

    /// The capacity of a persistent volume, and its NodeVolume, if it has one.
    async fn volume(&self, name: &str) -> Result<(Bytes, Option<NodeVolume>)> {
        let all: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = all.get(name).await.context("read the persistent volume")?;
        let spec = found.spec.as_ref();
        let has = storage(spec.and_then(|spec| spec.capacity.as_ref()));
        let all: Api<NodeVolume> = Api::all(self.client.clone());
        let node_volume = all.get_opt(name).await.context("read the NodeVolume")?;
        Ok((has, node_volume))
    }

    /// The events of the claim, a line each.
    async fn told(&self, claim: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.wanted.namespace);
        let listed = match events.list(&ListParams::default()).await {
            Ok(listed) => listed,
            Err(error) => return format!("\ncannot read its events: {error}"),
        };
        let of_claim = listed.items.into_iter();
        let of_claim = of_claim.filter(|event| event.involved_object.uid.as_deref() == Some(claim));
        let lines = of_claim.map(|event| {
            let (reason, message) = (event.reason, event.message);
            format!(
                "\nevent {}: {}",
                reason.unwrap_or_default(),
                message.unwrap_or_default()
            )
        });
        lines.collect()
    }

    fn after(&self, begun: Instant, what: &str) {
        let seconds = begun.elapsed().as_secs_f64();
        (self.say)(&format!("{what}, after {seconds:.1} s"));
    }
}
