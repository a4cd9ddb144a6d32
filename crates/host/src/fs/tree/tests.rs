use super::*;
use std::{fs, os::unix::fs::symlink, path::Path};

const LONG: Duration = Duration::from_secs(60);

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_tree_goes_and_what_it_links_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let parent = File::open(dir.path()).unwrap();
    let other = dir.path().join("other");
    fs::create_dir_all(other.join("sub")).unwrap();
    fs::write(other.join("sub/file"), "kept").unwrap();
    let tree = dir.path().join("tree");
    for sub in ["a/b/c", "a/b/d/e", ".lifted-1/x", "empty"] {
        fs::create_dir_all(tree.join(sub)).unwrap();
        fs::write(tree.join(sub).join("file"), "gone").unwrap();
    }
    fs::write(tree.join(".lifted-2"), "a file in the way").unwrap();
    for (at, link) in ["up", "a/up", "a/b/c/up"].iter().enumerate() {
        symlink("../".repeat(at + 1) + "other", tree.join(link)).unwrap();
        symlink(&other, tree.join(format!("{link}-absolute"))).unwrap();
    }
    remove(&parent, "tree", LONG).unwrap();
    assert_eq!(names(dir.path()), ["other"]);
    assert_eq!(fs::read(other.join("sub/file")).unwrap(), b"kept");
    remove(&parent, "tree", LONG).unwrap();
}

#[test]
fn depth_costs_neither_stack_nor_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let parent = File::open(dir.path()).unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let mut at = File::open(dir.path().join("tree")).unwrap();
    // Deeper than any path can express.
    for _ in 0..2500 {
        rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).unwrap();
        at = open(&at, c"d").unwrap().unwrap();
    }
    drop(at);
    remove(&parent, "tree", LONG).unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn what_cannot_be_moved_goes_from_the_deepest_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tree");
    fs::create_dir_all(path.join("a/empty")).unwrap();
    symlink("/", path.join("a/link")).unwrap();
    let mut at = File::open(&path).unwrap();
    for depth in 0..2500 {
        let name = if depth % 2 == 0 { "d" } else { "e" };
        let other = if depth % 2 == 0 { "e" } else { "d" };
        for name in [name, other] {
            rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
        }
        rustix::fs::symlinkat("/", &at, "link").unwrap();
        at = confine::open(&at, name, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    }
    drop(at);
    let top = File::open(&path).unwrap();
    let mut removal = Removal {
        end: Instant::now() + LONG,
        moved_up: 0,
        root: &top,
    };
    removal.remove_bottom_up(top.try_clone().unwrap()).unwrap();
    assert_eq!(removal.moved_up, 0, "nothing was moved");
    assert_eq!(names(&path), [""; 0]);
}

#[test]
fn a_removal_that_ran_out_of_time_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let parent = File::open(dir.path()).unwrap();
    for sub in 0..50 {
        let sub = dir.path().join(format!("tree/{sub}/deep"));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join("file"), "gone").unwrap();
    }
    let error = remove(&parent, "tree", Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(names(dir.path()), ["tree"]);
    remove(&parent, "tree", LONG).unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn only_a_directory_of_the_parent_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let parent = File::open(dir.path()).unwrap();
    fs::create_dir_all(dir.path().join("other/sub")).unwrap();
    symlink("other", dir.path().join("link")).unwrap();
    for name in ["link", "other/sub", "..", "."] {
        assert!(remove(&parent, name, LONG).is_err(), "{name}");
    }
    assert_eq!(names(dir.path()), ["link", "other"]);
    assert_eq!(names(&dir.path().join("other")), ["sub"]);
}
