//! The agent of a node: calls the node's drivers for its NodeVolumes.

mod arguments;
mod bounds;
pub mod callout;
mod capabilities;
mod deletion_check;
pub mod exec;
mod file_systems;
mod heartbeat;
mod node_context;
pub mod nsenter;
mod pod_mounts;
mod status;

pub use heartbeat::HEARTBEAT;

use crate::{
    api::{
        v1alpha1::{NodeVolume, NodeVolumeStatus, StorageState},
        well_known::{NODE_LABEL, node_label},
    },
    client::MaybePartial,
    drivers::ServedDrivers,
    k8s::meta::uid,
    runtime::{
        backoff::Backoff,
        reflector::{Event, Presence, reflect},
        work_queue::{Outcome, Queue},
        workers::Workers,
    },
    support::{log, metrics::Metrics},
};
use anyhow::{Context, Result};
use arguments::arguments;
use callout::{Callout, due_callout, expanded_size, next_callout};
use capabilities::KnownCapabilities;
use deletion_check::deletion_forbidden;
use exec::{Drivers, Failure};
use file_systems::FileSystems;
use flexvol_sdk::ErrorClass;
use heartbeat::Heartbeat;
use kube::{Api, Client, ResourceExt, runtime::watcher};
use node_context::NodeContext;
use status::{after_failure, after_missing_expand, after_success, record, without_findings};
use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Most calls take seconds. Additional workers run while calls are slow, so that a driver that hangs blocks no other.
const WORKERS: Workers = Workers {
    kind: "volume",
    count: 4,
    long: 12,
};

/// Pause before a NodeVolume that has changed meanwhile is reconciled again.
const SOON: Duration = Duration::from_millis(50);

/// The agent of one node.
pub struct Agent {
    context: Arc<NodeContext>,
    /// Whether the first list of NodeVolumes is complete.
    seen: AtomicBool,
    /// UIDs of unpublished NodeVolumes whose storage this process has checked.
    verified: Mutex<HashSet<String>>,
    heartbeat: Arc<Heartbeat>,
    file_systems: Arc<FileSystems>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// Creates the agent of a node for these drivers, with this interval of heartbeats.
    #[must_use]
    pub fn new(
        client: Client,
        node: String,
        ours: ServedDrivers,
        drivers: Drivers,
        heartbeat: Duration,
        metrics: Metrics,
    ) -> Arc<Self> {
        let context = Arc::new(NodeContext {
            client,
            node,
            ours,
            drivers,
            capabilities: KnownCapabilities::default(),
            queue: Arc::new(Queue::new(
                Backoff::FAILURES,
                metrics.of_queue(WORKERS.kind),
            )),
            metrics,
        });
        let heartbeat = Heartbeat {
            context: Arc::clone(&context),
            period: heartbeat,
            changed: Notify::new(),
            told: AtomicBool::new(false),
        };
        let file_systems = FileSystems {
            context: Arc::clone(&context),
            busy: Mutex::default(),
        };
        Arc::new(Agent {
            context,
            seen: AtomicBool::new(false),
            verified: Mutex::default(),
            heartbeat: Arc::new(heartbeat),
            file_systems: Arc::new(file_systems),
        })
    }

