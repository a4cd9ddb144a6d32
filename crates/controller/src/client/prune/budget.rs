//! How many bytes of an object are kept.

use super::{Keep, Prune, TooLarge};

/// How much of an object may be kept.
pub(super) struct Budget {
    pub most: usize,
    left: usize,
    /// How many others are open around it.
    depth: usize,
    /// None of it is of use without the rest.
    whole: bool,
    /// Something was dropped.
    cut: bool,
}

impl Prune {
    pub(super) fn begin_budget(
        &mut self,
        most: usize,
        keep: &'static Keep,
        whole: bool,
    ) -> Option<&'static Keep> {
        self.budget = Some(Budget {
            most,
            left: most,
            depth: self.open.len(),
            whole,
            cut: false,
        });
        Some(keep)
    }

    /// Whether so many bytes more may be kept.
    pub(super) fn pay(&mut self, bytes: usize) -> bool {
        match &mut self.budget {
            None => true,
            Some(budget) if budget.left >= bytes => {
                budget.left -= bytes;
                true
            }
            Some(_) => {
                self.cut();
                false
            }
        }
    }

    /// Something that should be kept is dropped.
    pub(super) fn cut(&mut self) {
        if let Some(budget) = &mut self.budget {
            budget.cut = true;
            if budget.whole {
                self.failed = Some(TooLarge(budget.most));
            }
        }
    }

    /// A value has ended. Says whether something of it was dropped, if it has a budget of its own.
    pub(super) fn ended(&mut self) -> bool {
        let depth = self.open.len();
        let own = self.budget.take_if(|budget| budget.depth == depth);
        own.is_some_and(|budget| budget.cut)
    }
}
