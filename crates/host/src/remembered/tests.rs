use super::*;
use tempfile::TempDir;

const WORDS: Words<'_> = Words {
    another: "another one has",
    disks: "where are the disks",
    again: "`again`",
};

fn id(digit: &str) -> PoolId {
    PoolId::parse(&digit.repeat(32)).unwrap()
}

/// A node with these records: digits of ids, each perhaps with the device number of a record in memory.
fn node<'a>(texts: [&str; 2], root: Option<Root<'a>>) -> (TempDir, Record<'a>) {
    let place = tempfile::tempdir().unwrap();
    let directories = ["etc", "var"].map(|name| place.path().join(name));
    for (directory, text) in directories.iter().zip(texts) {
        fs::create_dir(directory).unwrap();
        if let Some((digit, rest)) = text.split_at_checked(1) {
            let text = format!("{}{rest}\n", digit.repeat(32));
            fs::write(directory.join("pool"), text).unwrap();
        }
    }
    let directories = directories.map(|it| &*it.display().to_string().leak());
    let directories = Box::leak(Box::new(directories));
    (place, Record::at(directories, "pool".to_owned(), root))
}

#[test]
fn of_records_that_contradict_each_other_the_one_that_cannot_be_of_what_lies_below_counts() {
    // The pool that is found is on its own file system there.
    let opened = File::open("/proc").unwrap();
    let device = |path: &str| fs::metadata(path).unwrap().dev();
    let [below, same] = ["/", "/proc"].map(|path| format!("2 {}", device(path)));
    // Whether `1` is accepted, and if so, whether nothing is to be written.
    for (etc, var, expected) in [
        ("1", "1", Some(true)),
        ("1", "", Some(true)),
        ("", "1", Some(false)),
        ("", "", Some(false)),
        // Both survive reboots.
        ("1", "2", Some(true)),
        ("2", "1", None),
        // The pool below was found before the disk was there.
        (below.as_str(), "1", Some(false)),
        // The disk was exchanged, or is missing.
        (same.as_str(), "1", None),
        ("2 1", "1", None),
        ("1 1", "2", None),
        // Nothing that survives.
        (below.as_str(), "", None),
        ("1 1", "", Some(false)),
        ("1 1", "1 1", Some(true)),
        (below.as_str(), "1 1", None),
    ] {
        let root = Root {
            path: "/proc".into(),
            opened: &opened,
        };
        let (_place, record) = node([etc, var], Some(root));
        let seen = record.expect(id("1"), &WORDS);
        assert_eq!(seen.ok(), expected, "{etc:?} and {var:?}");
        let contradict = etc.starts_with('1') && var.starts_with('2')
            || etc.starts_with('2') && var.starts_with('1');
        assert_eq!(record.contradiction().is_some(), contradict);
        if expected.is_some() {
            record.keep_first(id("1")).unwrap();
            assert!(record.expect(id("1"), &WORDS).unwrap());
            assert_eq!(record.read(None).unwrap(), Some(id("1")));
        }
    }
}

#[test]
fn of_a_group_the_record_that_survives_counts() {
    for (texts, expected) in [
        (["2 0", "1"], Some(false)),
        (["1 0", "2"], None),
        (["1 0", "1"], Some(true)),
        (["2 0", ""], None),
    ] {
        let (_place, record) = node(texts, None);
        let seen = record.expect(id("1"), &WORDS);
        assert_eq!(seen.ok(), expected, "{texts:?}");
    }
}

#[test]
fn what_is_no_record_is_damaged() {
    for text in ["x", "1 x", "1x"] {
        let (_place, record) = node([text, "1"], None);
        let error = record.expect(id("1"), &WORDS).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{text}: {error}");
    }
}

#[test]
fn a_record_in_memory_says_so() {
    let memory = Path::new("/dev/shm");
    if !File::open(memory).is_ok_and(|it| is_in_memory(&it).unwrap()) {
        return;
    }
    let place = tempfile::tempdir_in(memory).unwrap();
    let directory: &str = place.path().display().to_string().leak();
    let record = Record::at(Box::leak(Box::new([directory])), "pool".to_owned(), None);
    record.keep_first(id("1")).unwrap();
    let text = fs::read_to_string(record.paths().next().unwrap()).unwrap();
    assert_eq!(text, format!("{} 0\n", id("1")));
    assert_eq!(record.surviving().count(), 0);
}
