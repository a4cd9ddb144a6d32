//! Tests of the driver and its crates with real loop devices, mounts and file systems. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "time-boxed tests print how far they came"
)]

mod adopt;
mod anywhere;
mod bad_input;
mod bench;
mod by_hand;
mod by_name;
mod callouts;
mod copied;
mod copy_on_write;
mod cut_resize;
mod dead_disk;
mod dead_server;
mod demo;
mod dir;
mod encrypted;
#[path = "../examples/mod.rs"]
mod examples;
mod failing_disk;
mod format_guard;
mod frozen;
mod full;
mod full_metadata;
mod gc;
mod guards;
mod host_exec;
mod host_grow;
mod host_lock;
mod host_loop;
mod host_mount;
mod host_pool;
mod host_probe;
mod hostile;
mod kept;
mod lifecycle;
mod lvm;
mod meddling;
mod node;
mod offline;
mod orphan;
mod other_backend;
mod other_disk;
mod people;
mod pieces;
mod plain_directory;
mod pool_space;
mod promised;
mod readable;
#[path = "../recordings/mod.rs"]
mod recordings;
mod refused_format;
mod renamed;
mod replay;
mod restarts;
mod same_uuid;
mod scarcity;
mod secrets;
mod service;
mod silenced;
mod silent_disk;
mod silent_pool;
mod spec;
mod storm;
mod story;
mod strangers;
mod tables;
mod terminal;
mod thousand;
mod torn;
mod torn_descriptors;
mod wrapper;

use flexvol_testing::{PoolFilesystem, Sandbox, Test, older_kernel, run_layer};
use std::{path::PathBuf, process::ExitCode};

/// Tests whose result depends on the kernel: how a file system is mounted, a loop device attached, a path of the
/// pool opened, a process started, and a quota set.
const BY_KERNEL: &[&[Test]] = &[
    adopt::TESTS,
    adopt::left_alone::TESTS,
    adopt::shared::TESTS,
    dir::beside::SERVED,
    dir::beside::TESTS,
    dir::damage::BTRFS,
    dir::damage::TESTS,
    dir::damage::XFS,
    dir::limits::PROJECTS,
    dir::limits::TESTS,
    dir::pool::PROJECTS,
    dir::pool::TESTS,
    dir::privileged::TESTS,
    dir::removal::BTRFS,
    dir::removal::TESTS,
    plain_directory::TESTS,
    plain_directory::removal::TESTS,
    encrypted::TESTS,
    failing_disk::TESTS,
    frozen::TESTS,
    full_metadata::TESTS,
    gc::TESTS,
    guards::TESTS,
    host_grow::TESTS,
    host_loop::TESTS,
    host_loop::beside::TESTS,
    host_mount::TESTS,
    host_mount::unmount::TESTS,
    host_pool::TESTS,
    host_pool::images::TESTS,
    host_pool::space::TESTS,
    kept::TESTS,
    anywhere::KILLED,
    offline::TESTS,
    orphan::TESTS,
    other_backend::TESTS,
    lifecycle::images::TESTS,
    lifecycle::attached::TESTS,
    restarts::TESTS,
    same_uuid::TESTS,
    scarcity::TESTS,
    torn::TESTS,
    torn_descriptors::TESTS,
    people::TESTS,
    promised::TESTS,
    promised::metadata::TESTS,
    copied::TESTS,
    copy_on_write::TESTS,
    cut_resize::TESTS,
    dead_disk::TESTS,
    dead_server::TESTS,
    silenced::TESTS,
    silent_pool::TESTS,
    pieces::TESTS,
    anywhere::REFUSED,
];

/// Tests that depend on the kernel, for several backends.
const STORIES: &[&[&[Test]]] = &[
    anywhere::STORIES,
    failing_disk::STORIES,
    kept::STORIES,
    gc::STORIES,
    lifecycle::STORIES,
    lifecycle::attached::STORIES,
    offline::STORIES,
    other_backend::STORIES,
    plain_directory::STORIES,
    plain_directory::removal::STORIES,
    restarts::STORIES,
];

/// The other tests, which run only on the current kernel.
const OTHERS: &[&[Test]] = &[
    bad_input::node::TESTS,
    bad_input::volume::TESTS,
    by_hand::TESTS,
    by_name::TESTS,
    demo::TESTS,
    format_guard::TESTS,
    hostile::TESTS,
    host_exec::TESTS,
    host_lock::TESTS,
    host_lock::orphan::TESTS,
    host_probe::TESTS,
    kept::lost::TESTS,
    kept::refused::TESTS,
    meddling::TESTS,
    other_disk::TESTS,
    other_disk::above::TESTS,
    promised::beside::TESTS,
    refused_format::TESTS,
    renamed::TESTS,
    replay::TESTS,
    secrets::TESTS,
    service::TESTS,
    spec::TESTS,
    storm::TESTS,
    strangers::TESTS,
    tables::TESTS,
    terminal::TESTS,
    thousand::TESTS,
];

fn main() -> ExitCode {
    let mut tests = [BY_KERNEL, &STORIES.concat()].concat();
    if !older_kernel() {
        tests.extend(OTHERS);
        tests.extend(bad_input::STORIES);
        tests.extend(bad_input::node::STORIES);
        tests.extend(storm::STORIES);
        tests.extend(readable::STORIES);
        tests.extend(full::STORIES);
        tests.extend(pool_space::STORIES);
        tests.extend(lvm::tests());
        tests.extend(lvm::killed::STORIES);
    }
    run_layer("node", &tests)
}

/// The driver's executable.
fn executable() -> PathBuf {
    flexvol_testing::executable(env!("CARGO_BIN_EXE_flexvol"))
}

fn sandbox() -> Sandbox {
    Sandbox::new(&executable())
}

/// A sandbox with its pool on a file system of this kind and size.
fn sandbox_with(filesystem: PoolFilesystem) -> Sandbox {
    Sandbox::with_pool_on(&executable(), filesystem)
}
