//! Size of a test run: its share of the tests, and the time boxes of tests.

use std::{
    env, fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The run's share of a layer's tests, and the time box of tests with more points than a run can try.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Time box of one such test.
    pub each: Duration,
    /// Seed of the order in which points are tried.
    pub seed: u64,
    /// Text of the seed, as given on the command line.
    pub name: String,
    /// Whether to try every point, without a time box.
    pub every_point: bool,
    /// The tests to run.
    pub share: Share,
    /// The points to try of each disturbed callout.
    pub points: Share,
}

/// One of several shares, which together are everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of this share, from 1.
    pub one: usize,
    /// Number of shares.
    pub of: usize,
}

impl Share {
    const WHOLE: Share = Share { one: 1, of: 1 };

    fn parse(text: &str) -> Option<Share> {
        let (one, of) = text.split_once('/')?;
        let share = Share {
            one: one.parse().ok()?,
            of: of.parse().ok()?,
        };
        (1..=share.of).contains(&share.one).then_some(share)
    }

    /// Returns every `of`th item.
    pub fn take<T>(self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        items.into_iter().skip(self.one - 1).step_by(self.of)
    }

    /// Whether an item belongs to this share, wherever it is in a list: lists of runs differ.
    pub fn has(self, item: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        item.hash(&mut hasher);
        hasher.finish() % self.of as u64 == self.one as u64 - 1
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.one, self.of)
    }
}

/// Prints the progress of a run with `--every-point`, at most once a minute.
#[derive(Debug)]
pub struct Progress(Instant);

impl Default for Progress {
    fn default() -> Self {
        Progress(Instant::now())
    }
}

impl Progress {
    const EACH: Duration = Duration::from_secs(60);

    /// Reports that `done` of `all` points are done. Prints nothing in a run with time boxes.
    pub fn print(&mut self, name: &str, done: u64, all: usize) {
        if budget().every_point && self.0.elapsed() >= Self::EACH {
            println!("{name}: {done} of {all} so far, seed {}", budget().name);
            self.0 = Instant::now();
        }
    }
}

static BUDGET: OnceLock<Budget> = OnceLock::new();

/// Returns the budget of this run, from its command line.
#[must_use]
pub fn budget() -> &'static Budget {
    BUDGET.get_or_init(|| Budget::new(&[]).0)
}

impl Budget {
    /// Removes `--seconds N`, `--seed S`, `--every-point`, `--share K/N` and `--points K/N` from the arguments. A seed
    /// is any text, such as a commit.
    fn new(arguments: &[String]) -> (Budget, Vec<String>) {
        let mut budget = Budget {
            each: Duration::from_secs(8),
            seed: seed("1"),
            name: "1".to_owned(),
            every_point: false,
            share: Share::WHOLE,
            points: Share::WHOLE,
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
                "--share" | "--points" => {
                    let share = Share::parse(&value("which one, of how many?"))
                        .unwrap_or_else(|| panic!("{argument} takes 1/2 or 2/2, for example"));
                    match argument.as_str() {
                        "--share" => budget.share = share,
                        _ => budget.points = share,
                    }
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

    /// Whether a part of a test may try another point; it has one `part`th of the test's time.
    #[must_use]
    pub fn allows_part(&self, started: Instant, part: u32) -> bool {
        self.every_point || started.elapsed() < self.each / part
    }
}

/// Takes the budget from the process' command line and returns the remaining arguments, for the test runner.
pub(crate) fn take_arguments() -> Vec<String> {
    let (budget, rest) = Budget::new(&env::args().collect::<Vec<_>>());
    BUDGET.get_or_init(|| budget);
    rest
}

/// Converts a text to a seed: a number stands for itself, as in reports; other text is hashed (FNV-1a).
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
            "--points",
            "1/4",
            "x",
        ];
        let (budget, rest) = Budget::new(&line.map(str::to_owned));
        assert_eq!(rest, ["node", "--exact", "x"]);
        assert_eq!(budget.each, Duration::from_secs(3));
        assert!(budget.every_point);
        assert_eq!(budget.share, Share { one: 2, of: 3 });
        assert_eq!(budget.points, Share { one: 1, of: 4 });
        assert!(budget.share.take(0..8).eq([1, 4, 7]));
        for item in 0..8 {
            let has = |one| Share { one, of: 3 }.has(&item);
            assert_eq!((1..=3).filter(|one| has(*one)).count(), 1);
        }
        assert_eq!(budget.seed, seed("abc"));
        assert_ne!(budget.seed, seed("abd"));
        assert_eq!(seed(&budget.seed.to_string()), budget.seed);
    }
}
