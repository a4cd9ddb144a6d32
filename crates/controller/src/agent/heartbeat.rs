//! Heartbeats: the node's StorageNode with the drivers that answer, and the capacity for each storage class.

#[cfg(test)]
mod tests;

use super::{bounds, exec::Drivers, node_context::NodeContext};
use crate::{
    api::v1alpha1::{DriverReport, StorageNode, StorageNodeStatus},
    client::{Refusal, error_message, refusal},
    runtime::backoff::Backoff,
    support::log,
};
use anyhow::{Context, Error, Result};
use flexvol_sdk::{ErrorClass, PoolSpace};
use k8s_openapi::{api::storage::v1::StorageClass, jiff::Timestamp};
use kube::{
    Api,
    api::{ListParams, ObjectMeta, PostParams},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

/// Default maximum interval between heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(60);

/// Timeout of `init` and `capacity` calls. A slower driver counts as silent, because others wait.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after the node's storage has changed.
const SOON: Duration = Duration::from_secs(1);

/// The last report that was written.
struct LastReport {
    node: StorageNode,
    when: Instant,
}

/// Whether two reports are equal except for the time, and for values that are constant while the agent runs.
fn says_the_same(one: &StorageNodeStatus, other: &StorageNodeStatus) -> bool {
    one.drivers == other.drivers && one.capacities == other.capacities
}

/// Returns the backoff after failures, at most one heartbeat. Up to half of it is random (`chance` from 0 to 1),
/// because a failure of all nodes must not make them all retry at once.
fn pause(failures: u32, heartbeat: Duration, chance: f64) -> Duration {
    let whole = Backoff {
        first: SOON,
        longest: heartbeat.max(SOON),
    };
    whole.after(failures).mul_f64(1.0 - chance / 2.0)
}

/// Random number from 0 to 1. The standard library has no other source.
fn chance() -> f64 {
    let [low, high, ..] = RandomState::new().build_hasher().finish().to_le_bytes();
    f64::from(u16::from_le_bytes([low, high])) / f64::from(u16::MAX)
}

/// Number of heartbeats after which measured capacities are stale.
const STALE: u32 = 3;

/// Drops stale capacities. Returns whether there were any.
fn forget_rooms(status: &mut Option<StorageNodeStatus>) -> bool {
    let rooms = status
        .as_mut()
        .map(|status| std::mem::take(&mut status.capacities));
    rooms.is_some_and(|rooms| !rooms.is_empty())
}

/// Writes heartbeats.
pub(super) struct Heartbeat {
    pub context: Arc<NodeContext>,
    /// Interval between heartbeats.
    pub period: Duration,
    /// Notified when the capacity of the node may have changed.
    pub changed: Notify,
    /// Whether a report was written.
    pub told: AtomicBool,
}

impl Heartbeat {
    /// Runs for ever. Measurements and heartbeats are independent, so that a slow driver delays no heartbeat.
    pub async fn run(&self) {
        let (found, mut seen) = watch::channel(None);
        tokio::join!(self.measure(&found), self.tell(&mut seen));
    }

    async fn measure(&self, found: &watch::Sender<Option<StorageNodeStatus>>) {
        let (mut failures, mut measured) = (0, Instant::now());
        loop {
            match self.look().await {
                Ok(status) => {
                    (failures, measured) = (0, Instant::now());
                    let came = found.borrow().as_ref().is_some_and(|before| {
                        let mut drivers = status.drivers.keys();
                        drivers.any(|name| !before.drivers.contains_key(name))
                    });
                    found.send_replace(Some(status));
                    if came {
                        // Calls that failed without the driver need not wait for their backoff.
                        self.context.queue.hurry();
                    }
                    // Waits for a change or the next heartbeat. Changes within a second are reported together.
                    let _ = timeout(self.period, self.changed.notified()).await;
                    sleep(SOON).await;
                }
                Err(error) => {
                    if measured.elapsed() >= self.period * STALE {
                        found.send_if_modified(forget_rooms);
                        self.context.metrics.lack(&BTreeMap::new());
                        self.context.metrics.pools(&BTreeMap::new());
                    }
                    self.fail(&error, &mut failures).await;
                }
            }
        }
    }

    async fn tell(&self, found: &mut watch::Receiver<Option<StorageNodeStatus>>) {
        let (mut told, mut failures) = (None, 0);
        loop {
            let status = found.borrow_and_update().clone();
            if let Some(status) = status {
                if let Err(error) = self.tell_once(status, &mut told).await {
                    told = None;
                    self.fail(&error, &mut failures).await;
                    continue;
                }
                failures = 0;
                self.told.store(true, Ordering::Relaxed);
            }
            let since = told.as_ref().map(|told| told.when.elapsed());
            let left = self.period.saturating_sub(since.unwrap_or_default());
            let _ = timeout(left.max(SOON), found.changed()).await;
        }
    }

    async fn fail(&self, error: &Error, failures: &mut u32) {
        let error = error_message(error);
        log::warn("cannot tell what is on the node", &[("error", &error)]);
        *failures = failures.saturating_add(1);
        sleep(pause(*failures, self.period, chance())).await;
    }

    /// Writes a report, unless an equal one was written less than a period ago.
    async fn tell_once(
        &self,
        mut status: StorageNodeStatus,
        told: &mut Option<LastReport>,
    ) -> Result<()> {
        status.last_heartbeat_time = Some(Timestamp::now().to_string());
        let is_old = |told: &LastReport| {
            told.when.elapsed() >= self.period || !says_the_same(&told.node.status, &status)
        };
        if !told.as_ref().is_none_or(is_old) {
            return Ok(());
        }
        let nodes: Api<StorageNode> = Api::all(self.context.client.clone());
        let write = PostParams::default();
        let mut known = told.take().map(|told| told.node);
        for _ in 0..5 {
            let found = match known.take() {
                Some(node) => Some(node),
                None => nodes
                    .get_opt(&self.context.node)
                    .await
                    .context("read the node's storage")?,
            };
            let written = match found {
                Some(mut node) => {
                    node.status = status.clone();
                    nodes
                        .replace_status(&self.context.node, &write, &node)
                        .await
                }
                // The next iteration writes the status.
                None => nodes.create(&write, &self.storage_node()).await,
            };
            match written {
                // The API server prunes fields that an outdated CRD lacks. A write that lost fields is repeated.
                Ok(node)
                    if node.status.last_heartbeat_time == status.last_heartbeat_time
                        && says_the_same(&node.status, &status) =>
                {
                    let when = Instant::now();
                    *told = Some(LastReport { node, when });
                    return Ok(());
                }
                Ok(node) => known = Some(node),
                Err(error) if refusal(&error) == Refusal::Other => {
                    return Err(error).context("write the node's storage");
                }
                Err(_) => {}
            }
        }
        anyhow::bail!("the node's StorageNode changes again and again")
    }

    fn storage_node(&self) -> StorageNode {
        StorageNode {
            api_version: StorageNode::api_version(),
            kind: "StorageNode".to_owned(),
            metadata: ObjectMeta {
                name: Some(self.context.node.clone()),
                ..ObjectMeta::default()
            },
            status: StorageNodeStatus::default(),
        }
    }

    async fn look(&self) -> Result<StorageNodeStatus> {
        let context = &self.context;
        let mut status = StorageNodeStatus {
            deadline_seconds: Some(context.drivers.deadline.as_secs()),
            ..StorageNodeStatus::default()
        };
        let drivers = Drivers {
            deadline: context.drivers.deadline.min(TIMEOUT),
            ..context.drivers.clone()
        };
        let (mut hang, mut missing) = (HashSet::new(), BTreeMap::new());
        let mut pools = BTreeMap::<_, PoolSpace>::new();
        for name in context.ours.names() {
            match context.capabilities.ask(&drivers, name).await {
                Ok(capabilities) => {
                    let report = DriverReport {
                        node_expansion_required: capabilities.requires_fs_resize,
                        capacity_unsupported: false,
                    };
                    status.drivers.insert(name.to_owned(), report);
                }
                Err(failure) => {
                    let why = failure.message.as_str();
                    log::warn(
                        "a driver does not answer",
                        &[("driver", name), ("error", why)],
                    );
                }
            }
        }
        let classes: Api<StorageClass> = Api::all(context.client.clone());
        let classes = classes
            // From the API server's cache: all nodes ask each minute.
            .list(&ListParams::default().match_any())
            .await
            .context("list storage classes")?;
        for class in classes {
            let name = class.metadata.name.unwrap_or_default();
            let Some(driver) = context.ours.driver_of(&class.provisioner) else {
                continue;
            };
            if status.capacities.len() == bounds::CLASSES {
                log::warn("there are more storage classes than a node tells of", &[]);
                break;
            }
            if !status.drivers.contains_key(driver) || hang.contains(driver) {
                continue;
            }
            let parameters = json!(class.parameters.unwrap_or_default()).to_string();
            let asked = ["capacity".to_owned(), parameters];
            match drivers.call(driver, &asked).await {
                Ok(reply) => {
                    if let Some(bytes) = reply.shortfall {
                        missing.insert((driver.to_owned(), name.clone()), bytes);
                    }
                    if let Some(space) = reply.pool_space.filter(bounds::is_pool) {
                        let pool = (driver.to_owned(), space.pool.clone());
                        pools.insert(pool, space);
                    }
                    if let Some(room) = reply.capacity {
                        status.capacities.insert(name, bounds::size(room));
                    }
                }
                Err(failure) if failure.unsupported => {
                    if let Some(report) = status.drivers.get_mut(driver) {
                        report.capacity_unsupported = true;
                    }
                }
                Err(failure) => {
                    if failure.class == ErrorClass::Uncertain {
                        hang.insert(driver);
                    }
                    let why = failure.message.as_str();
                    log::warn("no capacity is known", &[("class", &name), ("error", why)]);
                }
            }
        }
        context.metrics.lack(&missing);
        context.metrics.pools(&pools);
        Ok(status)
    }
}
