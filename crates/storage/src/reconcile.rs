//! The reconcile loop: observe, decide, do one step, until the goal is reached or refused.

use crate::{
    decide::{Next, Step, decide},
    observed::{Goal, Observed},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

/// The state between steps (the lock, the open device, a hidden mount): the kernel in a driver, a model in the
/// tests of [`decide`].
pub trait World {
    /// Observes the volume in as much detail as `goal` needs.
    ///
    /// # Errors
    /// When something is not certain; nothing is concluded then.
    fn observe(&mut self, goal: &Goal) -> Result<Observed>;

    /// Does one step.
    ///
    /// # Errors
    /// When the step was not completed; repeating it is safe.
    fn act(&mut self, step: &Step) -> Result<()>;
}

/// A goal that was reached, as measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// Whether any step was necessary.
    pub changed: bool,
    /// The last observation.
    pub seen: Observed,
}

impl Reached {
    /// Returns the size of the volume's storage; zero if there is none.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.seen
            .asset
            .as_ref()
            .map_or(Bytes(0), |asset| asset.size)
    }
}

/// More steps than any goal needs from any state. The longest path is known from the exploration in
/// `tests/decide`.
pub(crate) const MAX_STEPS: usize = 24;

/// Brings the world to `goal`.
///
/// # Errors
/// When [`decide`] refuses, or a step or an observation fails.
pub fn reconcile(world: &mut dyn World, goal: &Goal) -> Result<Reached> {
    let (mut changed, mut growth_refused) = (false, false);
    for _ in 0..MAX_STEPS {
        let seen = Observed {
            growth_refused,
            ..world.observe(goal)?
        };
        match decide(&seen, goal) {
            Next::Reached => return Ok(Reached { changed, seen }),
            Next::Refuse(kind, why) => return Err(Error::new(kind, why)),
            Next::Do(step) => {
                flexvol_sdk::step(step.name());
                match world.act(&step) {
                    Ok(()) => changed = true,
                    // A pod waits for its volume, and a smaller volume is better than none.
                    Err(error) if is_refused_growth(&step, &error) && is_mounting(goal) => {
                        log::warn!("mounting without growth: {}", error.report());
                        growth_refused = true;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Err(Error::new(
        ErrorKind::Bug,
        "made no progress towards the state asked for; please report this with the log",
    ))
}

/// Fails if `goal` would be refused now, for callers with something to do before they reconcile.
pub(crate) fn expect_permitted(world: &mut dyn World, goal: &Goal) -> Result<()> {
    match decide(&world.observe(goal)?, goal) {
        Next::Refuse(kind, why) => Err(Error::new(kind, why)),
        Next::Do(_) | Next::Reached => Ok(()),
    }
}

/// Whether a failed growth left the file system unchanged and need not keep a pod waiting. It can be grown in
/// other circumstances (another kernel, another capability, while it is unmounted, in a pool with space), or
/// was not made to get so large, or growing takes too long.
fn is_refused_growth(step: &Step, error: &Error) -> bool {
    *step == Step::GrowFilesystem
        && matches!(
            error.kind(),
            ErrorKind::CapabilityMissing
                | ErrorKind::Conflict
                | ErrorKind::Busy
                | ErrorKind::Exhausted
                | ErrorKind::ToolMissing
                | ErrorKind::SizeNotReached
                | ErrorKind::TimedOut
        )
}

fn is_mounting(goal: &Goal) -> bool {
    matches!(goal, Goal::Mounted { .. })
}
