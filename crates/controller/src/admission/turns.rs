//! Turns of those who ask for reviews.
//!
//! Clients are unauthenticated, and only some requests are reviewed at the same time. Hosts take turns, so a host that
//! asks without end delays the API server by one review for each turn. The API server asks for all tenants from one
//! address, so namespaces take the turns of a host, and one namespace has at most half of all turns.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Who asks: a host, about an object of this namespace. Only an API server's word about the namespace is to be
/// believed, and whoever says another has no more turns than other hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asker {
    pub host: IpAddr,
    pub namespace: String,
}

/// A limited number of concurrent turns.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Mutex<State>>);

type Waiting = VecDeque<oneshot::Sender<Turn>>;

#[derive(Debug)]
struct State {
    concurrent: usize,
    /// Who has each turn that is taken.
    taken: Vec<Asker>,
    /// The waiting requests of each namespace of each host, with the next host and its next namespace first.
    waiting: VecDeque<(IpAddr, VecDeque<(String, Waiting)>)>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    asker: Asker,
    turns: Turns,
}

impl Turns {
    pub fn new(concurrent: usize) -> Self {
        Turns(Arc::new(Mutex::new(State {
            concurrent,
            taken: Vec::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a turn.
    pub async fn acquire(&self, asker: &Asker) -> Turn {
        loop {
            let turn = {
                let mut state = self.state();
                if state.may_take(asker) {
                    state.taken.push(asker.clone());
                    return self.turn(asker.clone());
                }
                let (sender, turn) = oneshot::channel();
                state.wait(asker, sender);
                turn
            };
            // A sender is dropped only if all turns are.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    fn turn(&self, asker: Asker) -> Turn {
        let turns = self.clone();
        Turn { asker, turns }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a turn is free for this asker.
    fn may_take(&self, asker: &Asker) -> bool {
        let own = self.taken.iter().filter(|of| *of == asker).count();
        self.taken.len() < self.concurrent && own < self.concurrent.div_ceil(2)
    }

    fn wait(&mut self, asker: &Asker, sender: oneshot::Sender<Turn>) {
        self.forget_given_up();
        let Asker { host, namespace } = asker;
        let of_host = self.waiting.iter_mut().find(|(of, _)| of == host);
        let requests = VecDeque::from([sender]);
        let Some((_, namespaces)) = of_host else {
            let namespaces = VecDeque::from([(namespace.clone(), requests)]);
            self.waiting.push_back((*host, namespaces));
            return;
        };
        match namespaces.iter_mut().find(|(of, _)| of == namespace) {
            Some((_, earlier)) => earlier.extend(requests),
            None => namespaces.push_back((namespace.clone(), requests)),
        }
    }

    /// Removes requests that took too long.
    fn forget_given_up(&mut self) {
        self.waiting.retain_mut(|(_, namespaces)| {
            namespaces.retain_mut(|(_, requests)| {
                requests.retain(|request| !request.is_closed());
                !requests.is_empty()
            });
            !namespaces.is_empty()
        });
    }

    /// Removes the request whose turn it is, and takes the turn for it.
    fn next(&mut self) -> Option<(Asker, oneshot::Sender<Turn>)> {
        self.forget_given_up();
        let mut hosts = self.waiting.iter().enumerate();
        let (host_at, namespace_at) = hosts.find_map(|(at, (host, namespaces))| {
            let next = namespaces.iter().position(|(namespace, _)| {
                self.may_take(&Asker {
                    host: *host,
                    namespace: namespace.clone(),
                })
            });
            Some((at, next?))
        })?;
        let (host, mut namespaces) = self.waiting.remove(host_at)?;
        let (namespace, mut requests) = namespaces.remove(namespace_at)?;
        let next = requests.pop_front()?;
        if !requests.is_empty() {
            namespaces.push_back((namespace.clone(), requests));
        }
        if !namespaces.is_empty() {
            self.waiting.push_back((host, namespaces));
        }
        let asker = Asker { host, namespace };
        self.taken.push(asker.clone());
        Some((asker, next))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut state = self.turns.state();
            if let Some(at) = state.taken.iter().position(|of| *of == self.asker) {
                state.taken.swap_remove(at);
            }
            state.next()
        };
        if let Some((asker, next)) = next {
            // If the request has given up meanwhile, the turn is dropped again, and so passed on.
            drop(next.send(self.turns.turn(asker)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{sync::mpsc, task::yield_now, time::timeout};

    fn asker((host, namespace): (u8, &str)) -> Asker {
        Asker {
            host: [10, 0, 0, host].into(),
            namespace: namespace.to_owned(),
        }
    }

    /// Returns the order in which these have a turn, if there is only one and another has it first.
    async fn order(turns: &Turns, askers: &[(u8, &'static str)]) -> Vec<(u8, &'static str)> {
        let first = turns.acquire(&asker((1, ""))).await;
        let (sender, mut order) = mpsc::unbounded_channel();
        for one in askers.iter().copied() {
            let (turns, sender) = (turns.clone(), sender.clone());
            tokio::spawn(async move {
                let _turn = turns.acquire(&asker(one)).await;
                sender.send(one).unwrap();
                yield_now().await;
            });
            yield_now().await;
        }
        let given_up = timeout(Duration::from_millis(1), turns.acquire(&asker((4, "")))).await;
        assert!(given_up.is_err());
        drop((first, sender));
        let mut seen = Vec::new();
        while let Some(one) = order.recv().await {
            seen.push(one);
        }
        seen
    }

    #[tokio::test]
    async fn hosts_take_turns_and_who_has_given_up_has_none() {
        let turns = Turns::new(1);
        let asked = [1, 1, 1, 2, 3, 2].map(|host| (host, "a"));
        let seen = order(&turns, &asked).await;
        assert_eq!(seen, [1, 2, 3, 1, 2, 1].map(|host| (host, "a")));
        let again = turns.acquire(&asker((4, ""))).await;
        assert_eq!(turns.state().taken.len(), 1);
        drop(again);
        assert!(turns.state().taken.is_empty() && turns.state().waiting.is_empty());
    }

    #[tokio::test]
    async fn namespaces_take_the_turns_of_their_host_and_not_those_of_others() {
        let many = [(1, "a"), (1, "a"), (1, "a"), (1, "b"), (1, "c"), (2, "a")];
        let seen = order(&Turns::new(1), &many).await;
        assert_eq!(
            seen,
            [(1, "a"), (2, "a"), (1, "b"), (1, "c"), (1, "a"), (1, "a")]
        );
    }

    #[tokio::test]
    async fn a_namespace_has_half_of_the_turns_however_long_its_reviews_take() {
        let turns = Turns::new(4);
        let of = async |who| timeout(Duration::from_millis(1), turns.acquire(&asker(who))).await;
        let slow = [of((1, "a")).await.unwrap(), of((1, "a")).await.unwrap()];
        assert!(of((1, "a")).await.is_err(), "it has its half");
        let others = [of((1, "b")).await.unwrap(), of((1, "c")).await.unwrap()];
        assert!(of((1, "d")).await.is_err(), "there is none left");
        drop(others);
        assert!(of((1, "a")).await.is_err(), "what is free is not for it");
        drop(slow);
        assert!(of((1, "a")).await.is_ok());
        assert!(turns.state().taken.is_empty());
    }
}
