//! The decision which step comes next on the way to a goal.
//!
//! [`decide`] is pure. It sees one moment of one volume and names *one* step, or says that the goal is reached,
//! or refuses. A list of steps would be stale after its first one. With one step at a time, the normal path and
//! the retry after a crash are the same path. A callout that changes a volume succeeds only by `Reached`, which
//! rests on measurements.
//!
//! It is one file on purpose: later answers rest on earlier checks, so a change of one must be seen beside
//! all others.

use crate::{
    mark::{Mark, State},
    observed::{Asset, Content, DeviceState, Goal, Observed, Requester, TargetState},
    retention::Deletion,
};
use flexvol_host::{clock::Moment, fs::grow, superblock::SPREAD};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem, VolumeName};
use std::{borrow::Cow, time::Duration};

/// One change. Each is idempotent, and interrupting it anywhere leaves a state that [`decide`] handles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Allocate the storage, marked blank, atomically.
    Create {
        /// Its size.
        size: Bytes,
    },
    /// Replace the mark.
    Mark(Mark),
    /// Make the block device, with the storage's whole size.
    Map,
    /// Release the block device.
    Unmap,
    /// Under an exclusive claim: prove the device blank (unless it was marked `Formatting` before) and mark it
    /// `Formatting`. Then, under the volume's lock: make the file system, inspect it, mount it where nobody sees it,
    /// mark it `Ready`.
    Format(Filesystem),
    /// Grow the storage, and the device if there is one.
    GrowStorage {
        /// Its new size.
        to: Bytes,
    },
    /// Grow the file system to the size of its device, or complete an interrupted growth, then clear the mark's
    /// `growing`.
    GrowFilesystem,
    /// Mount the file system on the directory.
    Mount {
        /// The mount is read-only; the file system below it is not.
        read_only: bool,
    },
    /// Make the mount on the directory read-only or writable.
    SetReadOnly(bool),
    /// Unmount the topmost mount of the directory.
    Unmount,
    /// Remove the storage.
    Destroy,
}

impl Step {
    /// The step's name in the log.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Step::Create { .. } => "create",
            Step::Mark(_) => "mark",
            Step::Map => "map",
            Step::Unmap => "unmap",
            Step::Format(_) => "format",
            Step::GrowStorage { .. } => "grow-storage",
            Step::GrowFilesystem => "grow-filesystem",
            Step::Mount { .. } => "mount",
            Step::SetReadOnly(_) => "set-read-only",
            Step::Unmount => "unmount",
            Step::Destroy => "destroy",
        }
    }
}

/// The decision of [`decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Do this step, then observe again.
    Do(Step),
    /// The goal is reached.
    Reached,
    /// The goal cannot be reached from here, for this reason.
    Refuse(ErrorKind, Cow<'static, str>),
}

fn refuse(kind: ErrorKind, why: impl Into<Cow<'static, str>>) -> Next {
    Next::Refuse(kind, why.into())
}

/// Returns the next step from `seen` to `goal`.
#[must_use]
pub fn decide(seen: &Observed, goal: &Goal) -> Next {
    let Some(asset) = &seen.asset else {
        return without_asset(seen, goal);
    };
    // Unmounting works even if the mark cannot be read.
    if *goal == Goal::Unmounted {
        return next_for_unmount(seen);
    }
    let Some(mark) = &asset.mark else {
        return refuse(
            ErrorKind::Denied,
            "the volume has no mark of this driver; take it over with `flexvol adopt`",
        );
    };
    if !goal.ends_use() {
        if mark.state == State::Deleting {
            return refuse(
                ErrorKind::Conflict,
                "the volume is being deleted; its data is no longer to be had",
            );
        }
        if mark.deleted.is_some() && *goal != Goal::Restored {
            return refuse(
                ErrorKind::Conflict,
                "the volume was deleted and is kept for a while; `flexvol undelete` on its node takes that back",
            );
        }
    }
    if let Goal::Deleted { name, .. } = goal
        && let Some(refusal) = called_otherwise(mark, name.as_ref())
    {
        return refusal;
    }
    match goal {
        Goal::Unmounted => next_for_unmount(seen),
        Goal::Deleted { now, keep, .. } if mark.state == State::Ready || keep.is_none() => {
            unused(seen).unwrap_or_else(|| next_for_deletion(mark, now, *keep))
        }
        // A blank volume has no data, so it is not kept.
        Goal::Deleted { .. } | Goal::Gone => unused(seen).unwrap_or_else(|| next_for_removal(mark)),
        Goal::Restored if mark.deleted.is_some() => Next::Do(Step::Mark(mark.with_deleted(None))),
        Goal::Restored => Next::Reached,
        Goal::Provisioned { size } if asset.size >= *size => Next::Reached,
        Goal::Provisioned { size } => refuse(
            ErrorKind::Conflict,
            format!(
                "the volume exists with {:#}, which is less than the {size:#} asked for; grow it or choose another name",
                asset.size
            ),
        ),
        Goal::StorageGrown { to } => next_for_storage_growth(seen, asset, mark, *to),
        Goal::Grown {
            to,
            offline,
            read_only,
        } => next_for_growth(seen, asset, mark, *to, *offline, *read_only),
        Goal::Mounted {
            filesystem,
            default,
            offline,
            read_only,
            requester,
        } => permitted(mark, requester)
            .or_else(|| fitting(mark, *filesystem, *default, requester))
            .unwrap_or_else(|| {
                let growth_refused = seen.growth_refused || (*offline && seen.used_by_pods);
                next_for_mount(
                    seen,
                    asset,
                    mark,
                    filesystem.or(mark.filesystem()).unwrap_or(*default),
                    growth_refused,
                    *read_only,
                )
            }),
    }
}

