//! The lines of the bench.

use std::cell::Cell;

/// What is printed, and how many budgets are missed in it.
pub struct Table {
    /// Without times, which other work on the machine moves.
    counts_alone: bool,
    missed: Cell<u32>,
}

impl Table {
    /// One with times, or without.
    pub fn new(counts_alone: bool) -> Self {
        Table {
            counts_alone,
            missed: Cell::new(0),
        }
    }

    /// Whether times are left away.
    pub fn counts_alone(&self) -> bool {
        self.counts_alone
    }

    /// How many budgets are missed.
    pub fn missed(&self) -> u32 {
        self.missed.get()
    }

    /// One line: two times and their ratio.
    pub fn row(&self, what: &str, driver: f64, other: f64, budget: Option<f64>) {
        self.row_with_ratio(what, driver, other, driver / other, budget);
    }

    /// The same with a ratio that was found otherwise.
    pub fn row_with_ratio(
        &self,
        what: &str,
        driver: f64,
        other: f64,
        ratio: f64,
        budget: Option<f64>,
    ) {
        if !self.counts_alone {
            self.line(what, driver, other, ratio, budget);
        }
    }

    /// One line of what is the same on a busy machine.
    pub fn count(&self, what: &str, driver: f64, other: f64, budget: f64) {
        self.line(what, driver, other, driver / other, Some(budget));
    }

    fn line(&self, what: &str, driver: f64, other: f64, ratio: f64, budget: Option<f64>) {
        let budget = match budget {
            Some(budget) if ratio > budget => {
                self.missed.set(self.missed.get() + 1);
                format!("<= {budget}, missed")
            }
            Some(budget) => format!("<= {budget}"),
            None => String::new(),
        };
        println!("{what:52} {driver:>10.0} {other:>10.0} {ratio:>7.2}  {budget}");
    }
}
