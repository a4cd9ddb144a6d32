//! Runs the life of a claim once for each moment at which a fault may happen.

use crate::life;
use flexvol_apiserver::{Fault, Plan};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

/// Number of concurrent lives of each kind of fault. They mostly wait.
const AT_ONCE: usize = 5;

/// Runs lives until every request has failed in every way.
pub fn failed() {
    let kinds: Vec<_> = Fault::ALL.map(|fault| (fault, Rounds::default())).into();
    thread::scope(|scope| {
        for (fault, rounds) in &kinds {
            for _ in 0..AT_ONCE {
                scope.spawn(|| rounds.live(*fault));
            }
        }
    });
    for (fault, rounds) in &kinds {
        let met = rounds.met.load(Ordering::Relaxed);
        println!("flexvol-controller: {fault:?} at each of {met} requests");
        // A life has at least this number.
        assert!(met >= 12, "{fault:?} met {met} requests");
    }
}

/// Runs lives that are killed at each write. `fewest` is the least number of the program's writes in a life.
pub fn killed(program: &'static str, fewest: u64) {
    let rounds = ["before", "after"].map(|when| (when, Rounds::default()));
    thread::scope(|scope| {
        for (when, rounds) in &rounds {
            for _ in 0..AT_ONCE {
                scope.spawn(move || {
                    rounds.each(when, |at| {
                        life::live_killed(program, format!("{when}:{at}"))
                    })
                });
            }
        }
    });
    for (when, rounds) in &rounds {
        let met = rounds.met.load(Ordering::Relaxed);
        println!("flexvol-controller: {program} killed {when} each of {met} writes");
        assert!(met >= fewest, "{program} was killed {when} {met} writes");
    }
}

#[derive(Default)]
struct Rounds {
    /// Number of the request at which the next life fails.
    next: AtomicU64,
    met: AtomicU64,
    over: AtomicBool,
}

impl Rounds {
    /// Runs lives until one has no request left to fail.
    fn live(&self, fault: Fault) {
        self.each(&format!("{fault:?} at request"), |at| {
            life::live(Some(Plan { fault, at }))
        });
    }

    /// Runs lives until one reports that it has no such moment.
    fn each(&self, what: &str, live: impl Fn(u64) -> Result<bool, String>) {
        while !self.over.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed) + 1;
            match live(at) {
                Ok(true) => {
                    self.met.fetch_add(1, Ordering::Relaxed);
                }
                Ok(false) => self.over.store(true, Ordering::Relaxed),
                Err(why) => {
                    self.over.store(true, Ordering::Relaxed);
                    panic!("{what} {at}: {why}");
                }
            }
        }
    }
}