fn without_asset(seen: &Observed, goal: &Goal) -> Next {
    match goal {
        Goal::Provisioned { size } => Next::Do(Step::Create { size: *size }),
        // The volume may be in a pool that only the lost configuration names.
        Goal::Deleted { keep: None, .. } => refuse(ErrorKind::Configuration, LOST),
        Goal::Deleted { .. } | Goal::Gone => Next::Reached,
        // The image may have been deleted while it was mounted, or its disk may be missing.
        Goal::Unmounted => next_for_unmount(seen),
        Goal::Mounted { .. } | Goal::StorageGrown { .. } | Goal::Grown { .. } | Goal::Restored => {
            refuse(
                ErrorKind::NotFound,
                "there is no such volume on this node; check the handle, and that the pod runs where the volume is",
            )
        }
    }
}

fn next_for_unmount(seen: &Observed) -> Next {
    match seen.target {
        TargetState::Absent
        | TargetState::Free
        | TargetState::Duplicate
        | TargetState::NotEmpty => Next::Reached,
        TargetState::Ours { .. } | TargetState::HalfMade => Next::Do(Step::Unmount),
        TargetState::Other => refuse(
            ErrorKind::Conflict,
            "something else than a volume of this driver is mounted there; unmount it by hand",
        ),
    }
}

/// Refuses to delete a volume under a name that is not its own. Handles can be read in persistent volumes, and a
/// caller who checked that a volume may go has checked the one of that name.
fn called_otherwise(mark: &Mark, name: Option<&VolumeName>) -> Option<Next> {
    let (made, called) = (mark.name.as_ref()?, name?);
    (made != called).then(|| {
        refuse(
            ErrorKind::Conflict,
            format!(
                "volume {called} was to be deleted, and the volume that was found was made under another name; give the name that `flexvol list` shows, or its handle alone"
            ),
        )
    })
}

/// The step or refusal that is needed before nobody can use the volume; `None` if it is unused.
fn unused(seen: &Observed) -> Option<Next> {
    Some(match &seen.device {
        Some(device) if device.in_use => refuse(
            ErrorKind::Busy,
            "the volume is still mounted; delete the pods that use it first",
        ),
        // Unmap before marking: if the device is open elsewhere, the volume must stay one.
        Some(_) => Next::Do(Step::Unmap),
        None => return None,
    })
}

/// Marks the volume deleted. A repeated call does not shorten the time that was set by the first one.
fn next_for_deletion(mark: &Mark, now: &Moment, keep: Option<Duration>) -> Next {
    match (mark.deleted, keep) {
        (Some(_), _) => Next::Reached,
        (None, Some(Duration::ZERO)) => next_for_removal(mark),
        (None, Some(keep)) => {
            let deletion = Deletion::new(now, keep);
            Next::Do(Step::Mark(mark.with_deleted(Some(deletion))))
        }
        (None, None) => refuse(ErrorKind::Configuration, LOST),
    }
}

/// Message for deletions while the configuration is lost.
pub(crate) const LOST: &str = "the driver's configuration is missing or empty, so it is not known in which pools its volumes are and how long a deleted one is kept; put it back on the node, with `flexvol install --config`";

