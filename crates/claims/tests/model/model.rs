//! A cluster with two nodes and one claim, as small as the rules allow.

mod absence;
mod actors;
mod observed;
mod rules;
mod setting;
mod tenants;
mod users;
mod writes;

use absence::Absence;
use flexvol_claims::{Answer, Published, Step, StorageState, decide, follows_cache};
use flexvol_sdk::Bytes;
pub use setting::{Setting, Tenant};
use writes::{Target, outlives, target, writes};

/// What Kubernetes says of a claim, in its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Bound,
    Lost,
}

/// Somebody who goes on without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    Leader,
    Node,
    Binder,
    Scheduler,
    Kubelet,
    Expander,
    /// Whoever has another finalizer on the volume.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClaimObject {
    held: bool,
    deleting: bool,
    /// Its provisioner is ours.
    ours: bool,
    /// As it stands no storage can be had for it: its class is gone, or is of another driver than it says.
    refused: bool,
    /// It names this volume, or another one.
    named: Option<bool>,
    /// The annotation that Kubernetes writes with the name.
    completed: bool,
    phase: Phase,
    selected: Option<Node>,
    request: u64,
    capacity: u64,
    /// The size that kubelet shall reach.
    awaits_node: Option<u64>,
    failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VolumeObject {
    node: Node,
    held: bool,
    deleting: bool,
    /// Another finalizer is on it.
    others_hold: bool,
    released: bool,
    capacity: u64,
}

