//! How much a run does: which share of its tests, and how much of a time-boxed one.

use std::{
    env,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The share of a layer's tests, and the time box of each test that has more points than anybody waits for.
#[derive(Clone, Debug)]
pub struct Budget {
    /// What one such test may take.
    pub each: Duration,
    /// Which points are tried first.
    pub seed: u64,
    /// The text the seed was made from, as the command line takes it.
    pub name: String,
    /// No time box: every point.
    pub every_point: bool,
    /// Which share of the tests, and of how many.
    pub share: (usize, usize),
}

/// Says how far a run of every point has come, at most once a minute.
#[derive(Debug)]
pub struct Progress(Instant);

impl Default for Progress {
    fn default() -> Self {
        Progress(Instant::now())
    }
}

impl Progress {
    const EACH: Duration = Duration::from_secs(60);

    /// So many points of all are done. Says nothing in a run that has a time box.
    pub fn tell(&mut self, name: &str, done: u64, all: usize) {
        if budget().every_point && self.0.elapsed() >= Self::EACH {
            println!("{name}: {done} of {all} so far, seed {}", budget().name);
            self.0 = Instant::now();
        }
    }
}

static BUDGET: OnceLock<Budget> = OnceLock::new();

/// The budget of this run, as its command line gave it.
#[must_use]
pub fn budget() -> &'static Budget {
    BUDGET.get_or_init(|| Budget::new(&[]).0)
}

impl Budget {
    /// Splits `--seconds N`, `--seed S`, `--every-point` and `--share K/N` off the arguments. A seed is any text, such
    /// as a commit.
    fn new(arguments: &[String]) -> (Budget, Vec<String>) {
        let mut budget = Budget {
            each: Duration::from_secs(8),
            seed: seed("1"),
            name: "1".to_owned(),
            every_point: false,
            share: (1, 1),
        };
        let mut rest = Vec::new();
        let mut arguments = arguments.iter().cloned();
        while let Some(argument) = arguments.next() {
            let mut value = |what| {
                arguments
                    .next()
                    .unwrap_or_else(|| panic!("{argument}: {what}"))
            };
            match argument.as_str() {
                "--every-point" => budget.every_point = true,
                "--seed" => {
                    budget.name = value("which seed?");
                    budget.seed = seed(&budget.name);
                }
                "--share" => {
                    let value = value("which one, of how many?");
                    let share = value
                        .split_once('/')
                        .and_then(|(one, of)| Some((one.parse().ok()?, of.parse().ok()?)))
                        .filter(|(one, of)| (1..=*of).contains(one));
                    budget.share = share.expect("--share takes 1/2 or 2/2, for example");
                }
                "--seconds" => {
                    let seconds = value("how many?")
                        .parse()
                        .expect("--seconds takes a number");
                    budget.each = Duration::from_secs(seconds);
                }
                _ => rest.push(argument),
            }
        }
        (budget, rest)
    }

    /// Whether a test that began at `started` may try another point.
    #[must_use]
    pub fn allows(&self, started: Instant) -> bool {
        self.allows_part(started, 1)
    }

    /// The same of a part of the test that may take one `part`th of its time.
    #[must_use]
    pub fn allows_part(&self, started: Instant, part: u32) -> bool {
        self.every_point || started.elapsed() < self.each / part
    }
}

/// Takes the budget from this process's command line; what is left is for the test runner.
pub(crate) fn take_arguments() -> Vec<String> {
    let (budget, rest) = Budget::new(&env::args().collect::<Vec<_>>());
    BUDGET.get_or_init(|| budget);
    rest
}

/// A number is the seed, as a report names it. Any other text becomes one, the same text the same
/// one (FNV-1a).
fn seed(text: &str) -> u64 {
    if let Ok(number) = text.parse() {
        return number;
    }
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_split_off_the_arguments() {
        let line = [
            "node",
            "--seconds",
            "3",
            "--exact",
            "--seed",
            "abc",
            "--every-point",
            "--share",
            "2/3",
            "x",
        ];
        let (budget, rest) = Budget::new(&line.map(str::to_owned));
        assert_eq!(rest, ["node", "--exact", "x"]);
        assert_eq!(budget.each, Duration::from_secs(3));
        assert!(budget.every_point);
        assert_eq!(budget.share, (2, 3));
        assert_eq!(budget.seed, seed("abc"));
        assert_ne!(budget.seed, seed("abd"));
        assert_eq!(seed(&budget.seed.to_string()), budget.seed);
    }
}
