//! The life of one volume beside a neighbour, recorded write by write.

use crate::{
    machine::{Backend, DIARY, Keep, There},
    node::Node,
};
use flexvol_testing::{PersistentVolume, WriteLog, arena, request};
use tempfile::TempDir;

pub const SIZE: u64 = 300 << 20;
pub const GROWN: u64 = 480 << 20;

/// The entries of the diary, in this order.
#[derive(Clone, Debug)]
pub enum Fact {
    /// There are a pool and a neighbour in it, and nothing else.
    Begun,
    /// The volume was provisioned and has this handle.
    Made(String),
    /// It was mounted, and its file system has this size.
    Mounted(u64),
    /// A file with this SHA-256 was synced.
    Written(String, String),
    /// Its growth was requested.
    Growing,
    /// It was grown, and its file system has this size.
    Grown(u64),
    /// Its removal was requested.
    Deleting,
    /// It was removed.
    Deleted,
}

pub struct Story {
    pub backend: Backend,
    pub filesystem: &'static str,
    pub facts: Vec<Fact>,
    pub log: WriteLog,
    /// Path of the neighbour's content on the node.
    pub neighbour: String,
    /// The first entry of the log that belongs to the life.
    pub start: usize,
    _place: TempDir,
}

impl Story {
    /// Runs the life in a machine and records it.
    pub fn record(backend: Backend, filesystem: &'static str) -> Self {
        let place = tempfile::tempdir_in(arena()).unwrap();
        let path = place.path().join("log");
        let mut node = Node::with_pool(place.path(), &Keep::Log(&path), backend);
        let neighbour = neighbour(&mut node);
        let mut diary = Diary {
            node,
            facts: Vec::new(),
        };
        diary.note(Fact::Begun);
        live(&mut diary, filesystem);
        let Diary { node, facts } = diary;
        node.cut();
        let log = WriteLog::open(&path).unwrap();
        let start = log.first_write_to(DIARY).unwrap();
        Story {
            backend,
            filesystem,
            facts,
            log,
            neighbour,
            start,
            _place: place,
        }
    }
}

struct Diary {
    node: Node<There>,
    facts: Vec<Fact>,
}

impl Diary {
    fn note(&mut self, fact: Fact) {
        self.node.note(self.facts.len());
        self.facts.push(fact);
    }

    fn write(&mut self, name: &str, kibibytes: u32) {
        let sum = self.node.write(name, kibibytes);
        self.note(Fact::Written(name.to_owned(), sum));
    }
}

fn neighbour(node: &mut Node<There>) -> String {
    // Another volume was made and deleted, so that the pool's directories do not grow later.
    for name in ["gone", "neighbour"] {
        let call = node.call(&["provision", &request(name, 16 << 20)]);
        let volume = PersistentVolume::from_reply(name, "ext4", &call.success());
        node.mount(&volume).success();
        node.write("file", 1024);
        node.unmount();
        if name == "neighbour" {
            node.run("sync");
            return volume.id();
        }
        node.call(&["delete", &volume.json("rw")]).success();
    }
    unreachable!("the neighbour stays")
}

fn live(diary: &mut Diary, filesystem: &'static str) {
    let call = diary.node.call(&["provision", &request("pv", SIZE)]);
    let volume = PersistentVolume::from_reply("pv", filesystem, &call.success());
    diary.note(Fact::Made(volume.handle().to_owned()));
    diary.node.mount(&volume).success();
    let size = diary.node.size();
    diary.note(Fact::Mounted(size));
    for (name, kibibytes) in [("a", 512), ("b", 3), ("c", 128), ("d", 1)] {
        diary.write(name, kibibytes);
    }
    diary.note(Fact::Growing);
    diary.node.expand(&volume, GROWN, SIZE).success();
    let size = diary.node.size();
    diary.note(Fact::Grown(size));
    for (name, kibibytes) in [("e", 700), ("f", 5)] {
        diary.write(name, kibibytes);
    }
    diary.node.unmount();
    diary.node.mount(&volume).success();
    diary.write("g", 64);
    diary.node.unmount();
    diary.note(Fact::Deleting);
    diary.node.call(&["delete", &volume.json("rw")]).success();
    diary.note(Fact::Deleted);
}
