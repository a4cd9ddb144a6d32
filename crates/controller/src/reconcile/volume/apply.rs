//! Doing one step: one write, on the condition that its object has not changed since it was read.

use crate::{
    api::{
        v1alpha1::NodeVolume,
        well_known::{CLAIM_FINALIZER, NODE_VOLUME_FINALIZER, SELECTED_NODE, VOLUME_FINALIZER},
    },
    claims::Step,
    client::Read,
    drivers::ServedDrivers,
    k8s::{claim, meta::only_this},
    observe::VolumeObjects,
    placement::{Nodes, VolumeRequest},
    reconcile::volume::{
        candidate,
        manifests::{
            node_volume_for, persistent_volume, recreated_node_volume, with_capacity,
            with_resize_failure, with_resize_pending, without_resize_failure,
        },
    },
};
use anyhow::{Context, Result, anyhow};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// Does steps of one volume.
pub(crate) struct StepWriter<'a> {
    /// The way to the API server.
    pub client: &'a Client,
    /// What nodes can do.
    pub nodes: &'a Nodes,
    /// The drivers.
    pub ours: &'a ServedDrivers,
    /// The name of the volume.
    pub name: &'a str,
}

impl StepWriter<'_> {
    /// Does the step, and puts what the API server answered into `live`.
    ///
    /// # Errors
    /// When it was refused, also because the object has changed.
    pub async fn step(&self, step: &Step, live: &mut VolumeObjects) -> Result<()> {
        match step {
            Step::NoOp | Step::RecordEvent(_) | Step::Refuse(_) | Step::Blocked(_) => {}
            Step::AddClaimFinalizer => {
                let claim = claim(live)?;
                self.patch_claim(
                    live,
                    json!({"finalizers": with(&claim.metadata, CLAIM_FINALIZER)}),
                )
                .await?;
            }
            Step::RemoveClaimFinalizer => {
                let claim = claim(live)?;
                self.patch_claim(
                    live,
                    json!({"finalizers": without(&claim.metadata, CLAIM_FINALIZER)}),
                )
                .await?;
            }
            Step::Reschedule => {
                self.patch_claim(live, json!({"annotations": {SELECTED_NODE: Value::Null}}))
                    .await?;
            }
            Step::CreateNodeVolume { node } => {
                let node_volume = self.new_node_volume(live, node.as_deref()).await?;
                live.node_volume = Some(
                    self.create(&self.all(), node_volume)
                        .await
                        .context("create the NodeVolume")?,
                );
            }
            Step::RecreateNodeVolume { state, size } => {
                let node_volume = recreated_node_volume(self.name, volume(live)?, *state, *size)?;
                live.node_volume = Some(
                    self.create(&self.all(), node_volume)
                        .await
                        .context("create the NodeVolume anew")?,
                );
            }
            Step::CreatePersistentVolume => {
                let (claim, class) = (claim(live)?, live.class.as_ref().context("no class")?);
                let node_volume = node_volume(live)?;
                let hostname = live.hostname.as_ref().and_then(|found| found.as_ref().ok());
                let hostname = hostname.context("no hostname")?;
                let volume = persistent_volume(self.name, claim, class, node_volume, hostname)?;
                let volume = self.create(&self.all(), volume).await;
                live.volume = Some(volume.context("make the persistent volume")?);
            }
            Step::MarkPublishing => {
                self.patch_node_volume(live, json!({"publishing": true}))
                    .await?
            }
            Step::MarkPublished => {
                self.patch_node_volume(live, json!({"published": true}))
                    .await?
            }
            Step::RequestDeletion => {
                self.patch_node_volume(live, json!({"state": "Absent"}))
                    .await?
            }
            Step::RequestSize(size) => {
                let node_volume = node_volume(live)?;
                let most = node_volume.spec.most_ordered();
                live.node_volume = Some(
                    self.request_size(version(&node_volume.metadata), *size, most)
                        .await?,
                );
            }
            Step::DeleteNodeVolume => {
                self.delete_node_volume(node_volume(live)?).await?;
                (live.node_volume, live.hostname) = (None, None);
                (live.stalled, live.late) = (None, None);
            }
            Step::DeletePersistentVolume => {
                let api: Api<PersistentVolume> = self.all();
                delete(&api, &volume(live)?.metadata)
                    .await
                    .context("delete the volume")?;
                live.volume = api.get_opt(self.name).await.context("read the volume")?;
            }
            Step::RemovePersistentVolumeFinalizer => {
                let volume = volume(live)?;
                let patch = json!({"finalizers": without(&volume.metadata, VOLUME_FINALIZER)});
                let api: Api<PersistentVolume> = self.all();
                self.patch_meta(&api, &volume.metadata, patch).await?;
                live.volume = None;
            }
            Step::SetPersistentVolumeCapacity(size) => {
                let seen = version(&volume(live)?.metadata);
                live.volume = Some(self.set_volume_capacity(seen, *size).await?);
            }
            Step::SetClaimCapacity(size) => {
                let status = with_capacity(claim(live)?, *size);
                self.patch_claim_status(live, status).await?;
            }
            Step::SetFileSystemResizePending(size) => {
                let status = with_resize_pending(claim(live)?, *size);
                self.patch_claim_status(live, status).await?;
            }
            Step::SetResizeFailure(why) => {
                let status = with_resize_failure(claim(live)?, why);
                self.patch_claim_status(live, status).await?;
            }
            Step::ClearResizeFailure => {
                let status = without_resize_failure(claim(live)?);
                self.patch_claim_status(live, status).await?;
            }
        }
        Ok(())
    }

    fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    fn claims(&self, claim: &PersistentVolumeClaim) -> Api<Read<PersistentVolumeClaim>> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn create<K>(&self, api: &Api<K>, object: Value) -> Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).context("make an object")?;
        Ok(api.create(&PostParams::default(), &object).await?)
    }

    async fn patch_claim(&self, live: &mut VolumeObjects, meta: Value) -> Result<()> {
        let claim = claim(live)?;
        let api = self.claims(claim);
        let patched = self.patch_meta(&api, &claim.metadata, meta).await?;
        live.put_claim(Some(patched));
        Ok(())
    }

    async fn patch_meta<K>(&self, api: &Api<K>, before: &ObjectMeta, mut meta: Value) -> Result<K>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        meta["resourceVersion"] = json!(before.resource_version);
        meta["uid"] = json!(before.uid);
        let name = before.name.as_deref().unwrap_or_default();
        patched(api, name, &json!({"metadata": meta})).await
    }

    /// Asks for another size, if the NodeVolume still has this version.
    /// The most that was ordered so far is remembered, as the node may reach it yet.
    pub async fn request_size(
        &self,
        version: &str,
        size: Bytes,
        most: Bytes,
    ) -> Result<NodeVolume> {
        let most = (most > size).then_some(most.0);
        let spec = json!({"size": size.0, "maxRequestedSize": most});
        self.change_node_volume(version, spec).await
    }

    /// Writes a size into the persistent volume, if it still has this version.
    pub async fn set_volume_capacity(
        &self,
        version: &str,
        size: Bytes,
    ) -> Result<PersistentVolume> {
        let patch = json!({
            "metadata": {"resourceVersion": version},
            "spec": {"capacity": {"storage": size.to_string()}},
        });
        patched(&self.all(), self.name, &patch).await
    }

    async fn change_node_volume(&self, version: &str, spec: Value) -> Result<NodeVolume> {
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
        patched(&self.all(), self.name, &patch).await
    }

    async fn patch_node_volume(&self, live: &mut VolumeObjects, spec: Value) -> Result<()> {
        let changed = self
            .change_node_volume(version(&node_volume(live)?.metadata), spec)
            .await?;
        live.node_volume = Some(changed);
        Ok(())
    }

    async fn patch_claim_status(&self, live: &mut VolumeObjects, status: Value) -> Result<()> {
        let claim = claim(live)?;
        let patch = json!({
            "metadata": {"resourceVersion": claim.metadata.resource_version},
            "status": status,
        });
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let patched = self
            .claims(claim)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .context("write the claim's status")?;
        live.put_claim(Some(patched));
        Ok(())
    }

    async fn new_node_volume(&self, live: &VolumeObjects, chosen: Option<&str>) -> Result<Value> {
        let (claim, class) = (claim(live)?, live.class.as_ref().context("no class")?);
        let size = claim.spec.as_ref().map(claim::request).transpose();
        let size = size.map_err(|why| anyhow!(why))?.context("no size")?;
        let class_name = class.metadata.name.as_deref().unwrap_or_default();
        let driver = self.ours.driver_of(&class.provisioner);
        let driver = driver.with_context(|| format!("storage class {class_name:?} is not ours"))?;
        let node = match chosen {
            Some(node) => self.nodes.check(node, driver)?,
            None => {
                let asker = VolumeRequest {
                    volume: self.name,
                    namespace: claim.metadata.namespace.as_deref().unwrap_or_default(),
                };
                let (client, nodes) = (self.client, self.nodes);
                candidate::with_room(client, nodes, driver, class_name, size, asker).await?
            }
        };
        let mut node_volume = node_volume_for(self.name, &node);
        node_volume["spec"] = json!({
            "driver": driver,
            "node": node,
            "state": "Present",
            "size": size.0,
            "claim": {
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            },
            "parameters": class.parameters.clone().unwrap_or_default(),
        });
        Ok(node_volume)
    }

    /// Takes our finalizer and deletes the NodeVolume: whichever comes second ends it.
    async fn delete_node_volume(&self, node_volume: &NodeVolume) -> Result<()> {
        let api: Api<NodeVolume> = self.all();
        let mut node_volume = node_volume.clone();
        if node_volume.metadata.deletion_timestamp.is_none() {
            let left = delete(&api, &node_volume.metadata).await;
            match left.context("delete the NodeVolume")? {
                Some(left) => node_volume = left,
                None => return Ok(()),
            }
        }
        let patch = json!({"finalizers": without(&node_volume.metadata, NODE_VOLUME_FINALIZER)});
        let patched = self.patch_meta(&api, &node_volume.metadata, patch).await;
        patched.map(drop)
    }
}

