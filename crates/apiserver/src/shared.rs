//! State shared by the server, its watches, and Kubernetes' other controllers.

use crate::{Refused, Store, faults::Requests};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::watch::{Receiver, Sender};

#[derive(Debug)]
pub(crate) struct Shared {
    pub store: Mutex<Store>,
    pub requests: Mutex<Requests>,
    pub cuts: Sender<u64>,
    pub held: Sender<Option<String>>,
    pub refuses: Mutex<BTreeMap<String, Refused>>,
    pub delays: Mutex<BTreeMap<String, Duration>>,
}

impl Shared {
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cuts(&self) -> Receiver<u64> {
        self.cuts.subscribe()
    }

    pub fn refuses(&self) -> MutexGuard<'_, BTreeMap<String, Refused>> {
        self.refuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn delays(&self) -> MutexGuard<'_, BTreeMap<String, Duration>> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cut_watches(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}
