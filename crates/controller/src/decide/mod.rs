//! What to do next for one volume: a pure function from what was observed to one step.
//!
//! A plan of several steps would be stale after its first, because users, Kubernetes' own
//! controllers, kubelet and another leader change the same objects. With one step at a time, each
//! made only if the objects are still as observed, going on after a crash is the same as going on.

mod grow;
mod make;
mod observed;
mod remove;

pub use observed::{
    Answer, Away, Binding, Claim, Observed, Order, Problem, Reclaim, Volume, Wanted, Wish,
};

use flexvol_sdk::Bytes;

/// One write to the API server, or none. Every step is made with the resource version that was
/// observed as its condition, and may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing, until something changes.
    Rest,
    /// Nothing, but the claim's author is told why.
    Refuse(String),
    /// Nothing, but whoever looks after the volume is told why.
    Stuck(String),
    /// Puts our finalizer on the claim, so that it cannot go while storage is made for it.
    HoldClaim,
    /// Orders the storage on a node; on none that is named, on one with room.
    Order {
        /// The node that the scheduler chose.
        node: Option<String>,
    },
    /// Orders anew what the volume says of its storage: its order is gone.
    Recall(Wanted),
    /// Creates the persistent volume.
    Publish,
    /// Notes in the order that a persistent volume is going to be there, or was.
    NotePublished,
    /// Takes our finalizer from the claim.
    LetClaimGo,
    /// Asks the scheduler for another node: the chosen one has no room, or is gone.
    Reschedule,
    /// Orders that the storage be deleted.
    Revoke,
    /// Deletes the order.
    Forget,
    /// Deletes the persistent volume.
    DeleteVolume,
    /// Takes our finalizer from the persistent volume.
    LetVolumeGo,
    /// Orders the storage to have another size; what it has is never taken from it.
    Resize(Bytes),
    /// Writes into the persistent volume the size that its storage was measured to have reached.
    SizeVolume(Bytes),
    /// Completes the claim's growth: nothing on a node has to do anything for it.
    FinishClaim(Bytes),
    /// Tells kubelet to grow the file system.
    AwaitNode(Bytes),
    /// Writes into the claim's status why its storage does not grow.
    SayFailure(String),
    /// Takes that from the claim's status: the storage has grown, or nothing is asked any more.
    TakeFailureBack,
}

/// The next step.
#[must_use]
pub fn decide(observed: &Observed) -> Step {
    match &observed.volume {
        Some(volume) if !volume.ours => match observed.wish() {
            Some(Wish::Storage { .. }) => Step::Refuse(
                "a persistent volume of the name that this claim's would have is somebody else's; delete or rename it"
                    .to_owned(),
            ),
            _ => Step::Rest,
        },
        Some(volume) => remove::removing(observed, volume)
            .or_else(|| make::settling(observed))
            .unwrap_or_else(|| grow::growing(observed, volume)),
        None => make::making(observed),
    }
}
