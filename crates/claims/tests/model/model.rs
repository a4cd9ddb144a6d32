//! Model of a cluster with two nodes and one claim, as small as the rules allow.

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
use std::fmt;
use writes::{Target, outlives, target, writes};

/// Phase in the claim's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Bound,
    Lost,
}

/// An actor that acts by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    Leader,
    Node,
    Binder,
    Scheduler,
    Kubelet,
    Expander,
    /// The owner of another finalizer on the volume.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClaimObject {
    held: bool,
    deleting: bool,
    /// Whether its provisioner is ours.
    ours: bool,
    /// Whether no storage is possible for it: its class is missing, or has another driver than its provisioner's.
    refused: bool,
    /// Whether it names this volume, or else another one.
    named: Option<bool>,
    /// The annotation that Kubernetes writes with the name.
    completed: bool,
    phase: Phase,
    selected: Option<Node>,
    request: u64,
    capacity: u64,
    /// The allocated size in its status.
    allocated: u64,
    /// The size that kubelet has to reach.
    awaits_node: Option<u64>,
    failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VolumeObject {
    node: Node,
    held: bool,
    deleting: bool,
    /// Whether another finalizer is on it.
    others_hold: bool,
    released: bool,
    capacity: u64,
}

impl ClaimObject {
    /// Whether it is bound to this volume.
    fn is_bound(&self) -> bool {
        self.named == Some(true) && self.phase == Phase::Bound
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NodeVolumeObject {
    node: Node,
    wanted: StorageState,
    size: u64,
    /// The largest size that was ever requested.
    most: u64,
    /// Whether its node has acted since another size was requested.
    answered: bool,
    published: Published,
    /// Whether it was recreated from the volume, so that the storage exists already.
    recalled: bool,
    /// Whether its class has other parameters since.
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
    /// Whether the object is gone since. A later one has another version.
    volume_gone: bool,
    node_volume_gone: bool,
}

type Node = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    setting: Setting,
    claim: Option<ClaimObject>,
    claim_made: bool,
    /// Whether a volume that outlived its claim was handed on to another one, which is `claim` since.
    handed_on: bool,
    volume: Option<VolumeObject>,
    node_volume: Option<NodeVolumeObject>,
    /// The size of the storage on each node.
    storage: [Option<u64>; 2],
    /// The size of the volume's file system, if the driver has one to grow.
    file_system: u64,
    /// Whether the storage holds data.
    data: bool,
    /// Whether an administrator removed the volume in spite of its finalizers.
    forced: bool,
    /// Whether force was used. It is used once.
    force_used: bool,
    /// Whether the storage held data then, which only an administrator may delete.
    data_saved: bool,
    /// The step that a late leader has decided and not yet written, while another one may lead, and the node of the
    /// NodeVolume that it had read.
    late: Option<(Step, Option<Node>)>,
    /// Whether Kubernetes' binder has read the claim, and writes its status next.
    binding: bool,
    /// Whether a leader has written the claim before that.
    overtaken: bool,
    /// Whether the volume's finalizer was removed.
    let_go: bool,
    /// A leader's cached volume and NodeVolume, which may be stale.
    cached: Option<Cached>,
    /// A node's current work: the node, the desired state that it read, the size, and whether it was recalled.
    working: Option<(Node, StorageState, u64, bool)>,
    /// Whether a leader has seen that the API server drops allocated sizes.
    drops_allocated: bool,
    /// Whether a node lacks capacity.
    full: [bool; 2],
    /// Whether the first node is unavailable. Meanwhile there are no other accidents, to limit the number of states.
    away: Option<Absence>,
}

const NAMES: [&str; 2] = ["a", "b"];
const SMALL: u64 = 1;
const MIDDLE: u64 = 2;
const BIG: u64 = 3;
/// More than rounding explains.
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
            drops_allocated: false,
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

