//! Byte budgets of objects.

use super::{Keep, Prune, TooLarge};

/// The budget of one object.
pub(super) struct Budget {
    pub most: usize,
    left: usize,
    /// Number of enclosing open values.
    depth: usize,
    /// Whether a truncated object is an error.
    whole: bool,
    /// Whether something was dropped.
    is_truncated: bool,
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
            is_truncated: false,
        });
        Some(keep)
    }

    /// Takes bytes from the budget. Returns whether they may be kept.
    pub(super) fn pay(&mut self, bytes: usize) -> bool {
        match &mut self.budget {
            None => true,
            Some(budget) if budget.left >= bytes => {
                budget.left -= bytes;
                true
            }
            Some(_) => {
                self.mark_truncated();
                false
            }
        }
    }

    /// Records that a needed value is dropped.
    pub(super) fn mark_truncated(&mut self) {
        if let Some(budget) = &mut self.budget {
            budget.is_truncated = true;
            if budget.whole {
                self.failed = Some(TooLarge(budget.most));
            }
        }
    }

    /// Ends a value. Returns whether a part of it was dropped, if it has a budget of its own.
    pub(super) fn ended(&mut self) -> bool {
        let depth = self.open.len();
        let own = self.budget.take_if(|budget| budget.depth == depth);
        own.is_some_and(|budget| budget.is_truncated)
    }
}