    /// Whether the first list and the first heartbeat are complete. Before that, no volumes are placed on the node.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.seen.load(Ordering::Relaxed) && self.heartbeat.told.load(Ordering::Relaxed)
    }

    /// Runs for ever.
    pub async fn run(self: Arc<Self>) {
        let this = Arc::clone(&self);
        tokio::spawn(async move { this.watch().await });
        let heartbeat = Arc::clone(&self.heartbeat);
        tokio::spawn(async move { heartbeat.run().await });
        let reconcile = |name: String| {
            let this = Arc::clone(&self);
            async move { this.reconcile(&name).await }
        };
        WORKERS
            .run(Arc::clone(&self.context.queue), reconcile)
            .await;
    }

    async fn watch(&self) {
        let node_volumes: Api<MaybePartial<NodeVolume>> = Api::all(self.context.client.clone());
        let own = format!("{NODE_LABEL}={}", node_label(&self.context.node));
        // Lists from the API server's cache: before Kubernetes 1.31 a consistent list would read the NodeVolumes of all
        // nodes from etcd, and each NodeVolume is read live before its call anyway.
        let config = watcher::Config::default().labels(&own).any_semantic();
        let handle = |event| match event {
            Event::Object(node_volume, Presence::There) => self.node_volume_seen(&node_volume),
            // It is read live before its call, like every other.
            Event::Part(part, Presence::There) => {
                let name = part.metadata.name.unwrap_or_default();
                self.context.queue.push("", &name);
            }
            Event::Object(node_volume, Presence::Gone) => {
                self.verified().remove(uid(&node_volume.metadata));
            }
            Event::Part(part, Presence::Gone) => {
                self.verified().remove(uid(&part.metadata));
            }
            Event::ListBegins => self.verified().clear(),
            Event::Listed(_) => self.seen.store(true, Ordering::Relaxed),
        };
        reflect(node_volumes, config, &self.context.metrics, handle).await;
    }

    fn node_volume_seen(&self, node_volume: &NodeVolume) {
        let name = node_volume.name_any();
        let answer = node_volume.status.clone().unwrap_or_default();
        let answered = Some(answer.observed_generation) == node_volume.metadata.generation;
        if self.due(node_volume, &answer, answered) == Callout::Nothing {
            return;
        }
        // Namespaces take turns.
        let owner = &node_volume.spec.claim.namespace;
        // An event of this agent's own failure, or a failure of a former agent.
        if answered && answer.failures > 0 {
            let pause = Backoff::FAILURES.after(answer.failures);
            self.context.queue.push_later(owner, &name, pause);
        } else {
            self.context.queue.push(owner, &name);
        }
    }

    async fn reconcile(&self, name: &str) -> Result<Outcome> {
        let context = &self.context;
        let node_volumes: Api<NodeVolume> = Api::all(context.client.clone());
        let Some(node_volume) = node_volumes
            .get_opt(name)
            .await
            .context("read the NodeVolume")?
        else {
            return Ok(Outcome::Done);
        };
        if node_volume.spec.node != context.node || !context.ours.has(&node_volume.spec.driver) {
            return Ok(Outcome::Done);
        }
        let before = node_volume.status.clone().unwrap_or_default();
        let answered = Some(before.observed_generation) == node_volume.metadata.generation;
        let callout = self.due(&node_volume, &before, answered);
        let Some(arguments) = arguments(&callout, name, &node_volume.spec, &before) else {
            return Ok(Outcome::Done);
        };
        let driver = &node_volume.spec.driver;
        let capabilities = match callout {
            // They decide whether the file system has to follow, and the driver may have been replaced since.
            Callout::Expand { .. } => context.capabilities.ask(&context.drivers, driver).await,
            _ => context.capabilities.of(&context.drivers, driver).await,
        };
        let forbidden = if callout == Callout::Delete {
            deletion_forbidden(&context.client, &context.ours, name, &node_volume).await?
        } else {
            None
        };
        let started = Instant::now();
        let result = match (&capabilities, forbidden) {
            (Err(failure), _) => Err(failure.clone()),
            (_, Some(why)) => Err(Failure::new(ErrorClass::Retryable, why.to_owned())),
            (Ok(_), None) => {
                let started = Instant::now();
                let result = context.drivers.call(driver, &arguments).await;
                let took = started.elapsed();
                context.metrics.called(driver, &arguments[0], took);
                match callout {
                    // Only this reply identifies the volume.
                    Callout::Provision => result.and_then(|reply| bounds::checked(driver, reply)),
                    _ => result,
                }
            }
        };
        // A failed call is repeated, unless the driver lacks the callout.
        if result
            .as_ref()
            .err()
            .is_none_or(|failure| failure.unsupported)
        {
            self.verified()
                .insert(uid(&node_volume.metadata).to_owned());
        }
        let called = &arguments[0];
        let seconds = format!("{:.3}", started.elapsed().as_secs_f64());
        let word = if result.is_ok() { "done" } else { "failed" };
        context.metrics.operated(called, word);
        let mut after = match result {
            Ok(reply) => {
                log::info(
                    "called",
                    &[
                        ("volume", name),
                        ("driver", driver),
                        ("step", called),
                        ("seconds", &seconds),
                    ],
                );
                self.heartbeat.changed.notify_one();
                let mut after = after_success(&callout, &before, reply);
                if let Ok(capabilities) = &capabilities
                    && FileSystems::may_grow(capabilities)
                    && let Some(size) = expanded_size(&callout, &node_volume.spec, &after)
                {
                    let grown = self.file_systems.grow(driver, name, &arguments, size).await;
                    after.file_system_size = grown.map(|size| size.0).or(after.file_system_size);
                }
                after
            }
            Err(failure) => {
                let why = failure.message.as_str();
                log::warn(
                    "a call failed",
                    &[
                        ("volume", name),
                        ("driver", driver),
                        ("step", called),
                        ("seconds", &seconds),
                        ("error", why),
                    ],
                );
                match (&callout, &capabilities) {
                    (Callout::Expand { new, old }, Ok(capabilities)) if failure.unsupported => {
                        // An unpublished volume is not mounted, so no growth of its file system can grow it.
                        let nobody_else =
                            !capabilities.requires_fs_resize || !node_volume.spec.published;
                        after_missing_expand(&before, driver, *new > *old && nobody_else)
                    }
                    // Storage that was found before may be gone.
                    (Callout::Provision | Callout::Expand { .. }, _)
                        if !node_volume.spec.published =>
                    {
                        after_failure(&without_findings(&before), failure)
                    }
                    _ => after_failure(&before, failure),
                }
            }
        };
        if let Ok(capabilities) = capabilities {
            after.node_expansion_required = capabilities.requires_fs_resize;
        }
        after.observed_generation = node_volume.metadata.generation.unwrap_or_default();
        if !record(&node_volumes, &node_volume, &after).await? {
            return Ok(Outcome::RequeueAfter(SOON));
        }
        Ok(match after.failures {
            0 => Outcome::Done,
            // The number is in the answer, so that a new agent continues the backoff.
            failures => Outcome::RequeueAfter(Backoff::FAILURES.after(failures)),
        })
    }

    /// Returns the callout that is due. For an unpublished volume, storage that a former agent found is checked
    /// again: the machine may have been replaced under the node's name.
    fn due(&self, node_volume: &NodeVolume, answer: &NodeVolumeStatus, answered: bool) -> Callout {
        match due_callout(&node_volume.spec, answer, answered) {
            Callout::Nothing
                if node_volume.spec.state == StorageState::Present
                    && !node_volume.spec.published
                    && !self.verified().contains(uid(&node_volume.metadata)) =>
            {
                // Of a volume that may be in use already, `next_callout` measures the storage and never creates it.
                let nothing_found = NodeVolumeStatus::default();
                next_callout(&node_volume.spec, &nothing_found)
            }
            callout => callout,
        }
    }

    fn verified(&self) -> MutexGuard<'_, HashSet<String>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