fn claim(live: &VolumeObjects) -> Result<&PersistentVolumeClaim> {
    live.claim.as_ref().context("the claim is gone")
}

fn volume(live: &VolumeObjects) -> Result<&PersistentVolume> {
    live.volume
        .as_ref()
        .context("the persistent volume is gone")
}

fn node_volume(live: &VolumeObjects) -> Result<&NodeVolume> {
    live.node_volume.as_ref().context("the NodeVolume is gone")
}

fn version(meta: &ObjectMeta) -> &str {
    meta.resource_version.as_deref().unwrap_or_default()
}

/// Merges into an object.
pub(crate) async fn patched<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    let patch = Patch::Merge(patch);
    Ok(api.patch(name, &PatchParams::default(), &patch).await?)
}

/// Deletes an object and returns what finalizers leave of it.
async fn delete<K>(api: &Api<K>, meta: &ObjectMeta) -> Result<Option<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let name = meta.name.as_deref().unwrap_or_default();
    Ok(api.delete(name, &only_this(meta)).await?.left())
}

fn with(meta: &ObjectMeta, finalizer: &str) -> Vec<String> {
    let mut all = without(meta, finalizer);
    all.push(finalizer.to_owned());
    all
}

fn without(meta: &ObjectMeta, finalizer: &str) -> Vec<String> {
    let mut all = meta.finalizers.clone().unwrap_or_default();
    all.retain(|each| each != finalizer);
    all
}
