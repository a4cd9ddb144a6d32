//! Observe, decide, do one step, until the goal is reached or refused.

use crate::{
    decide::{Next, Step, decide},
    observed::{Goal, Observed},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

/// What holds things between steps (the lock, the open device, a mount nobody sees yet): the
/// kernel in a driver, a model in the tests of [`decide`].
pub trait World {
    /// Looks at the volume, as deep as `goal` needs.
    ///
    /// # Errors
    /// When something cannot be known; then nothing is concluded from it.
    fn observe(&mut self, goal: &Goal) -> Result<Observed>;

    /// Does one step.
    ///
    /// # Errors
    /// When it was not done, or not completely; doing it again is safe.
    fn act(&mut self, step: &Step) -> Result<()>;
}

/// A goal that was reached: measured, never inferred.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// Whether anything had to be done.
    pub changed: bool,
    /// What was seen last.
    pub seen: Observed,
}

impl Reached {
    /// The size of the volume's storage; zero where there is none.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.seen
            .asset
            .as_ref()
            .map_or(Bytes(0), |asset| asset.size)
    }
}

/// More steps than any way from one state to another has; the longest one is known from the
/// exploration in `tests/decide`.
pub(crate) const MAX_STEPS: usize = 24;

/// Brings the world to `goal`.
///
/// # Errors
/// What [`decide`] refuses, and what a step or an observation could not do.
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
                    // A pod waits for its volume, and a smaller one is better than none.
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

/// Fails where `goal` is refused of the world as it is, for whoever has something to do before.
pub(crate) fn expect_permitted(world: &mut dyn World, goal: &Goal) -> Result<()> {
    match decide(&world.observe(goal)?, goal) {
        Next::Refuse(kind, why) => Err(Error::new(kind, why)),
        Next::Do(_) | Next::Reached => Ok(()),
    }
}

/// Whether the file system is as it was and can be grown in other circumstances (by another kernel,
/// with another capability, while nobody has it mounted, in a pool with room), was not made to get so large, or takes longer
/// than a pod should wait.
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
