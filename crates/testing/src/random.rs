//! Reproducible random choices.

/// A generator of choices (SplitMix64): the same seed makes the same choices.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which must be at least 1.
    ///
    /// # Panics
    /// When `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("64 bits");
        usize::try_from(self.bits() % limit).expect("below a usize")
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
