//! Nodes that do not act, or to which no volume can be bound.

use super::{Node, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Absence {
    /// Its agent is silent.
    Silent,
    /// Kubernetes misses the node too.
    Lost,
    /// Kubernetes has removed it, and it never comes back.
    Removed,
    /// It works, but no volume can be bound to it: another node has its hostname.
    Taken,
    /// Its agent answers, and makes nothing.
    Stalled,
}

impl World {
    pub(super) fn is_away(&self, node: Node) -> bool {
        node == 0 && self.away.is_some() && !self.is_taken(node) && !self.is_stalled(node)
    }

    pub(super) fn is_taken(&self, node: Node) -> bool {
        node == 0 && self.away == Some(Absence::Taken)
    }

    pub(super) fn is_stalled(&self, node: Node) -> bool {
        node == 0 && self.away == Some(Absence::Stalled)
    }

    /// Whether the scheduler would not select the node.
    pub(super) fn is_lost(&self, node: Node) -> bool {
        node == 0 && matches!(self.away, Some(Absence::Lost | Absence::Removed))
    }
}