impl ClaimObject {
    /// It has this volume.
    fn is_bound(&self) -> bool {
        self.named == Some(true) && self.phase == Phase::Bound
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NodeVolumeObject {
    node: Node,
    wanted: StorageState,
    size: u64,
    published: Published,
    /// It was made from the volume: the storage is there already.
    recalled: bool,
    /// Its class has other parameters since.
    outdated: bool,
    answer: Answer,
    /// The size to which the agent has grown the file system.
    file_system: Option<u64>,
    full: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cached {
    volume: Option<VolumeObject>,
    node_volume: Option<NodeVolumeObject>,
    /// They have gone since; who comes after them has another version.
    volume_gone: bool,
    node_volume_gone: bool,
}

type Node = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    setting: Setting,
    claim: Option<ClaimObject>,
    claim_made: bool,
    /// A volume that outlived its claim was given to another one, which is `claim` since.
    handed_on: bool,
    volume: Option<VolumeObject>,
    node_volume: Option<NodeVolumeObject>,
    /// The storage on each node, and its size.
    storage: [Option<u64>; 2],
    /// The size of the file system of the volume, where it has one that has to grow.
    file_system: u64,
    /// Somebody's data are in it.
    data: bool,
    /// An administrator took the volume away in spite of its finalizers.
    forced: bool,
    /// Administrators use force once.
    force_used: bool,
    /// Then there were data, which only a person may delete.
    data_saved: bool,
    /// What one leader has decided and not yet written, while another may lead, and the node of the NodeVolume
    /// that it had read.
    late: Option<(Step, Option<Node>)>,
    /// Kubernetes' binder has read the claim, whose status it writes next.
    binding: bool,
    /// A leader has written the claim before that.
    overtaken: bool,
    /// The volume was let go of.
    let_go: bool,
    /// Volume and NodeVolume as watches have told a leader, which may be behind.
    cached: Option<Cached>,
    /// What a node read and is doing: what is wanted, and of which size.
    working: Option<(Node, StorageState, u64, bool)>,
    /// A node has no room.
    full: [bool; 2],
    /// The first node is away. Meanwhile there are no other accidents, or there would be too many states.
    away: Option<Absence>,
}

const NAMES: [&str; 2] = ["a", "b"];
const SMALL: u64 = 1;
const MIDDLE: u64 = 2;
const BIG: u64 = 3;
/// More than anything explains.
const HUGE: u64 = 1 << 60;

fn bytes(size: u64) -> Bytes {
    Bytes(size)
}

impl World {
    pub fn start(setting: Setting) -> Self {
        World {
            setting,
            claim: None,
            claim_made: false,
            handed_on: false,
            volume: None,
            node_volume: None,
            storage: [None; 2],
            file_system: 0,
            data: false,
            forced: false,
            force_used: false,
            data_saved: false,
            late: None,
            binding: false,
            overtaken: false,
            let_go: false,
            cached: None,
            working: None,
            full: [false; 2],
            away: None,
        }
    }

    /// The largest size that the class allows.
    fn most(&self) -> u64 {
        match self.setting.tenant {
            Some(Tenant::Outgrows) => MIDDLE,
            _ => HUGE,
        }
    }

    /// Everything that can happen next.
    pub fn events(&self) -> Vec<(String, World)> {
        let mut events = Vec::new();
        let mut add = |name: String, next: Option<World>| {
            if let Some(mut next) = next
                && next != *self
            {
                next.tidy();
                self.forget_overtaken(&mut next);
                events.push((name, next));
            }
        };
        let step = decide(&self.observe());
        let may_be_late = !self.setting.lowers && !self.setting.sizeless && self.cached.is_none();
        let all_there = matches!(self.away, None | Some(Absence::Taken | Absence::Stalled));
        // Its machine may be removed before that is written, and nothing is its condition but that there is no volume.
        let outlives_machine =
            step == Step::CreatePersistentVolume && self.away == Some(Absence::Lost);
        if writes(&step) && (all_there || outlives_machine) && may_be_late {
            let mut next = self.clone();
            let node = self
                .node_volume
                .as_ref()
                .map(|node_volume| node_volume.node);
            next.late = Some((step.clone(), node));
            add(format!("a leader decides {step:?}"), Some(next));
        }
        if let Some((step, node)) = &self.late {
            let mut next = self.clone();
            next.late = None;
            next.write(step, *node);
            add(format!("it writes {step:?}"), Some(next));
        }
        add(
            format!("another leads, and writes {step:?}"),
            self.goes_on(Actor::Leader),
        );
        add("a leader's watches are behind".to_owned(), self.is_cached());
        if let Some((step, next)) = self.follows_cache() {
            add(format!("it writes {step:?} by what they told"), Some(next));
        }
        add("a node reads its NodeVolume".to_owned(), self.node_reads());
        add(
            "a node says more than it has".to_owned(),
            self.implausible_sizes(),
        );
        add("a node's driver ends".to_owned(), self.driver_ends(true));
        add(
            "a node's driver ends, and its agent grows the file system".to_owned(),
            self.agent_grows(),
        );
        add(
            "a node's driver ends and its agent too".to_owned(),
            self.driver_ends(false),
        );
        for actor in [Actor::Binder, Actor::Kubelet, Actor::Expander, Actor::Other] {
            add(format!("{actor:?}"), self.goes_on(actor));
        }
        for node in 0..2 {
            add(
                format!("the scheduler chooses {node}"),
                self.scheduler(node),
            );
        }
        for (name, next) in self.users() {
            add(name.to_owned(), next);
        }
        events
    }

    /// From now on a leader's watches tell nothing.
    fn is_cached(&self) -> Option<World> {
        let claim = self.claim.as_ref()?;
        // What grows it has nothing to do with how a volume is made and deleted.
        let grows = claim.is_bound() && !claim.deleting && self.volume.is_some();
        let is_plain = !self.setting.expander && !self.setting.node_expansion_required;
        // Requests are lowered beside it where no scheduler chooses: for growth that is the same.
        let lowers = self.setting.lowers && !self.setting.late_binding;
        let is_calm = self.setting.is_calm() && !lowers;
        let known = self.cached.is_some() || self.late.is_some() || self.away.is_some() || is_calm;
        // Of a volume that was handed on everything is read, and where its node has something to do.
        let rests = match &self.node_volume {
            None => self.volume.is_none(),
            Some(node_volume) => {
                let is_done = match node_volume.wanted {
                    StorageState::Present => matches!(node_volume.answer, Answer::Present(_)),
                    StorageState::Absent => node_volume.answer == Answer::Absent,
                };
                is_done && !node_volume.full
            }
        };
        (!known && rests && (grows || is_plain) && !self.handed_on).then(|| World {
            cached: Some(Cached {
                volume: self.volume.clone(),
                node_volume: self.node_volume.clone(),
                volume_gone: false,
                node_volume_gone: false,
            }),
            ..self.clone()
        })
    }

    /// The claim alone is read: what is written to volume and NodeVolume is refused if they have changed.
    fn follows_cache(&self) -> Option<(Step, World)> {
        let cached = self.cached.clone()?;
        let seen = World {
            volume: cached.volume,
            node_volume: cached.node_volume,
            // The one that it is named after is looked for.
            claim: self.claim.clone().filter(|_| !self.handed_on),
            ..self.clone()
        };
        let observed = seen.observe();
        let step = decide(&observed);
        let volume_stays = !cached.volume_gone && self.volume == seen.volume;
        let node_volume_stays = !cached.node_volume_gone && self.node_volume == seen.node_volume;
        let as_seen = match target(&step) {
            // Both were read, or written in the same pass.
            _ if matches!(step, Step::RequestDeletion | Step::CreatePersistentVolume) => {
                volume_stays && node_volume_stays
            }
            Target::NodeVolume => node_volume_stays,
            Target::Volume => volume_stays,
            Target::Claim => true,
        };
        let mut next = self.clone();
        next.cached = None;
        next.write(&step, None);
        (as_seen && follows_cache(&step, &observed)).then_some((step, next))
    }

    /// A write of a late leader whose object has changed since will fail, unless it outlives that.
    fn forget_overtaken(&self, next: &mut World) {
        let changed = |target: Target| match target {
            Target::Claim => self.claim != next.claim,
            Target::Volume => self.volume != next.volume,
            Target::NodeVolume => self.node_volume != next.node_volume,
        };
        if next
            .late
            .as_ref()
            .is_some_and(|(step, _)| !outlives(step) && changed(target(step)))
        {
            next.late = None;
        }
        if let Some(cached) = &mut next.cached {
            let gone = self.volume.is_some() && next.volume.is_none();
            cached.volume_gone |= gone && cached.volume.is_some();
            let gone = self.node_volume.is_some() && next.node_volume.is_none();
            cached.node_volume_gone |= gone && cached.node_volume.is_some();
        }
        // It is refused, and reads the claim again.
        if self.binding && self.claim != next.claim {
            next.binding = false;
        }
    }

    /// Objects go when they are being deleted and nobody holds them.
    fn tidy(&mut self) {
        let used = |volume: &VolumeObject, claim: &Option<ClaimObject>| {
            claim
                .as_ref()
                .is_some_and(|claim| claim.named == Some(true))
                && !volume.released
        };
        if self
            .claim
            .as_ref()
            .is_some_and(|claim| claim.deleting && !claim.held)
        {
            self.claim = None;
            self.binding = false;
        }
        if self.volume.as_ref().is_some_and(|volume| {
            let is_held = volume.held || volume.others_hold;
            volume.deleting && !is_held && !used(volume, &self.claim)
        }) {
            self.volume = None;
        }
        if self.volume.is_none() {
            (self.let_go, self.binding) = (false, false);
        }
    }
}
