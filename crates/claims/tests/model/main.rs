//! Explores every order of events for one volume: users, Kubernetes' controllers, kubelet, two leaders that may be
//! late, nodes that may be cut off, and the steps of [`flexvol_claims`].
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "a run says how much it explored")]

mod model;

use model::{Actor, Setting, World};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    rc::Rc,
    sync::Mutex,
    thread,
};

/// Fast hasher. The standard library's resists collision attacks, and would take nearly half of the time.
#[derive(Default)]
struct Sum(u64);

impl Hasher for Sum {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_usize(number.cast_unsigned());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Moves the high bits, which are mixed best, to the low ones, which index the table.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Sum>>;
type Set<K> = HashSet<K, BuildHasherDefault<Sum>>;

/// The worlds that were reached, each with the one before.
type Reached = Map<Rc<World>, Option<Rc<World>>>;

/// Explores all reachable states. Returns the numbers of states and events.
fn explore(setting: Setting) -> (usize, usize) {
    let mut reached = Reached::default();
    let mut queue = VecDeque::new();
    let mut settled = Set::default();
    let mut events = 0;
    let start = Rc::new(World::start(setting));
    reached.insert(start.clone(), None);
    queue.push_back(start);
    while let Some(world) = queue.pop_front() {
        let ends = [world.without_accidents(), world.with_room()];
        let settles = |end| settles(end, &mut settled);
        let ends = ends.into_iter().try_for_each(settles);
        if let Err(broken) = ends.and_then(|()| world.counts_what_is_had()) {
            panic!("{broken}\n{setting:?}\n{}", history(&reached, &world));
        }
        world.events(&mut |name, next| {
            events += 1;
            if let Err(broken) = world.may_become(&next) {
                panic!(
                    "{broken}, by {name}: {next:?}\n{setting:?}\n{}",
                    history(&reached, &world)
                );
            }
            if !reached.contains_key(&next) {
                let next = Rc::new(next);
                reached.insert(next.clone(), Some(world.clone()));
                queue.push_back(next);
            }
        });
    }
    (reached.len(), events)
}

/// Runs all actors but the users, without accidents, until nothing changes any more, and checks the final state.
/// States that lead to a checked one are added to `known`.
fn settles(mut world: World, known: &mut Set<World>) -> Result<(), String> {
    let mut walk = Set::default();
    while !known.contains(&world) {
        if !walk.insert(world.clone()) {
            return Err(format!("it goes round in circles: {world:?}"));
        }
        let next = [
            Actor::Leader,
            Actor::Node,
            Actor::Binder,
            Actor::Scheduler,
            Actor::Kubelet,
            Actor::Expander,
            Actor::Other,
        ]
        .into_iter()
        .find_map(|actor| world.goes_on(actor));
        match next {
            Some(next) => {
                world.may_become(&next)?;
                world = next;
            }
            None => {
                world.at_rest()?;
                break;
            }
        }
    }
    known.extend(walk);
    Ok(())
}

fn history(reached: &Reached, last: &World) -> String {
    let mut names = Vec::new();
    let mut world = last;
    while let Some(Some(before)) = reached.get(world) {
        let mut event = String::new();
        before.events(&mut |name, next| {
            if next == *world {
                event = name.to_string();
            }
        });
        names.push(event);
        world = before;
    }
    names.reverse();
    format!("after {}\n{last:?}", names.join(", "))
}

#[test]
fn no_order_of_events_loses_data_or_leaks_storage() {
    let settings = Mutex::new(Setting::all());
    let sums = Mutex::new((0, 0));
    let explore_all = || {
        loop {
            let next = settings.lock().unwrap().next();
            let Some(setting) = next else { return };
            let found = explore(setting);
            let mut sums = sums.lock().unwrap();
            *sums = (sums.0 + found.0, sums.1 + found.1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(explore_all);
        }
    });
    let (states, events) = *sums.lock().unwrap();
    println!("decide: {states} states and {events} events of one volume in a cluster");
    assert!(states > 10_000, "only {states} states were reached");
}
