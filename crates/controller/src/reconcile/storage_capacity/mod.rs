//! Publishes capacities for the scheduler, so that pods are scheduled where their volumes fit.
//!
//! If a class's provisioner has a `CSIDriver`, the scheduler takes only nodes with a sufficient `CSIStorageCapacity`
//! of the class (`hasEnoughCapacity` in `pkg/scheduler/framework/plugins/volumebinding/binder.go`). It checks each
//! claim by itself, and subtracts nothing after it has scheduled a pod, so a node may still be full. Then the claim
//! is rescheduled, as it is without published capacities.

mod diff;

use crate::{
    api::well_known::{MANAGED, hostname},
    client::{Refusal, error_message, fields::page, paginate, refusal},
    drivers::ServedDrivers,
    placement::{NodeCapacity, Nodes},
    runtime::backoff::Backoff,
    support::log,
};
use anyhow::{Context, Error, Result};
use diff::{
    Change, PublishedCapacities, PublishedCapacity, WantedCapacities, changes, manifest,
    next_changes, object_name, published_capacity, unshared_labels, wanted_capacity,
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::Node,
        storage::v1::{CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Interval of rounds.
const PERIOD: Duration = Duration::from_secs(5);

/// Interval at which published objects and nodes' hostnames are read again.
const TRUST: Duration = Duration::from_secs(300);

/// Minimum interval between lists of nodes: an agent of a node outside the cluster must not cause endless lists of ten
/// thousand nodes.
const NODES: Duration = Duration::from_secs(60);

/// Backoff after failures.
const PAUSE: Backoff = Backoff {
    longest: Duration::from_secs(60),
    ..Backoff::FAILURES
};

/// State that was read from the API server.
struct ClusterState {
    since: Instant,
    published: PublishedCapacities,
    /// The Deployment that owns the objects.
    owner: Option<OwnerReference>,
    /// The hostname of each node, if it is unique.
    hostnames: BTreeMap<String, Option<String>>,
    /// When nodes were last listed.
    listed: Option<Instant>,
}

/// Publishes capacities for ever, once the first lists are complete, as objects in this namespace. The Deployment, if
/// given, owns them, so that they are deleted with it. The scheduler believes objects of all namespaces, and nothing
/// would correct the objects of a removed controller.
pub async fn publish(
    client: Client,
    namespace: String,
    deployment: Option<String>,
    ours: ServedDrivers,
    nodes: Arc<Nodes>,
    ready: impl Fn() -> bool,
) {
    if !ours.any_scheduled() {
        return;
    }
    let mut publisher = Publisher {
        capacities: Api::namespaced(client.clone(), &namespace),
        deployments: Api::namespaced(client.clone(), &namespace),
        deployment,
        client,
        ours,
        nodes,
        known: None,
        last: String::new(),
    };
    let (mut failures, mut warned) = (0u32, false);
    loop {
        sleep(PERIOD.max(PAUSE.after(failures))).await;
        if !ready() {
            continue;
        }
        match publisher.round().await {
            Ok(()) => failures = 0,
            // Another API server may answer next, or the same one after an upgrade.
            Err(error) if refused(&error) == Some(Refusal::Missing) => {
                if !std::mem::replace(&mut warned, true) {
                    log::warn(
                        "before Kubernetes 1.24 the scheduler cannot be told what room there is",
                        &[],
                    );
                }
                failures = failures.saturating_add(1);
            }
            Err(error) => {
                let error = error_message(&error);
                log::warn(
                    "cannot tell the scheduler what room there is",
                    &[("error", &error)],
                );
                failures = failures.saturating_add(1);
            }
        }
    }
}

fn refused(error: &Error) -> Option<Refusal> {
    error.downcast_ref().map(refusal)
}

struct Publisher {
    client: Client,
    ours: ServedDrivers,
    nodes: Arc<Nodes>,
    capacities: Api<CSIStorageCapacity>,
    deployments: Api<Deployment>,
    deployment: Option<String>,
    known: Option<ClusterState>,
    /// The name of the last written object, for the round robin.
    last: String,
}

impl Publisher {
    /// Writes all changes. A failed write does not prevent others.
    ///
    /// # Errors
    /// The first failure. `Missing` can only come from the list.
    async fn round(&mut self) -> Result<()> {
        let mut known = match self.known.take() {
            Some(known) if known.since.elapsed() < TRUST => known,
            _ => self.learn().await?,
        };
        let wanted = self.wanted(&mut known).await?;
        let before = known.published.clone();
        let (mut is_current, mut first) = (true, None);
        let changes = changes(&wanted, &before);
        for (name, change) in next_changes(changes, &before, &self.last, wanted.len()) {
            name.clone_into(&mut self.last);
            match self.write(name, &change, known.owner.as_ref()).await {
                Ok(Some(published)) => drop(known.published.insert(name.to_owned(), published)),
                Ok(None) => drop(known.published.remove(name)),
                // Another writer was faster. The next round reads its change.
                Err(error)
                    if matches!(refused(&error), Some(Refusal::Changed | Refusal::Missing)) =>
                {
                    is_current = false;
                }
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        if is_current {
            self.known = Some(known);
        }
        first.map_or(Ok(()), Err)
    }

    async fn learn(&self) -> Result<ClusterState> {
        let mut published = PublishedCapacities::new();
        let labels = format!("{MANAGED}=true");
        let page = ListParams::default()
            .labels(&labels)
            .limit(page::<CSIStorageCapacity>());
        let listed = paginate::each(&self.capacities, page, |object| {
            published.insert(object.name_any(), published_capacity(object));
        });
        listed.await.context("list what the scheduler was told")?;
        Ok(ClusterState {
            since: Instant::now(),
            published,
            owner: self.owner().await?,
            hostnames: BTreeMap::new(),
            listed: None,
        })
    }

    async fn owner(&self) -> Result<Option<OwnerReference>> {
        let Some(name) = &self.deployment else {
            return Ok(None);
        };
        let found = self.deployments.get_opt(name).await;
        let found = found.context("read the Deployment that has what is told")?;
        let found = found.with_context(|| {
            format!(
                "there is no Deployment {name}; give --deployment the name of this process's own"
            )
        })?;
        Ok(Some(OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: name.clone(),
            uid: found.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        }))
    }

    async fn wanted(&self, known: &mut ClusterState) -> Result<WantedCapacities> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        // From the API server's cache: the next round is soon.
        let listed = classes.list(&ListParams::default().match_any()).await;
        let mut rooms = Vec::new();
        for class in listed.context("list storage classes")? {
            if let Some(driver) = self.ours.scheduled(&class.provisioner) {
                let class = class.name_any();
                let found = self.nodes.capacities(driver, &class).into_iter();
                rooms.extend(found.map(|room| (class.clone(), room)));
            }
        }
        let is_known =
            |(_, room): &(String, NodeCapacity)| known.hostnames.contains_key(&room.node);
        let lately = known.listed.is_some_and(|then| then.elapsed() < NODES);
        if !lately && !rooms.iter().all(is_known) {
            known.hostnames = self.hostnames().await?;
            known.listed = Some(Instant::now());
        }
        let named = rooms.into_iter().filter_map(|(class, room)| {
            // No volume could be bound to a node without a hostname, which is reported elsewhere.
            let hostname = known.hostnames.get(&room.node)?.clone()?;
            Some((
                object_name(&class, &room.node),
                wanted_capacity(class, room, hostname, known.owner.as_ref()),
            ))
        });
        Ok(named.collect())
    }

    async fn hostnames(&self) -> Result<BTreeMap<String, Option<String>>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let listed = nodes
            .list_metadata(&ListParams::default().match_any())
            .await;
        let listed = listed.context("list nodes")?.into_iter();
        let named = listed.map(|node| {
            let hostname = hostname(node.metadata.labels.as_ref());
            (node.name_any(), hostname.map(str::to_owned))
        });
        Ok(unshared_labels(named.collect()))
    }

    /// Writes one object. Returns its content, or `None` if it was deleted.
    async fn write(
        &self,
        name: &str,
        change: &Change<'_>,
        owner: Option<&OwnerReference>,
    ) -> Result<Option<PublishedCapacity>> {
        match change {
            Change::Create(wanted) => {
                let object =
                    serde_json::from_value(manifest(name, wanted, owner)).context("make it")?;
                let made = self
                    .capacities
                    .create(&PostParams::default(), &object)
                    .await;
                let (class, node) = (&wanted.class, &wanted.node);
                made.with_context(|| format!("tell the room of class {class} on node {node}"))?;
                Ok(Some(wanted.content.clone()))
            }
            Change::Update(wanted) => {
                let patch = json!({
                    "capacity": wanted.content.largest.to_string(),
                    "metadata": {"ownerReferences": [diff::owner(wanted, owner)]},
                });
                let patch = Patch::Merge(&patch);
                let patched = self
                    .capacities
                    .patch(name, &PatchParams::default(), &patch)
                    .await;
                patched.with_context(|| format!("correct {name}, the room on {}", wanted.node))?;
                Ok(Some(wanted.content.clone()))
            }
            Change::Delete => match self.capacities.delete(name, &DeleteParams::default()).await {
                Err(error) if refusal(&error) != Refusal::Missing => {
                    Err(error).with_context(|| format!("take back {name}"))
                }
                _ => Ok(None),
            },
        }
    }
}
