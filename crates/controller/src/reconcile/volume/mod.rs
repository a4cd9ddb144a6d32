//! Reconciler of volumes: brings each changed volume to its desired state, step by step.

pub(crate) mod apply;
mod candidate;
mod context;
pub(crate) mod manifests;
mod node_health;
mod node_state;
mod node_watch;
mod recent_nodes;
mod reconciler;
mod report;
mod reschedule;
#[cfg(test)]
mod tests;
mod view;
mod watches;

pub use context::Context;

use crate::runtime::workers::Workers;
use node_watch::watch_nodes;
use prometheus_client::metrics::gauge::Gauge;
use reconciler::reconcile;
use std::{sync::Arc, time::Duration};
use watches::watch_all;

const WORKERS: Workers = Workers {
    kind: "volume",
    count: 10,
    long: 0,
};

/// Interval at which gauges are updated.
const COUNTED: Duration = Duration::from_secs(10);

/// Runs for ever.
pub async fn run(context: Arc<Context>) {
    watch_all(&context);
    context.wait_until_ready().await;
    for name in context.index.unsettled() {
        context.enqueue(&name);
    }
    let this = Arc::clone(&context);
    tokio::spawn(async move { watch_nodes(&this).await });
    let this = Arc::clone(&context);
    tokio::spawn(async move { count(&this).await });
    let step = |name: String| {
        let context = Arc::clone(&context);
        async move { reconcile(&context, &name).await }
    };
    WORKERS.run(Arc::clone(&context.queue), step).await;
}

/// Updates gauges periodically. Counting a hundred thousand volumes takes milliseconds.
async fn count(context: &Context) {
    let gauge = |gauge: &Gauge, count: usize| {
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    loop {
        gauge(
            &context.metrics.claims_waiting,
            context.claims.count_waiting(),
        );
        gauge(&context.metrics.nodes_silent, context.nodes.count_silent());
        let (states, failing) = context.index.count();
        for (state, count) in states {
            gauge(&context.metrics.volumes(state.name()), count);
        }
        gauge(&context.metrics.volumes_failing, failing);
        let oldest = context.expansions.oldest().unwrap_or_default();
        let oldest = usize::try_from(oldest.as_secs()).unwrap_or(usize::MAX);
        gauge(&context.metrics.growth_oldest, oldest);
        tokio::time::sleep(COUNTED).await;
    }
}
