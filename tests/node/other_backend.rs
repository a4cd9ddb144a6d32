//! Volumes stay mounted while their driver gets a configuration of another backend.

use crate::{dir, executable, sandbox};
use flexvol_testing::{
    Baseline, Driver, Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, Test,
};

pub const TESTS: &[Test] = &[
    Test {
        name: "what is mounted is unmounted after the backend was changed to dir",
        needs: &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")],
        run: |points| {
            let sandbox = sandbox();
            let driver = sandbox.install("example.com/disk", false, "reserve = \"64Mi\"\n");
            unmounted(&sandbox, &driver, ("xfs", "dir"), points);
        },
    },
    Test {
        name: "dir: what is mounted is unmounted after the backend was changed to loop",
        needs: dir::BTRFS,
        run: |points| {
            let filesystem = PoolFilesystem {
                kind: "btrfs",
                mebibytes: 2048,
                quotas: true,
            };
            let sandbox = Sandbox::with_pool_on(&executable(), filesystem);
            let driver = dir::install(&sandbox, "disk", "");
            unmounted(&sandbox, &driver, ("", "loop"), points);
        },
    },
];

fn unmounted(
    sandbox: &Sandbox,
    driver: &Driver,
    (filesystem, other): (&'static str, &str),
    points: &Points,
) {
    let before = Baseline::of(sandbox);
    let volume = PersistentVolume::provision(driver, "pv", filesystem, 320 << 20);
    let pods = ["a", "b"].map(|uid| Pod::new(sandbox, driver, &volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    let pool = sandbox.pool();
    let text = format!("backend = {other:?}\n[pools.default]\npath = {pool:?}\n");
    let own = driver.executable().with_file_name(".disk.toml");
    let text_before = std::fs::read_to_string(&own).unwrap();
    let _ = sandbox.install_with(driver.name(), &text);
    for pod in &pods {
        // Twice: the caller may not have heard the first answer.
        pod.unmount().success();
        pod.unmount().success();
        points.add(1);
    }
    let _ = sandbox.install_with(driver.name(), &text_before);
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(sandbox, "deleted by its own backend");
}
