//! What can be had on each node, for others to choose by.

use super::Nodes;
use flexvol_sdk::Bytes;

/// What can be had of a class on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The node's name.
    pub node: String,
    /// The UID of what its agent says.
    pub uid: String,
    /// The largest volume.
    pub largest: Bytes,
}

impl Nodes {
    /// The largest volume of a class on each node that is heard of and has the driver.
    pub fn rooms(&self, driver: &str, class: &str) -> Vec<Room> {
        let all = self.all();
        let able = all.iter().filter(|(node, known)| {
            !known.is_silent(self.silence) && known.lacks_driver(node, driver).is_none()
        });
        let rooms = able.map(|(node, known)| Room {
            node: node.clone(),
            uid: known.uid.clone(),
            // Kubernetes counts no further.
            largest: known.room(class).min(Bytes(i64::MAX.unsigned_abs())),
        });
        rooms.collect()
    }
}
