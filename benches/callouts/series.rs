//! Measured values of one program, in the order of the runs.

use std::ops::Add;

/// Values of all runs.
#[derive(Clone, Debug, Default)]
pub struct Series(pub Vec<f64>);

/// A ratio, and how far it is from itself in other runs of the same measurement.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    pub value: f64,
    pub noise: f64,
}

impl Series {
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    pub fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The ratio of the medians. Its noise is the difference between those of the even and of the odd runs.
    pub fn ratio_to(&self, other: &Series) -> Ratio {
        let of = |first| self.every_second(first).median() / other.every_second(first).median();
        Ratio {
            value: self.median() / other.median(),
            noise: f64::abs(of(0) - of(1)),
        }
    }

    fn every_second(&self, first: usize) -> Series {
        Series(self.0.iter().copied().skip(first).step_by(2).collect())
    }

    /// The median of values that are ratios themselves. Its noise is their median distance from it.
    pub fn as_ratio(&self) -> Ratio {
        let value = self.median();
        let distances = self.0.iter().map(|ratio| f64::abs(ratio - value));
        Ratio {
            value,
            noise: Series(distances.collect()).median(),
        }
    }
}

/// Two programs that run one after the other.
impl Add for &Series {
    type Output = Series;

    fn add(self, other: &Series) -> Series {
        let pairs = self.0.iter().zip(&other.0);
        Series(pairs.map(|(one, other)| one + other).collect())
    }
}