fn next_for_removal(mark: &Mark) -> Next {
    Next::Do(match mark.state {
        State::Deleting => Step::Destroy,
        _ => Step::Mark(mark.with_state(State::Deleting)),
    })
}

fn permitted(mark: &Mark, requester: &Requester) -> Option<Next> {
    match (requester, &mark.namespace) {
        (Requester::Anybody | Requester::Node, _) => None,
        (Requester::Namespace(requester), Some(owner)) if requester == owner => None,
        (Requester::Namespace(_), _) => Some(refuse(
            ErrorKind::Denied,
            "the volume belongs to a claim in another namespace",
        )),
        (Requester::Unnamed, _) => Some(refuse(
            ErrorKind::Denied,
            "the call names no pod, so whose volume it may have is not known",
        )),
    }
}

/// Refuses a mount that asks for another file system than the volume was made for, which would lock its owner
/// out. If that was left open, a requester who may not be the owner has no choice either.
fn fitting(
    mark: &Mark,
    asked: Option<Filesystem>,
    default: Filesystem,
    requester: &Requester,
) -> Option<Next> {
    let asked = asked?;
    let (has, how) = match (mark.state, requester) {
        (State::Ready, _) => (mark.filesystem()?, "holds"),
        (_, Requester::Node) => (mark.filesystem().unwrap_or(default), "was made for"),
        _ => (mark.asked?, "was made for"),
    };
    (asked != has).then(|| {
        refuse(
            ErrorKind::Conflict,
            format!("the volume {how} {has}, and {asked} was asked for; correct fsType"),
        )
    })
}

fn next_for_mount(
    seen: &Observed,
    asset: &Asset,
    mark: &Mark,
    filesystem: Filesystem,
    growth_refused: bool,
    read_only: bool,
) -> Next {
    match seen.target {
        TargetState::Other => {
            return refuse(
                ErrorKind::Busy,
                "something else is mounted on the directory; unmount it first",
            );
        }
        TargetState::NotEmpty => {
            return refuse(
                ErrorKind::Conflict,
                "the directory is not empty, and a mount would hide what is in it; empty it first",
            );
        }
        TargetState::HalfMade => return Next::Do(Step::Unmount),
        TargetState::Absent
        | TargetState::Free
        | TargetState::Duplicate
        | TargetState::Ours { .. } => {}
    }
    let Some(device) = whole_device(seen, asset) else {
        return Next::Do(Step::Map);
    };
    if mark.state < State::Ready {
        return next_for_format(device, asset, mark, filesystem);
    }
    // Checked before growth, whose error would say less.
    if seen.takes_no_writes && !read_only {
        return refuse(
            ErrorKind::Storage,
            "the volume's file system met an error and takes no writes; end the pods that use the volume, and look into the kernel's log on the node",
        );
    }
    match whole_filesystem(device, asset, mark) {
        None => {}
        Some(Next::Do(Step::GrowFilesystem)) if growth_refused => {}
        Some(next) => return next,
    }
    match seen.target {
        TargetState::Ours { read_only: is } if is == read_only => Next::Reached,
        TargetState::Ours { .. } => Next::Do(Step::SetReadOnly(read_only)),
        // Pods have mounts of their own, so the one on the node's directory is not needed.
        TargetState::Duplicate => Next::Reached,
        _ => Next::Do(Step::Mount { read_only }),
    }
}

fn next_for_format(
    device: &DeviceState,
    asset: &Asset,
    mark: &Mark,
    filesystem: Filesystem,
) -> Next {
    match (&device.content, mark.state) {
        (Content::NotRead, _) => Next::Do(Step::Map),
        (Content::Unreadable, _) => unreadable(),
        (Content::Truncated { size }, _) => lost_end(*size, device, asset),
        (Content::Blank, _) | (_, State::Formatting) => Next::Do(Step::Format(filesystem)),
        (Content::Foreign(what), _) => not_blank(what),
        (Content::Ours { .. }, _) => not_blank("a file system"),
    }
}

