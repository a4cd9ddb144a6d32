//! The loop of every reconciler: workers take keys from its work queue and reconcile their objects.

use super::work_queue::{Outcome, Queue};
use crate::{
    client::{error_message, is_conflict},
    support::log,
};
use anyhow::Result;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

/// Pause after a conflict with another writer, whose change is read then.
const SOON: Duration = Duration::from_millis(100);

/// A worker that takes longer for one key may free its slot for another worker.
const LONG: Duration = Duration::from_secs(60);

/// The workers of one reconciler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workers {
    /// The kind of object that they reconcile, for logs.
    pub kind: &'static str,
    /// Number of keys that are processed at a time.
    pub count: usize,
    /// Maximum number of additional workers, while others take longer than [`LONG`].
    pub long: usize,
}

impl Workers {
    /// Reconciles for ever.
    pub async fn run<F>(self, queue: Arc<Queue>, reconcile: impl Fn(String) -> F)
    where
        F: Future<Output = Result<Outcome>> + Send + 'static,
    {
        let workers = Arc::new(Semaphore::new(self.count));
        let long = Arc::new(Semaphore::new(self.long));
        // The semaphore is never closed.
        while let Ok(worker) = Arc::clone(&workers).acquire_owned().await {
            let name = queue.next().await;
            let working = reconcile(name.clone());
            let (queue, long) = (Arc::clone(&queue), Arc::clone(&long));
            tokio::spawn(async move {
                let mut working = pin!(working);
                let done = match timeout(LONG, &mut working).await {
                    Ok(done) => done,
                    Err(_) => tokio::select! {
                        done = &mut working => done,
                        _place = long.acquire() => {
                            drop(worker);
                            working.await
                        }
                    },
                };
                queue.done(&name, self.outcome(&name, done));
            });
        }
    }

    fn outcome(self, name: &str, done: Result<Outcome>) -> Outcome {
        match done {
            Ok(outcome) => outcome,
            Err(error) if is_conflict(&error) => Outcome::RequeueAfter(SOON),
            Err(error) => {
                let error = error_message(&error);
                log::warn("cannot reconcile", &[(self.kind, name), ("error", &error)]);
                Outcome::Failed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{runtime::backoff::Backoff, support::metrics::Metrics};
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_keep_others_waiting_for_a_minute() {
        let queue = Arc::new(Queue::new(
            Backoff::FAILURES,
            Metrics::default().of_queue("volume"),
        ));
        let begun = Arc::new(AtomicUsize::new(0));
        let reconcile = {
            let begun = Arc::clone(&begun);
            move |name: String| {
                begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    if name.starts_with("hangs") {
                        pending::<()>().await;
                    }
                    Ok(Outcome::Done)
                }
            }
        };
        let workers = Workers {
            kind: "volume",
            count: 4,
            long: 12,
        };
        tokio::spawn(workers.run(Arc::clone(&queue), reconcile));
        let count = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            begun.load(Ordering::Relaxed)
        };
        for number in 0..40 {
            queue.push("", &format!("hangs {number}"));
        }
        assert_eq!(count(1).await, 4);
        queue.push("another", "ends");
        assert_eq!(count(58).await, 4);
        assert_eq!(count(2).await, 4 + 1 + 4, "others have their turn");
        // The number is limited.
        assert_eq!(count(3600).await, 1 + 4 + 12);
    }
}
