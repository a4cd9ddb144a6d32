//! A leader that is killed while it works, beside another replica and with the webhooks on.

use super::{NAMESPACE, PREFIX, Story};
use crate::claims::{claim, delete_claim, wait_bound};
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A claim that is asked for more, and never gets it: a dry run asks the webhooks all the same.
const ASKED: &str = "asked";

/// The claims that are made and grown.
const CLAIMS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

/// Time in which another leader has done what the killed one had begun: the lease lasts for 30 s.
const BOUND: Duration = Duration::from_secs(90);

/// Maximum time of a request: two webhooks with a timeout of 3 s each, and kubectl itself.
const ANSWERED: Duration = Duration::from_secs(15);

const GROWN: u64 = 352 << 20;

impl Story {
    /// Kills leaders while they make claims and while they grow them. Nobody else notices.
    pub(super) fn lose_leaders(&self) {
        self.0.apply(&[claim(ASKED, "at-once", 320)]);
        wait_bound(&self.0, ASKED);
        let asks = AtomicBool::new(true);
        thread::scope(|scope| {
            let asking = scope.spawn(|| self.ask_while(&asks));
            let ends = Ends(&asks);
            self.lose_two();
            drop(ends);
            let (requests, slowest) = asking.join().unwrap();
            println!("{requests} requests for growth, the slowest took {slowest:?}");
            assert!(requests > 20, "{requests} requests");
            assert!(slowest < ANSWERED, "a request took {slowest:?}");
        });
        for claim in [&CLAIMS[..], &[ASKED]].concat() {
            delete_claim(&self.0, claim);
        }
        self.wait_volumes(1);
        let deployment = format!("deployment/{PREFIX}-controller");
        let deployment = ["rollout", "status", &deployment];
        let all = ["--namespace", NAMESPACE, "--timeout=150s"];
        self.lab().kubectl(&[&deployment[..], &all].concat());
    }

    fn lose_two(&self) {
        let before = self.number_of("nodevolumes");
        self.lose_leader(
            "claims to be bound",
            |name| self.0.apply(&[claim(name, "at-once", 320)]),
            || self.number_of("nodevolumes") > before,
            |name| self.0.claim("default", name)["status"]["phase"] == "Bound",
        );
        self.wait_volumes(before + CLAIMS.len());
        let size = |name: &str, part: &str| {
            let volume = self.0.claim("default", name)["spec"]["volumeName"].clone();
            let volume = volume.as_str().unwrap();
            self.0.get("default", "nodevolume", volume)[part]["size"].clone()
        };
        self.lose_leader(
            "storage to grow",
            |name| self.0.ask_for(name, 352),
            || CLAIMS.iter().any(|name| size(name, "spec") == GROWN),
            |name| size(name, "status") == GROWN,
        );
        assert_eq!(self.assets().len(), before + CLAIMS.len());
    }

    /// Kills the leader, and removes its pod, when it has ordered something for the first claims, and before the node
    /// has answered. Asks for the same for the others when nobody leads. Waits until another leader has done all.
    fn lose_leader(
        &self,
        what: &str,
        ask: impl Fn(&str),
        is_ordered: impl Fn() -> bool,
        is_done: impl Fn(&str) -> bool,
    ) {
        let leader = self.leader();
        let (first, others) = CLAIMS.split_at(CLAIMS.len() / 2);
        self.signal("STOP", "agent");
        first.iter().for_each(|name| ask(name));
        self.0.eventually("something to be ordered", is_ordered);
        let killed = Instant::now();
        let name = format!("POD_NAME={leader}");
        // Otherwise it would hear of its pod's end, or kubelet would start it again at once.
        self.signal("STOP", &name);
        let pod = ["delete", "pod", &leader, "--namespace", NAMESPACE];
        let now = ["--force", "--grace-period=0", "--wait=false"];
        self.lab().kubectl(&[&pod[..], &now].concat());
        self.signal("KILL", &name);
        others.iter().for_each(|name| ask(name));
        assert!(!CLAIMS.iter().any(|name| is_done(name)), "{what} too early");
        self.signal("CONT", "agent");
        self.0
            .eventually(what, || CLAIMS.iter().all(|name| is_done(name)));
        let took = killed.elapsed();
        println!("{what} took {took:?} after the leader's end");
        assert!(took < BOUND, "{what}: it took {took:?}");
        assert_ne!(self.leader(), leader);
    }

    /// Sends a signal to the program that has this argument or variable.
    fn signal(&self, signal: &str, word: &str) {
        let script = r#"for process in /proc/[0-9]*; do
            words=$(cat $process/cmdline $process/environ 2>/dev/null | tr '\0' '\n')
            case "$words" in /flexvol-controller*) ;; *) continue ;; esac
            echo "$words" | grep -qx "$1" && kill -s "$0" "${process#/proc/}" && echo done
        done; true"#;
        let done = self.lab().run("sh", &["-c", script, signal, word]);
        assert_eq!(done.trim(), "done", "{signal} {word}");
    }

    /// Asks for growth, again and again. Returns how often, and how long the slowest answer took. Each has to be
    /// accepted.
    fn ask_while(&self, asks: &AtomicBool) -> (usize, Duration) {
        let (mut requests, mut slowest) = (0, Duration::ZERO);
        while asks.load(Ordering::Relaxed) {
            let storage = format!("{}Mi", 321 + requests % 31);
            let more: Value = json!({"spec": {"resources": {"requests": {"storage": storage}}}});
            let begun = Instant::now();
            let patch = ["patch", "pvc", ASKED, "--dry-run=server", "--patch"];
            self.lab()
                .kubectl(&[&patch[..], &[&more.to_string()]].concat());
            slowest = slowest.max(begun.elapsed());
            requests += 1;
            thread::sleep(Duration::from_millis(100));
        }
        (requests, slowest)
    }
}

/// Ends the requests, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