fn next_for_growth(
    seen: &Observed,
    asset: &Asset,
    mark: &Mark,
    to: Bytes,
    offline: bool,
    read_only: bool,
) -> Next {
    if mark.state < State::Ready {
        return refuse(
            ErrorKind::Conflict,
            "the volume holds no file system yet; it gets one when it is first mounted",
        );
    }
    let Some(device) = whole_device(seen, asset) else {
        return Next::Do(Step::Map);
    };
    let complete = whole_filesystem(device, asset, mark);
    if asset.size >= to && complete.is_none() {
        return Next::Reached;
    }
    // Refuse because of the device's content before growing anything.
    if let Some(refusal @ Next::Refuse(..)) = complete {
        return refusal;
    }
    let to = with_least(asset, mark, to);
    if read_only && asset.size < to {
        return refuse(
            ErrorKind::Conflict,
            format!(
                "the volume has {:#}, {to:#} was asked for, and a read-only use does not grow it",
                asset.size
            ),
        );
    }
    // Before the check for pods: reading grows nothing, and there may be nothing to grow.
    if device.content == Content::NotRead {
        return Next::Do(Step::Map);
    }
    if offline && seen.used_by_pods {
        return refuse(
            ErrorKind::Busy,
            format!(
                "the volume has {:#}, {to:#} was asked for, and this driver grows volumes only while no pod uses them; stop the pod",
                asset.size
            ),
        );
    }
    if asset.size >= to {
        return complete.unwrap_or(Next::Reached);
    }
    if mark.growing < Some(to) {
        return Next::Do(Step::Mark(mark.with_growing(Some(to))));
    }
    Next::Do(Step::GrowStorage { to })
}

/// Raises a requested size to the smallest to which the kernel resizes this volume's file system.
pub(crate) fn with_least(asset: &Asset, mark: &Mark, to: Bytes) -> Bytes {
    match mark.format {
        Some(format) if asset.size < to => to.max(grow::least(format.filesystem)),
        _ => to,
    }
}

fn next_for_storage_growth(seen: &Observed, asset: &Asset, mark: &Mark, to: Bytes) -> Next {
    if asset.size >= to {
        return match &seen.device {
            Some(device) if device.size < asset.size => Next::Do(Step::Map),
            _ => Next::Reached,
        };
    }
    let to = with_least(asset, mark, to);
    // The file system is not read here, so the mark makes the next mount grow it.
    if mark.state == State::Ready && mark.growing < Some(to) {
        return Next::Do(Step::Mark(mark.with_growing(Some(to))));
    }
    Next::Do(Step::GrowStorage { to })
}

/// Returns the device, if the kernel sees all of the storage.
fn whole_device<'a>(seen: &'a Observed, asset: &Asset) -> Option<&'a DeviceState> {
    seen.device
        .as_ref()
        .filter(|device| device.size >= asset.size)
}

/// The step or refusal that is needed before a ready volume's file system spans its device; `None` if it does.
fn whole_filesystem(device: &DeviceState, asset: &Asset, mark: &Mark) -> Option<Next> {
    match &device.content {
        Content::NotRead => Some(Next::Do(Step::Map)),
        Content::Unreadable => Some(unreadable()),
        Content::Blank => Some(refuse(
            ErrorKind::Storage,
            "the volume was formatted once and now reads blank; restore it from a backup, it is never formatted again",
        )),
        Content::Foreign(SPREAD) => Some(refuse(
            ErrorKind::Storage,
            "the volume's btrfs was given devices that are not the volume's; mount it on the node by hand, take them out of it with `btrfs device remove`, and try again",
        )),
        Content::Foreign(what) => Some(refuse(
            ErrorKind::Storage,
            format!(
                "the volume was formatted by this driver and now holds {what}; restore it from a backup"
            ),
        )),
        Content::Truncated { size } => Some(lost_end(*size, device, asset)),
        // Repeated even at full size while the mark says that a growth was begun: an interrupted growth of XFS
        // leaves old secondary superblocks, which nothing else repairs.
        Content::Ours { size, slack } => (mark.growing.is_some()
            || device.size.saturating_sub(*size) > *slack)
            .then_some(Next::Do(Step::GrowFilesystem)),
    }
}

fn lost_end(had: Bytes, device: &DeviceState, asset: &Asset) -> Next {
    refuse(
        ErrorKind::Storage,
        truncated(had, device.size.min(asset.size)),
    )
}

/// Message for a volume that lost its end.
pub(crate) fn truncated(had: Bytes, now: Bytes) -> String {
    format!("the volume had {had} and has only {now} now; restore its full size")
}

/// Message for a volume whose device fails.
pub(crate) const UNREADABLE: &str =
    "the volume's device cannot be read; look into the kernel's log on the node";

fn unreadable() -> Next {
    refuse(ErrorKind::Unreadable, UNREADABLE)
}

fn not_blank(what: &str) -> Next {
    refuse(
        ErrorKind::NotBlank,
        format!("the volume should be blank and holds {what}; it was left as it is"),
    )
}
