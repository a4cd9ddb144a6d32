//! Applies a step: one write, conditioned on the object being unchanged since it was read. Only the deletion of a
//! NodeVolume takes two.

use crate::{
    api::{
        v1alpha1::NodeVolume,
        well_known::{CLAIM_FINALIZER, NODE_VOLUME_FINALIZER, SELECTED_NODE, VOLUME_FINALIZER},
    },
    claims::Step,
    client::Read,
    k8s::{claim, meta::only_this},
    observe::VolumeObjects,
    placement::VolumeRequest,
    reconcile::volume::{
        candidate,
        context::Context,
        manifests::{
            node_volume_for, persistent_volume, recreated_node_volume, with_allocated,
            with_capacity, with_resize_failure, with_resize_pending, without_resize_failure,
        },
        view::View,
    },
};
use anyhow::{Context as _, Result, anyhow, ensure};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// Applies steps of one volume.
pub(super) struct StepWriter<'a> {
    /// Client, caches and nodes.
    pub context: &'a Context,
    /// The volume's name.
    pub name: &'a str,
}

impl StepWriter<'_> {
    /// Applies the step, and stores the API server's response in `view`.
    ///
    /// # Errors
    /// When the write fails, also because the object has changed.
    pub async fn step(&self, step: &Step, view: &mut View) -> Result<()> {
        let live = &mut view.live;
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
                let created = self.create(&self.all(), node_volume).await;
                view.put_node_volume(Some(created.context("create the NodeVolume")?));
            }
            Step::RecreateNodeVolume { state, size, most } => {
                let volume = volume(live)?;
                let node_volume = recreated_node_volume(self.name, volume, *state, *size, *most)?;
                let created = self.create(&self.all(), node_volume).await;
                view.put_node_volume(Some(created.context("create the NodeVolume anew")?));
            }
            Step::CreatePersistentVolume => {
                let (claim, class) = (claim(live)?, live.class.as_ref().context("no class")?);
                let node_volume = node_volume(live)?;
                let hostname = live.hostname.as_ref().and_then(|found| found.as_ref().ok());
                let hostname = hostname.context("no hostname")?;
                let volume = persistent_volume(self.name, claim, class, node_volume, hostname)?;
                let volume = self.create(&self.all(), volume).await;
                view.put_volume(Some(volume.context("make the persistent volume")?));
            }
            Step::MarkPublishing => {
                self.patch_node_volume(view, json!({"publishing": true}))
                    .await?
            }
            Step::MarkPublished => {
                self.patch_node_volume(view, json!({"published": true}))
                    .await?
            }
            Step::RequestDeletion => {
                self.patch_node_volume(view, json!({"state": "Absent"}))
                    .await?
            }
            Step::RequestSize(size) => {
                // Keeps the largest size that was ordered so far, because the node may still reach it.
                let most = view.max_requested_size().filter(|most| most > size);
                let most = most.map(|most| most.0);
                self.patch_node_volume(view, json!({"size": size.0, "maxRequestedSize": most}))
                    .await?;
            }
            Step::DeleteNodeVolume => {
                let meta = view.node_volume_meta(self.name)?;
                self.delete_node_volume(meta).await?;
                view.put_node_volume(None);
                view.live.hostname = None;
                (view.live.stalled, view.live.late) = (None, None);
            }
            Step::DeletePersistentVolume => {
                let api: Api<PersistentVolume> = self.all();
                let left = delete(&api, &view.volume_meta(self.name)?).await;
                view.put_volume(left.context("delete the volume")?);
            }
            Step::RemovePersistentVolumeFinalizer => {
                let volume = volume(live)?;
                let patch = json!({"finalizers": without(&volume.metadata, VOLUME_FINALIZER)});
                let api: Api<PersistentVolume> = self.all();
                self.patch_meta(&api, &volume.metadata, patch).await?;
                view.put_volume(None);
            }
            Step::SetPersistentVolumeCapacity(size) => {
                let meta = view.volume_meta(self.name)?;
                let patch = json!({
                    "metadata": {"resourceVersion": meta.resource_version},
                    "spec": {"capacity": {"storage": size.to_string()}},
                });
                view.put_volume(Some(patched(&self.all(), self.name, &patch).await?));
            }
            Step::SetAllocatedResources(size) => {
                let status = with_allocated(claim(live)?, *size);
                self.patch_claim_status(live, status).await?;
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
        Api::all(self.context.client.clone())
    }

    fn claims(&self, claim: &PersistentVolumeClaim) -> Api<Read<PersistentVolumeClaim>> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.context.client.clone(), namespace)
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

    async fn patch_node_volume(&self, view: &mut View, spec: Value) -> Result<()> {
        let meta = view.node_volume_meta(self.name)?;
        let patch = json!({"metadata": {"resourceVersion": meta.resource_version}, "spec": spec});
        view.put_node_volume(Some(patched(&self.all(), self.name, &patch).await?));
        Ok(())
    }

    async fn patch_claim_status(&self, live: &mut VolumeObjects, status: Value) -> Result<()> {
        let claim = claim(live)?;
        let allocates = !status["allocatedResources"].is_null();
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
        if allocates && !live.claim_is_truncated {
            live.drops_allocated = claim::allocated(self::claim(live)?) == Bytes(0);
            self.context.note_dropped_allocation(live.drops_allocated);
        }
        Ok(())
    }

    async fn new_node_volume(&self, live: &VolumeObjects, chosen: Option<&str>) -> Result<Value> {
        let (claim, class) = (claim(live)?, live.class.as_ref().context("no class")?);
        let size = claim.spec.as_ref().map(claim::request).transpose();
        let size = size.map_err(|why| anyhow!(why))?.context("no size")?;
        let class_name = class.metadata.name.as_deref().unwrap_or_default();
        let driver = self.context.ours.driver_of(&class.provisioner);
        let driver = driver.with_context(|| format!("storage class {class_name:?} is not ours"))?;
        let node = match chosen {
            Some(node) => self.context.nodes.check(node, driver)?,
            None => {
                let asker = VolumeRequest {
                    volume: self.name,
                    namespace: claim.metadata.namespace.as_deref().unwrap_or_default(),
                };
                candidate::select_node(self.context, driver, class_name, size, asker).await?
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

    /// Deletes the NodeVolume, and then removes our finalizer.
    async fn delete_node_volume(&self, mut meta: ObjectMeta) -> Result<()> {
        let api: Api<NodeVolume> = self.all();
        if meta.deletion_timestamp.is_none() {
            let left = delete(&api, &meta).await;
            match left.context("delete the NodeVolume")? {
                Some(left) => meta = left.metadata,
                None => return Ok(()),
            }
        }
        let patch = json!({"finalizers": without(&meta, NODE_VOLUME_FINALIZER)});
        let left: NodeVolume = self.patch_meta(&api, &meta, patch).await?;
        let others = left.metadata.finalizers.unwrap_or_default();
        ensure!(
            others.is_empty(),
            "NodeVolume {} is being deleted, and finalizers of others keep it: {}; take them from it if nobody does",
            self.name,
            others.join(", ")
        );
        Ok(())
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

/// Applies a merge patch to an object.
pub(crate) async fn patched<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    let patch = Patch::Merge(patch);
    Ok(api.patch(name, &PatchParams::default(), &patch).await?)
}

/// Deletes an object. Returns the object if its finalizers keep it.
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
