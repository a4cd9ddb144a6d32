//! The matrix of states and callouts in the documentation must match the answers of `decide`.

use crate::{
    DELETE, DELETED, NOW, UNKNOWN,
    another_name::delete_as_another,
    grow,
    model::{Directory, Disk, End, GLOBAL, Model, callout},
    mount, mount_device,
};
use flexvol_sdk::{Bytes, Filesystem};
use flexvol_storage::{Goal, mark::State, retention::Deletion};
use std::{fmt::Write, fs, path::Path, time::Duration};

pub(crate) fn ready(size: u64, device: u64, growing: bool, dirs: &[usize]) -> Model {
    let mut model = Model::provisioned(
        Disk::Filesystem {
            kind: Filesystem::Xfs,
            size,
            torn: growing,
            data: true,
        },
        true,
    );
    let (asset, mark) = model.asset.as_mut().expect("provisioned");
    *asset = device;
    mark.state = State::Ready;
    mark.format = Some(flexvol_storage::mark::Format {
        filesystem: Filesystem::Xfs,
        uuid: crate::model::uuid(),
    });
    mark.growing = growing.then_some(Bytes(device));
    for dir in dirs {
        model.mounts[*dir] = Some(Directory {
            read_only: false,
            running: *dir != GLOBAL,
        });
        model.mapped = Some(device);
    }
    model
}

fn states() -> Vec<(&'static str, Model)> {
    let marked = |state: State, disk: Disk| {
        let mut model = ready(1, 1, false, &[]);
        model.asset.as_mut().expect("ready").1.state = state;
        model.disk = disk;
        model
    };
    vec![
        ("no volume", Model::nothing(true)),
        ("blank", Model::provisioned(Disk::Zero, true)),
        ("blank, made for ext4", {
            let mut model = Model::provisioned(Disk::Zero, true);
            model.asset.as_mut().expect("provisioned").1.asked = Some(Filesystem::Ext4);
            model
        }),
        ("blank, holds data", Model::provisioned(Disk::Alien, true)),
        (
            "formatting (cut)",
            marked(State::Formatting, Disk::HalfMade),
        ),
        ("ready, idle", ready(1, 1, false, &[])),
        ("mounted here", ready(1, 1, false, &[1])),
        ("mounted in another pod", ready(1, 1, false, &[2])),
        (
            "mounted here and in another pod, and takes no writes after an error",
            Model {
                aborted: true,
                ..ready(1, 1, false, &[1, 2])
            },
        ),
        (
            "mounted on the node's directory",
            ready(1, 1, false, &[GLOBAL]),
        ),
        ("device grown, file system not", ready(1, 2, false, &[1])),
        (
            "device grown in another pod, and the kernel does not grow it mounted",
            Model {
                grows_mounted: false,
                ..ready(1, 2, true, &[2])
            },
        ),
        ("growth cut", ready(2, 2, true, &[1])),
        ("rebooted while growing", ready(1, 2, true, &[])),
        ("truncated", ready(3, 2, false, &[])),
        ("reads blank", marked(State::Ready, Disk::Zero)),
        ("holds something else", marked(State::Ready, Disk::Alien)),
        ("cannot be read", marked(State::Ready, Disk::Dead)),
        ("deleted and kept", {
            let mut model = ready(1, 1, false, &[]);
            model.asset.as_mut().expect("ready").1.deleted =
                Some(Deletion::new(&NOW, Duration::from_secs(1)));
            model
        }),
        (
            "deleting (cut)",
            marked(State::Deleting, ready(1, 1, false, &[]).disk),
        ),
    ]
}

fn goals() -> Vec<(&'static str, usize, Goal)> {
    let xfs = Filesystem::Xfs;
    vec![
        ("provision", 1, Goal::Provisioned { size: Bytes(1) }),
        ("mountdevice", GLOBAL, mount_device(Some(xfs), false)),
        (
            "mountdevice, other fsType",
            GLOBAL,
            mount_device(Some(Filesystem::Ext4), false),
        ),
        ("mount rw", 1, mount(xfs, false, false)),
        ("mount ro", 1, mount(xfs, false, true)),
        ("mount rw, growth offline", 1, mount(xfs, true, false)),
        (
            "mount, other fsType",
            1,
            mount(Filesystem::Ext4, false, false),
        ),
        ("expandvolume", 1, Goal::StorageGrown { to: Bytes(2) }),
        ("expandfs", 1, grow(2, false, false)),
        ("expandfs, growth offline", 1, grow(2, true, false)),
        ("expandfs, read-only use", 1, grow(2, false, true)),
        ("unmount", 1, Goal::Unmounted),
        ("unmountdevice", GLOBAL, Goal::Unmounted),
        ("delete", 1, DELETE),
        ("delete, and keep", 1, DELETED),
        ("delete, called by another name", 1, delete_as_another()),
        ("delete, configuration lost", 1, UNKNOWN),
        ("`flexvol gc` after its time", 1, Goal::Gone),
        ("`flexvol undelete`", 1, Goal::Restored),
    ]
}

fn cell(model: &Model, dir: usize, goal: &Goal) -> String {
    let steps = |steps: Vec<flexvol_storage::decide::Step>| {
        let names: Vec<_> = steps
            .iter()
            .map(flexvol_storage::decide::Step::name)
            .collect();
        names.join(", ")
    };
    match callout(model, dir, goal) {
        End::Success(_, done) if done.is_empty() => "S".to_owned(),
        End::Success(_, done) => format!("S: {}", steps(done)),
        End::Refused(kind, _, done) if done.is_empty() => format!("**F** {kind:?}"),
        End::Refused(kind, _, done) => format!("**F** {kind:?} after {}", steps(done)),
        End::NoProgress => panic!("{goal:?} makes no progress from {model:?}"),
    }
}

fn document() -> String {
    let goals = goals();
    let mut text = String::from(
        "# What every callout does in every state\n\n\
         Generated from `decide` by `crates/storage/tests/decide` (`FLEXVOL_BLESS=1 cargo test -p flexvol-storage` writes it anew); do not edit.\n\n\
         A volume of size 1 is asked to be at least 2 by the growing callouts. **S** is Success, with the steps done on the way;\n\
         **F** is Failure with its kind, and everything is as it was.\n\n",
    );
    for (name, model) in states() {
        writeln!(text, "## {name}\n\n| callout | outcome |\n|---|---|").expect("a string");
        for (callout, dir, goal) in &goals {
            writeln!(text, "| {callout} | {} |", cell(&model, *dir, goal)).expect("a string");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[test]
fn the_matrix_in_the_documents_is_what_decide_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/callout-states.md");
    let document = document();
    if std::env::var_os("FLEXVOL_BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("docs")).expect("make docs");
        fs::write(&path, &document).expect("write the matrix");
    }
    let written = fs::read_to_string(&path).expect("read the matrix");
    assert!(
        written == document,
        "docs/reference/callout-states.md is not what decide answers; run with FLEXVOL_BLESS=1"
    );
}
