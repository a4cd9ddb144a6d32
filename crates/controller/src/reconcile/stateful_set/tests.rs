use super::*;
use crate::support::metrics::Metrics;
use http::{Request, Response};
use kube::client::Body;
use std::convert::Infallible;

#[tokio::test(start_paused = true)]
async fn a_set_that_is_edited_rests_from_the_end_of_its_turn_however_long_that_took() {
    let nobody = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
    let client = Client::new(tower::service_fn(nobody), "default");
    let events = Arc::new(EventRecorder::start(client.clone(), "test"));
    let ours = ServedDrivers::from(["a/b"]);
    let sets = Reconciler::new(client, ours, events, &Metrics::default());
    let edited = || {
        if let Some(due) = sets.due("ns/db") {
            sets.queue.push_by("ns", "ns/db", due);
        }
    };
    edited();
    assert_eq!(sets.queue.next().await, "ns/db", "at once");
    sets.begin_turn("ns/db");
    tokio::time::sleep(2 * SOON).await;
    edited();
    tokio::time::sleep(2 * SOON).await;
    let ended = Instant::now();
    sets.end_turn("ns/db");
    sets.queue.done("ns/db", Outcome::Done);
    edited();
    assert_eq!(sets.queue.next().await, "ns/db");
    assert_eq!(ended.elapsed().as_secs(), SOON.as_secs());
    // Nothing happened during this turn.
    sets.begin_turn("ns/db");
    sets.end_turn("ns/db");
    sets.queue.done("ns/db", Outcome::Done);
    let next = tokio::time::timeout(4 * SOON, sets.queue.next()).await;
    assert!(next.is_err());
}
