//! Lives of a claim, one for each moment at which something may happen to it.

use crate::life;
use flexvol_apiserver::{Fault, Plan};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

/// How many lives of each kind of fault are lived at once: they mostly wait.
const AT_ONCE: usize = 5;

/// Every request fails, in every way.
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
        // A life has no fewer.
        assert!(met >= 12, "{fault:?} met {met} requests");
    }
}

/// A life has no fewer writes of the program.
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
    /// At which request the next one fails.
    next: AtomicU64,
    met: AtomicU64,
    over: AtomicBool,
}

impl Rounds {
    /// Until a life has no request left to fail at.
    fn live(&self, fault: Fault) {
        self.each(&format!("{fault:?} at request"), |at| {
            life::live(Some(Plan { fault, at }))
        });
    }

    /// Until a life says that there is no such moment in it.
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