    /// Visits all possible next events: the name of each, and the world after it.
    pub fn events(&self, visit: &mut dyn FnMut(fmt::Arguments<'_>, World)) {
        let mut add = |name: fmt::Arguments<'_>, next: Option<World>| {
            if let Some(mut next) = next
                && next != *self
            {
                next.tidy();
                self.forget_overtaken(&mut next);
                visit(name, next);
            }
        };
        let step = decide(&self.observe());
        let may_be_late = !self.setting.lowers && !self.setting.sizeless && self.cached.is_none();
        let all_there = matches!(self.away, None | Some(Absence::Taken | Absence::Stalled));
        // The machine may be removed before the write, whose only condition is that there is no volume.
        let outlives_machine =
            step == Step::CreatePersistentVolume && self.away == Some(Absence::Lost);
        if writes(&step) && (all_there || outlives_machine) && may_be_late {
            let mut next = self.clone();
            let node = self
                .node_volume
                .as_ref()
                .map(|node_volume| node_volume.node);
            next.late = Some((step.clone(), node));
            add(format_args!("a leader decides {step:?}"), Some(next));
        }
        if let Some((step, node)) = &self.late {
            let mut next = self.clone();
            next.late = None;
            next.write(step, *node);
            add(format_args!("it writes {step:?}"), Some(next));
        }
        add(
            format_args!("another leads, and writes {step:?}"),
            self.goes_on(Actor::Leader),
        );
        add(
            format_args!("a leader's watches are behind"),
            self.is_cached(),
        );
        if let Some((step, next)) = self.follows_cache() {
            add(
                format_args!("it writes {step:?} by what they told"),
                Some(next),
            );
        }
        add(
            format_args!("a node reads its NodeVolume"),
            self.node_reads(),
        );
        add(
            format_args!("a node says more than it has"),
            self.implausible_sizes(),
        );
        add(format_args!("a node's driver ends"), self.driver_ends(true));
        add(
            format_args!("a node's driver ends, and its agent grows the file system"),
            self.agent_grows(),
        );
        add(
            format_args!("a node's driver ends and its agent too"),
            self.driver_ends(false),
        );
        for actor in [Actor::Binder, Actor::Kubelet, Actor::Expander, Actor::Other] {
            add(format_args!("{actor:?}"), self.goes_on(actor));
        }
        for node in 0..2 {
            add(
                format_args!("the scheduler chooses {node}"),
                self.scheduler(node),
            );
        }
        for (name, next) in self.users() {
            add(format_args!("{name}"), next);
        }
    }

    /// The same world, with a stale cache from now on.
    fn is_cached(&self) -> Option<World> {
        let claim = self.claim.as_ref()?;
        // Growth is independent of creation and deletion.
        let grows = claim.is_bound() && !claim.deleting && self.volume.is_some();
        let is_plain = !self.setting.expander && !self.setting.node_expansion_required;
        // Lowered requests with a stale cache are explored without late binding, on which growth does not depend.
        let lowers = self.setting.lowers && !self.setting.late_binding;
        let is_calm = self.setting.is_calm() && !lowers;
        let known = self.cached.is_some() || self.late.is_some() || self.away.is_some() || is_calm;
        // A volume that was handed on is read live, and so is one whose node has work to do.
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

    /// Steps from the cache: only the claim is read live, and writes to changed cached objects fail.
    fn follows_cache(&self) -> Option<(Step, World)> {
        let cached = self.cached.clone()?;
        let seen = World {
            volume: cached.volume,
            node_volume: cached.node_volume,
            // The claim after which the volume is named is looked up.
            claim: self.claim.clone().filter(|_| !self.handed_on),
            ..self.clone()
        };
        let observed = seen.observe();
        let step = decide(&observed);
        let volume_stays = !cached.volume_gone && self.volume == seen.volume;
        let node_volume_stays = !cached.node_volume_gone && self.node_volume == seen.node_volume;
        let as_seen = match target(&step) {
            // Both objects were read live, or written in the same pass.
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

    /// Drops the write of a late leader whose object has changed, unless it would still succeed.
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
        // The binder's write fails, and it reads the claim again.
        if self.binding && self.claim != next.claim {
            next.binding = false;
        }
    }

    /// Removes objects that are being deleted and have no finalizers.
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
