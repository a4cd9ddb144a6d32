//! Reconcilers: each brings one kind of object to its desired state.

pub(crate) mod node_gc;
pub(crate) mod stateful_set;
pub mod storage_capacity;
pub mod volume;

use std::sync::Arc;
use volume::Context;

/// Runs the leader's reconcilers for ever, except [`storage_capacity`], which has a client of its own.
pub async fn run(context: Arc<Context>) {
    tokio::spawn(stateful_set::run(
        context.client.clone(),
        context.ours.clone(),
        Arc::clone(&context.events),
        &context.metrics,
    ));
    let this = Arc::clone(&context);
    tokio::spawn(async move {
        this.wait_until_ready().await;
        node_gc::run(&this.client, &this.nodes, &this.index).await;
    });
    volume::run(context).await;
}
