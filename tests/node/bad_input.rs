//! What a caller, a user or a broken node may send: one failure that a person can act on, and
//! nothing is changed.

use crate::sandbox;
use flexvol_testing::{
    Baseline, Call, Driver, Need, Outcome, PersistentVolume, Pod, Points, Sandbox, Test, json,
    request,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, symlink},
    },
    path::Path,
    process::Command,
};

const NEEDS: &[Need] = &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")];

pub const TESTS: &[Test] = &[
    test("arguments that mean nothing change nothing", arguments),
    test(
        "names and sizes that cannot be are refused",
        names_and_sizes,
    ),
    test("another tenant's volume is not mounted", tenants),
    test(
        "a volume that is not what its mark says is left alone",
        contents,
    ),
    test("a directory that is in use is not mounted on", directories),
    test(
        "a full pool refuses, and its neighbours keep writing",
        full_pool,
    ),
    test("a pool that is read-only, gone or unknown is named", pools),
    test(
        "an image that was deleted or is used elsewhere is told",
        images,
    ),
    test("what the node lacks is named", lacking_node),
    test(
        "what somebody made of a volume that was being formatted is left alone",
        formatted_by_hand,
    ),
    test(
        "no stdin, no environment and no log are no reason to fail",
        bare_process,
    ),
];

const fn test(name: &'static str, run: fn(&Points)) -> Test {
    Test {
        name,
        needs: NEEDS,
        run,
    }
}

const MEBI: u64 = 1 << 20;
const SIZE: u64 = 300 * MEBI;
/// Small enough to be hashed often.
const SMALL: u64 = 32 * MEBI;
const UID: &str = "0b1e55ed-0000-4000-8000-000000000001";

struct Place {
    sandbox: Sandbox,
    driver: Driver,
}

impl Place {
    fn new() -> Self {
        let sandbox = sandbox();
        let driver = sandbox.install("example.com/loop", false, "");
        Place { sandbox, driver }
    }

    fn volume(&self, name: &str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, name, "xfs", SIZE)
    }

    fn pod<'a>(&'a self, volume: &'a PersistentVolume) -> Pod<'a> {
        Pod::new(&self.sandbox, &self.driver, volume, UID)
    }

    /// A volume that was mounted once, so that it is formatted.
    fn formatted(&self, name: &str) -> PersistentVolume {
        let volume = self.volume(name);
        self.pod(&volume).mount("rw").success();
        self.pod(&volume).unmount().success();
        volume
    }

    /// The call fails, says each of `words`, and leaves everything as it is.
    #[track_caller]
    fn refuses<S: AsRef<str>>(&self, argv: &[S], words: &[&str], points: &Points) {
        let argv: Vec<_> = argv.iter().map(AsRef::as_ref).collect();
        self.refuses_in(|driver| driver.call(&argv), words, points);
    }

    #[track_caller]
    fn refuses_in(&self, call: impl FnOnce(&Driver) -> Call, words: &[&str], points: &Points) {
        let before = Baseline::of(&self.sandbox);
        let call = call(&self.driver);
        says(&call, words);
        let nothing = before.difference(&Baseline::of(&self.sandbox));
        assert!(nothing.is_empty(), "{call}\n{nothing}");
        points.add(1);
    }
}

#[track_caller]
fn says(call: &Call, words: &[&str]) {
    let message = call.failure();
    for word in words {
        assert!(message.contains(word), "no {word:?}: {call}");
    }
    for private in ["/run/", "/dev/", "/proc/", "panicked"] {
        assert!(
            !message.contains(private),
            "{private:?} is for the log: {call}"
        );
    }
}

