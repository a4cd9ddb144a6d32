//! Kills callouts at each ioctl of theirs and of programs that they start, or lets the ioctl fail. Those of
//! device-mapper are among them. The repeated call succeeds, and nothing is left.

use crate::{
    anywhere::Callout,
    callouts::{delete, expandfs, expandvolume, mount_new, provision},
    node::{Backend, Node},
    story::stories,
};
use flexvol_testing::{
    Disturbance::{self, ErrorsAt, KillAt},
    Points,
};

stories! {
    STORIES:
    "provision, killed at or refused any ioctl, is finished by its repetition", [lvm]
        => |backend, points| disturbed(backend, &[provision], KILLED_OR_REFUSED, points);
    "mount of a new volume, killed at or refused any ioctl, is finished by its repetition", [lvm]
        => |backend, points| disturbed(backend, &[mount_ext4], KILLED_OR_REFUSED, points);
    "provision and mount of a new volume, killed at any ioctl, are finished by their repetition",
        [thin_lvm] => |backend, points| disturbed(backend, &[provision, mount_ext4], KILLED, points);
    "expandfs, killed at or refused any ioctl, is finished by its repetition", [lvm]
        => |backend, points| disturbed(backend, &[expandfs], KILLED_OR_REFUSED, points);
    "expandfs and expandvolume, killed at any ioctl, are finished by their repetition", [thin_lvm]
        => |backend, points| disturbed(backend, &[expandfs, expandvolume], KILLED, points);
    "delete, killed at or refused any ioctl, is finished by its repetition", [lvm]
        => |backend, points| disturbed(backend, &[delete], KILLED_OR_REFUSED, points);
    "delete, killed at any ioctl, is finished by its repetition", [thin_lvm]
        => |backend, points| disturbed(backend, &[delete], KILLED, points);
}

const KILLED: &[Disturbance] = &[KillAt("ioctl")];
const KILLED_OR_REFUSED: &[Disturbance] = &[KillAt("ioctl"), ErrorsAt("ioctl")];

fn mount_ext4(node: &Node, how: &[Disturbance], points: &Points) {
    mount_new(node, "ext4", how, points);
}

fn disturbed(backend: Backend, callouts: &[Callout], how: &[Disturbance], points: &Points) {
    let node = Node::new(backend);
    for callout in callouts {
        callout(&node, how, points);
    }
}
