//! The table that the bench prints.

use crate::series::{Ratio, Series};
use std::cell::Cell;

/// Prints lines, and counts exceeded budgets.
pub struct Table {
    /// Without times, which depend on the machine's load.
    counts_alone: bool,
    missed: Cell<u32>,
}

impl Table {
    /// A table with or without times.
    pub fn new(counts_alone: bool) -> Self {
        println!(
            "{:52} {:>10} {:>10} {:>7} {:>6}  budget",
            "CPU unless said otherwise", "driver", "other", "ratio", "noise"
        );
        Table {
            counts_alone,
            missed: Cell::new(0),
        }
    }

    /// Whether times are omitted.
    pub fn counts_alone(&self) -> bool {
        self.counts_alone
    }

    /// Number of exceeded budgets.
    pub fn missed(&self) -> u32 {
        self.missed.get()
    }

    /// Prints a line: the medians of two times, and their ratio.
    pub fn row(&self, what: &str, driver: &Series, other: &Series, budget: Option<f64>) {
        self.row_with_ratio(what, driver, other, driver.ratio_to(other), budget);
    }

    /// Prints a line with a ratio that was computed in another way.
    pub fn row_with_ratio(
        &self,
        what: &str,
        driver: &Series,
        other: &Series,
        ratio: Ratio,
        budget: Option<f64>,
    ) {
        if !self.counts_alone {
            let Ratio { value, noise } = ratio;
            let noise = format!("{noise:.2}");
            self.line(what, driver.median(), other.median(), value, &noise, budget);
        }
    }

    /// Prints a line with a value that does not depend on the machine's load.
    pub fn count(&self, what: &str, driver: f64, other: f64, budget: f64) {
        self.line(what, driver, other, driver / other, "", Some(budget));
    }

    fn line(
        &self,
        what: &str,
        driver: f64,
        other: f64,
        ratio: f64,
        noise: &str,
        budget: Option<f64>,
    ) {
        let budget = match budget {
            Some(budget) if ratio > budget => {
                self.missed.set(self.missed.get() + 1);
                format!("<= {budget}, missed")
            }
            Some(budget) => format!("<= {budget}"),
            None => String::new(),
        };
        println!("{what:52} {driver:>10.0} {other:>10.0} {ratio:>7.2} {noise:>6}  {budget}");
    }
}
