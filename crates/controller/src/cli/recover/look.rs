//! Live reads of the state that decides about a recovery.

use super::{
    Recovery,
    preconditions::{self, Found, Owner, Users},
};
use crate::{
    api::v1alpha1::NodeVolume,
    cli::poll::LOOK,
    client::paginate,
    k8s::{meta::uid, pod::Pod},
};
use anyhow::{Context, Result, bail};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Namespace};
use kube::{Api, ResourceExt, api::ListParams};
use tokio::time::{Instant, sleep};

impl Recovery<'_> {
    /// Reads the state, and waits until the node has measured storage that it may be growing.
    pub(super) async fn look_when_measured(&self) -> Result<Found> {
        let begun = Instant::now();
        let mut is_told = false;
        loop {
            let found = self.look().await?;
            let Some(why) = preconditions::growing(&found) else {
                return Ok(found);
            };
            if begun.elapsed() >= self.wanted.patience {
                bail!("{why}");
            }
            if !is_told {
                (self.say)(&format!("waiting: {why}"))?;
                is_told = true;
            }
            sleep(LOOK).await;
        }
    }

    pub(super) async fn look(&self) -> Result<Found> {
        let place = format!("claim {}/{}", self.wanted.namespace, self.wanted.name);
        // Read before the claim: the claim need not belong to a namespace that was read after it.
        let namespace = self.namespace_uid().await?;
        let claim = self.claims.get_opt(&self.wanted.name).await;
        let claim = claim.context("read the claim")?;
        let claim = claim.with_context(|| format!("there is no {place}"))?;
        let name = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.clone());
        let name = name.filter(|name| !name.is_empty());
        let name = name.with_context(|| {
            format!("{place} has no volume yet, so it has nothing to lose: edit it, or delete it")
        })?;
        let volume = self.volumes.get_opt(&name).await;
        let volume = volume.context("read the persistent volume")?;
        let volume = volume.with_context(|| format!("persistent volume {name} is gone"))?;
        let node_volumes: Api<NodeVolume> = Api::all(self.client.clone());
        let node_volume = node_volumes
            .get_opt(&name)
            .await
            .context("read the NodeVolume")?;
        Ok(Found {
            namespace,
            claim,
            volume,
            node_volume,
            users: self.users().await?,
        })
    }

    pub(super) async fn namespace_uid(&self) -> Result<String> {
        let name = &self.wanted.namespace;
        let all: Api<Namespace> = Api::all(self.client.clone());
        let found = all.get_opt(name).await.context("read the namespace")?;
        let found = found.with_context(|| format!("there is no namespace {name}"))?;
        Ok(uid(&found.metadata).to_owned())
    }

    pub(super) async fn users(&self) -> Result<Users> {
        let (namespace, name) = (&self.wanted.namespace, &self.wanted.name);
        let mut users = Users::default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let listed = paginate::each(
            &pods,
            ListParams::default().limit(paginate::PAGE_SIZE),
            |pod| {
                if preconditions::names(pod, name) {
                    users.pods.push(pod.name_any());
                }
            },
        );
        listed.await.context("list pods")?;
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let listed = paginate::each(
            &sets,
            ListParams::default().limit(paginate::PAGE_SIZE),
            |set| {
                users.sets.extend(Owner::of(set, name));
            },
        );
        listed.await.context("list stateful sets")?;
        Ok(users)
    }
}
