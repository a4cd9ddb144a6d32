//! How many drivers run at a time, so that those that hang keep no others from their work.

use crate::support::work_queue::{Outcome, Queue};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

/// How many orders are served at a time.
const WORKERS: usize = 4;

/// Who serves one for longer lets another worker begin: most calls take seconds.
const LONG: Duration = Duration::from_secs(60);

/// How many are served for so long, at most, beside the others: each is a process of a driver that may hang.
const LONG_ONES: usize = 12;

/// Serves orders for ever.
pub(super) async fn work<F>(queue: Arc<Queue>, serve: impl Fn(String) -> F)
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let workers = Arc::new(Semaphore::new(WORKERS));
    let long_ones = Arc::new(Semaphore::new(LONG_ONES));
    // Nobody closes them.
    while let Ok(worker) = Arc::clone(&workers).acquire_owned().await {
        let name = queue.next().await;
        let serving = serve(name.clone());
        let (queue, long_ones) = (Arc::clone(&queue), Arc::clone(&long_ones));
        tokio::spawn(async move {
            let mut serving = pin!(serving);
            let outcome = match timeout(LONG, &mut serving).await {
                Ok(outcome) => outcome,
                Err(_) => tokio::select! {
                    outcome = &mut serving => outcome,
                    _place = long_ones.acquire() => {
                        drop(worker);
                        serving.await
                    }
                },
            };
            queue.done(&name, outcome);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_keep_others_waiting_for_a_minute() {
        let queue = Arc::new(Queue::new(LONG));
        let begun = Arc::new(AtomicUsize::new(0));
        let serve = {
            let begun = Arc::clone(&begun);
            move |name: String| {
                begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    if name.starts_with("hangs") {
                        pending::<()>().await;
                    }
                    Outcome::Settled
                }
            }
        };
        tokio::spawn(work(Arc::clone(&queue), serve));
        let count = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            begun.load(Ordering::Relaxed)
        };
        for number in 0..40 {
            queue.push("", &format!("hangs {number}"));
        }
        assert_eq!(count(1).await, WORKERS);
        queue.push("another", "ends");
        assert_eq!(count(58).await, WORKERS);
        assert_eq!(
            count(2).await,
            WORKERS + 1 + WORKERS,
            "others have their turn"
        );
        // There is an end to it.
        assert_eq!(count(3600).await, 1 + WORKERS + LONG_ONES);
    }
}