fn arguments(points: &Points) {
    let place = Place::new();
    let volume = place.volume("pv");
    let good = volume.json("rw");
    let dir = place.sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let lines: &[&[&str]] = &[
        &["mount"],
        &["mount", dir],
        &["mount", dir, &good, "extra"],
        &["mount", "relative", &good],
        &["mount", "", &good],
        &["init", "extra"],
        &["unmount"],
        &["unmount", dir, "extra"],
        &["unmount", "relative"],
        &["expandfs", &good, "", dir, "1"],
        &["expandfs", &good, "", dir, "1", "1", "extra"],
        &["expandfs", "1", "1", "1"],
        &["provision"],
        &["delete", &good, "extra"],
        &["attach", &good],
    ];
    for line in lines {
        place.refuses(line, &[], points);
    }
    let name = r#""kubernetes.io/pvOrVolumeName":"pv""#;
    for text in [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "\"text\"".to_owned(),
        format!("{{{name}}} trailing"),
        format!("{{{name},{name}}}"),
        format!(r#"{{{name},"requestBytes":314572800}}"#),
        format!(r#"{{{name},"pool":null}}"#),
        format!(r#"{{{name},"pool":{{"a":"b"}}}}"#),
        format!(r#"{{{name},"pool":true}}"#),
    ] {
        for callout in ["provision", "delete"] {
            place.refuses(&[callout, &text], &[], points);
        }
        place.refuses(&["mount", dir, &text], &[], points);
    }
    let colour = volume.json_with("rw", &[("colour", "red"), ("requestBytes", "314572800")]);
    place.refuses(&["mount", dir, &colour], &["colour"], points);
    place.refuses(&["provision", &colour], &["colour"], points);
    let invalid = OsStrExt::from_bytes(b"{\"kubernetes.io/pvOrVolumeName\":\"\xff\"}");
    let call = place.driver.call(&[OsStr::new("provision"), invalid]);
    says(&call, &[]);
}

fn names_and_sizes(points: &Points) {
    let place = Place::new();
    let long = "a".repeat(254);
    for name in [
        "",
        ".",
        "..",
        "../pv",
        "a/b",
        "/etc/shadow",
        "-pv",
        "--help",
        "pv\n",
        "pv\0",
        "pv\u{202e}",
        "PV",
        "p v",
        "pv;reboot",
        "$(reboot)",
        &long,
    ] {
        place.refuses(&["provision", &request(name, SIZE)], &[], points);
        place.refuses(&["delete", &request(name, SIZE)], &[], points);
    }
    for size in [
        "0",
        "-1",
        "-314572800",
        "18446744073709551615",
        "18446744073709551616",
        "1e30",
        "9223372036854775807",
        "nonsense",
        "",
        "0x10",
        "314572800.5x",
        "1 Gi",
    ] {
        let asked = json([
            ("kubernetes.io/pvOrVolumeName", "pv"),
            ("requestBytes", size),
        ]);
        place.refuses(&["provision", &asked], &[], points);
    }
    let volume = place.formatted("real");
    let pod = place.pod(&volume);
    pod.mount("rw").success();
    let smaller = pod.expand_arguments(SIZE - 1, SIZE);
    place.refuses(&smaller, &["300Mi"], points);
    for size in ["0", "-1", "99999999999999999999", "", "1Gi", "0x1"] {
        let mut line = pod.expand_arguments(SIZE, SIZE);
        size.clone_into(&mut line[4]);
        place.refuses(&line, &[], points);
    }
    let wanted = pod.expand_arguments(1 << 50, SIZE);
    place.refuses(&wanted, &["1Pi"], points);
    pod.unmount().success();
    let filesystem = json([
        ("kubernetes.io/fsType", "vfat"),
        ("kubernetes.io/pvOrVolumeName", "other"),
        ("requestBytes", "314572800"),
    ]);
    place.refuses(&["provision", &filesystem], &["vfat"], points);
}

fn tenants(points: &Points) {
    let place = Place::new();
    let volume = place.formatted("pv");
    let dir = place.sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let mine = pod_of("default");
    let theirs = pod_of("theirs");
    place.refuses(
        &["mount", dir, &volume.json_with("rw", &theirs)],
        &[],
        points,
    );
    // No pod at all: the claim's namespace cannot be compared.
    place.refuses(&["mount", dir, &volume.json("rw")], &[], points);
    let guessed = |handle: &str| {
        let options = BTreeMap::from([
            ("handle".to_owned(), handle.to_owned()),
            ("pool".to_owned(), "default".to_owned()),
        ]);
        PersistentVolume {
            options,
            ..volume.clone()
        }
    };
    let zeros = "0".repeat(32);
    let longer = format!("{}0", volume.handle());
    let shouted = volume.handle().to_uppercase();
    let climbing = format!("../volumes/{}", volume.id());
    for handle in [
        &zeros,
        "",
        "..",
        &longer,
        &shouted,
        &climbing,
        &volume.handle()[..31],
    ] {
        let line = ["mount", dir, &guessed(handle).json_with("rw", &mine)];
        place.refuses(&line, &[], points);
    }
    // A pod's author names an inline volume as he likes, but has no handle.
    let mut named = volume.clone();
    named.options.remove("handle");
    place.refuses(&["mount", dir, &named.json_with("rw", &mine)], &[], points);
    let call = place
        .driver
        .call(&["mount", dir, &named.json_with("rw", &theirs)]);
    assert!(!call.failure().contains(volume.handle()), "{call}");
}

/// What `mount` is told of a pod in this namespace.
fn pod_of(namespace: &str) -> [(&str, &str); 3] {
    [
        ("kubernetes.io/pod.name", "pod"),
        ("kubernetes.io/pod.namespace", namespace),
        ("kubernetes.io/pod.uid", UID),
    ]
}

fn contents(points: &Points) {
    let place = Place::new();
    let make = |name| {
        let request = json([
            ("kubernetes.io/fsType", "ext4"),
            ("kubernetes.io/pvOrVolumeName", name),
            ("kubernetes.io/pvc.namespace", "default"),
            ("requestBytes", &SMALL.to_string()),
        ]);
        let call = place.driver.call(&["provision", &request]).success();
        PersistentVolume::from_reply(name, "ext4", &call)
    };
    let formatted = make("formatted");
    place.pod(&formatted).mount("rw").success();
    place.pod(&formatted).unmount().success();
    let mut asked = formatted.clone();
    asked.filesystem = "xfs";
    let dir = place.sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let pod = pod_of("default");
    let mount = |volume: &PersistentVolume| {
        vec![
            "mount".to_owned(),
            dir.to_owned(),
            volume.json_with("rw", &pod),
        ]
    };
    place.refuses(&mount(&asked), &["xfs", "ext4"], points);

    type Spoil = fn(&File);
    let spoils: [(&str, Spoil); 3] = [
        ("random", |image| {
            image.write_all_at(b"somebody's data", 7 << 20).unwrap()
        }),
        ("last", |image| image.write_all_at(&[1], SMALL - 1).unwrap()),
        ("partitions", |image| {
            image
                .write_all_at(&[0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 9], 446)
                .unwrap();
            image.write_all_at(&[0x55, 0xaa], 510).unwrap();
        }),
    ];
    for (name, spoil) in spoils {
        let volume = make(name);
        let path = volume.image(&place.sandbox);
        spoil(&File::options().write(true).open(&path).unwrap());
        let before = digest(&path);
        place.refuses(&mount(&volume), &[], points);
        assert_eq!(digest(&path), before, "{name}");
    }
    // A formatted one that lost its superblock, or its end, is no blank one.
    let path = formatted.image(&place.sandbox);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let mut head = [0; 4096];
    image.read_exact_at(&mut head, 0).unwrap();
    image.write_all_at(&[0; 4096], 0).unwrap();
    let before = digest(&path);
    place.refuses(&mount(&formatted), &[], points);
    image.write_all_at(&head, 0).unwrap();
    image.set_len(SMALL / 2).unwrap();
    place.refuses(&mount(&formatted), &[], points);
    image.set_len(SMALL).unwrap();
    assert_ne!(digest(&path), before);
}

fn digest(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

fn directories(points: &Points) {
    let place = Place::new();
    let volume = place.formatted("pv");
    let pod = place.pod(&volume);
    let line = pod.mount_arguments("rw");
    fs::write(pod.dir().join("precious"), "data").unwrap();
    place.refuses(&line, &["empty"], points);
    fs::remove_file(pod.dir().join("precious")).unwrap();

    let status = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(pod.dir())
        .status();
    assert!(status.unwrap().success());
    place.refuses(&line, &[], points);
    assert!(
        Command::new("umount")
            .arg(pod.dir())
            .status()
            .unwrap()
            .success()
    );

    fs::remove_dir(pod.dir()).unwrap();
    let elsewhere = place.sandbox.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, pod.dir()).unwrap();
    place.refuses(&line, &[], points);
    fs::remove_file(pod.dir()).unwrap();
    fs::write(pod.dir(), "a file").unwrap();
    place.refuses(&line, &[], points);
    fs::remove_file(pod.dir()).unwrap();
    // What is not there is not mounted.
    let gone = ["unmount", pod.dir().to_str().unwrap()];
    place.driver.call(&gone).success();
}

fn full_pool(points: &Points) {
    const RESERVE: u64 = 64 * MEBI;
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, "reserve = \"64Mi\"");
    let place = Place { sandbox, driver };
    let volume = place.formatted("pv");
    let pod = place.pod(&volume);
    pod.mount("rw").success();
    let filler = place.sandbox.fill_disk(RESERVE + 20 * MEBI);
    // The name is there already, so that the repetition meets it: a link without blocks.
    let call = place.driver.call(&["provision", &request("new", SIZE)]);
    says(&call, &["300Mi"]);
    assert_eq!(call.text("errorClass"), "exhausted");
    place.refuses(
        &pod.expand_arguments(SIZE + 40 * MEBI, SIZE),
        &["340Mi"],
        points,
    );
    // Preallocated: what the volume has, nobody can take.
    let file = pod.dir().join("file");
    fs::write(&file, vec![7; 100 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let neighbour = File::create(place.sandbox.disk().join("neighbour")).unwrap();
    neighbour.write_all_at(&vec![7; 40 << 20], 0).unwrap();
    neighbour.sync_all().unwrap();
    fs::remove_file(filler).unwrap();
    place
        .driver
        .call(&pod.expand_arguments(SIZE + 40 * MEBI, SIZE))
        .success();
    pod.unmount().success();
}

fn pools(points: &Points) {
    let place = Place::new();
    let volume = place.formatted("pv");
    let pod = place.pod(&volume);
    let line = pod.mount_arguments("rw");
    let elsewhere = json([
        ("kubernetes.io/pvOrVolumeName", "new"),
        ("pool", "elsewhere"),
        ("requestBytes", "314572800"),
    ]);
    place.refuses(&["provision", &elsewhere], &["elsewhere"], points);

    let disk = place.sandbox.disk();
    let remount = |options: &str| {
        let status = Command::new("mount")
            .args(["-o", options])
            .arg(&disk)
            .status();
        assert!(status.unwrap().success(), "mount -o {options}");
    };
    remount("remount,ro");
    place.refuses(&["provision", &request("new", SIZE)], &[], points);
    place.refuses(&["delete", &volume.json("rw")], &[], points);
    place.refuses(&line, &[], points);
    remount("remount,rw");

    let id = place.sandbox.pool().join(".flexvol-pool");
    let aside = place.sandbox.disk().join("id");
    fs::rename(&id, &aside).unwrap();
    let lines: [&[&str]; 3] = [
        &["provision", &request("new", SIZE)],
        &["delete", &volume.json("rw")],
        &["capacity", "{}"],
    ];
    for line in lines {
        place.refuses(line, &["pool", "not mounted"], points);
    }
    place.refuses(&line, &["pool", "not mounted"], points);
    fs::rename(&aside, &id).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
}

fn images(points: &Points) {
    let place = Place::new();
    let volume = place.formatted("pv");
    let pod = place.pod(&volume);
    let image = volume.image(&place.sandbox);
    // A person looks at the volume by hand.
    let by_hand = place.sandbox.path("by-hand");
    fs::create_dir(&by_hand).unwrap();
    let mounted = Command::new("mount")
        .args(["-o", "loop"])
        .args([&image, &by_hand])
        .status();
    assert!(mounted.unwrap().success());
    place.refuses(&["delete", &volume.json("rw")], &[], points);
    assert!(
        Command::new("umount")
            .arg(&by_hand)
            .status()
            .unwrap()
            .success()
    );

    pod.mount("rw").success();
    place.refuses(&["delete", &volume.json("rw")], &["use"], points);
    let kept = place.sandbox.disk().join("kept");
    fs::hard_link(&image, &kept).unwrap();
    fs::remove_file(&image).unwrap();
    place.refuses(&pod.expand_arguments(SIZE + 16 * MEBI, SIZE), &[], points);
    let second = Pod::new(
        &place.sandbox,
        &place.driver,
        &volume,
        "0b1e55ed-0000-4000-8000-000000000002",
    );
    place.refuses(&second.mount_arguments("rw"), &[], points);
    pod.unmount().success();
    fs::rename(&kept, &image).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
}

fn lacking_node(points: &Points) {
    let place = Place::new();
    let volume = place.volume("pv");
    let pod = place.pod(&volume);
    let line = pod.mount_arguments("rw");
    let without = ["/usr/bin/setpriv", "--bounding-set", "-sys_admin"];
    let call = |driver: &Driver| driver.call_through(&without, &line);
    place.refuses_in(call, &["CAP_SYS_ADMIN"], points);
    // Nobody can execute what is there.
    let nothing = "mount --bind /dev/null /usr/sbin/mkfs.xfs";
    let call = |driver: &Driver| driver.call_where(nothing, &line);
    place.refuses_in(call, &["mkfs.xfs", "xfsprogs"], points);
    pod.mount("rw").success();
    pod.unmount().success();
}

/// Between the mark that it is being formatted and a file system a person may lend a hand.
fn formatted_by_hand(points: &Points) {
    let place = Place::new();
    let volume = place.volume("pv");
    let pod = place.pod(&volume);
    let failing = "mount --bind /bin/false /usr/sbin/mkfs.xfs";
    place
        .driver
        .call_where(failing, &pod.mount_arguments("rw"))
        .failure();
    let image = volume.image(&place.sandbox);
    let made = Command::new("mkfs.xfs").arg("-q").arg(&image).status();
    assert!(made.unwrap().success());
    let before = fs::read(&image).unwrap();
    for _ in 0..2 {
        says(&pod.mount("rw"), &["somebody else", "xfs"]);
        assert!(fs::read(&image).unwrap() == before, "it was changed");
        points.add(1);
    }
    let wiped = Command::new("wipefs")
        .args(["-a", "-q"])
        .arg(&image)
        .status();
    assert!(wiped.unwrap().success());
    pod.mount("rw").success();
    pod.unmount().success();
    points.add(1);
}

fn bare_process(points: &Points) {
    let place = Place::new();
    let volume = place.volume("pv");
    let pod = place.pod(&volume);
    let line = pod.mount_arguments("rw");
    for (script, argv) in [
        ("exec \"$@\" <&-", &line),
        ("cd /proc/self; exec \"$@\" <&-", &line),
    ] {
        let call = place
            .driver
            .call_through(&["/bin/sh", "-c", script, "sh"], argv);
        assert_eq!(call.outcome(), Outcome::Success, "{script}: {call}");
        points.add(1);
    }
    pod.unmount().success();
    let broken = place
        .driver
        .call_through(&["/bin/sh", "-c", "exec \"$@\" <&-", "sh"], &["mount"]);
    says(&broken, &[]);
}
