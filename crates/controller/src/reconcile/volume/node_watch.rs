//! Periodic checks of nodes for changes without an event: silence, lack of progress, and larger capacities.

use super::context::Context;
use crate::support::log;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval of the checks.
const LOOK: Duration = Duration::from_secs(2);

/// Minimum interval between reconciliations of volumes without a node because nodes offer more.
const OFFERS: Duration = Duration::from_secs(60);

/// Enqueues volumes whose nodes fall silent or make no progress, and volumes without a node once nodes offer more.
pub(super) async fn watch_nodes(context: &Context) {
    let mut looked: Option<Instant> = None;
    loop {
        sleep(LOOK).await;
        for node in context.nodes.fell_silent() {
            log::warn("a node's agent is silent", &[("node", &node)]);
            for name in context.index.of_node(&node) {
                if !context.index.is_settled(&name) || context.claims.place(&name).is_some() {
                    context.enqueue(&name);
                }
            }
        }
        let stalled = context.nodes.stalled().into_iter();
        for name in stalled.chain(context.nodes.late()) {
            context.enqueue(&name);
        }
        let too_soon = looked.is_some_and(|then| then.elapsed() < OFFERS);
        if !too_soon {
            let retries = context.claims.volumes_to_retry();
            if !retries.is_empty() {
                looked = Some(Instant::now());
            }
            for name in retries {
                context.enqueue(&name);
            }
        }
    }
}
