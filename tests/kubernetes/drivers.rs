//! Drivers are installed, changed and removed while pods use their volumes.

use crate::{objects::pod, scenario::Scenario};
use flexvol_lab::kubernetes::PLUGINS;
use flexvol_testing::{Need, Points, tests};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

tests! {
    "a driver upgraded under a pod grows its volume and unmounts it", &[Need::Root] => upgraded;
    "a pod whose driver is missing says so, and starts by itself when it is installed", &[Need::Root]
        => missing;
    "a driver in use is not uninstalled, and one removed by hand is missed only until it is back", &[Need::Root]
        => removed;
}

/// A driver that kubelet calls without a forwarder.
const OTHER: &str = "lab.example/other";

/// A driver that is installed as an operator does. Uninstalled on drop.
struct Driver<'a>(&'a Scenario);

impl<'a> Driver<'a> {
    fn install(scenario: &'a Scenario) -> Self {
        let driver = Driver(scenario);
        driver.install_by("flexvol");
        driver
    }

    #[track_caller]
    fn install_by(&self, executable: &str) {
        let config = ["--config", "/var/lib/lab/driver.toml"];
        let lab = self.0.lab();
        lab.run(
            executable,
            &[&["install", "--name", OTHER], &config[..]].concat(),
        );
    }

    fn uninstall(&self) -> Result<String, String> {
        let mut command = self.0.lab().cluster().node().command("flexvol");
        flexvol_lab::kubernetes::run(command.args(["uninstall", "--name", OTHER]))
            .map_err(|error| error.to_string())
    }

    fn home(&self) -> PathBuf {
        let plugins = self.0.lab().cluster().file(PLUGINS);
        plugins.join(OTHER.replace('/', "~"))
    }

    /// Makes a volume of the driver, and its claim.
    #[track_caller]
    fn volume(&self, name: &str) {
        let size = ["--size", "320Mi", "--with-storage-class", "--driver", OTHER];
        let lab = self.0.lab();
        lab.apply_text(&lab.run("flexvol", &[&["create", name], &size[..]].concat()));
        self.0.eventually("the claim to be bound", || {
            self.0.claim("default", name)["status"]["phase"] == "Bound"
        });
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // kubelet needs the driver to unmount the pod's volume. The next scenario ignores it.
            self.install_by("flexvol");
        } else {
            self.0
                .eventually("the driver to be unused", || self.uninstall().is_ok());
        }
    }
}

fn upgraded(_: &Points) {
    let scenario = Scenario::begin();
    let driver = Driver::install(&scenario);
    driver.volume("upgraded");
    let app = pod("app", "upgraded");
    scenario.run_pod(&app);
    scenario.exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
    let sum = scenario.exec(&app, "sha256sum /data/file");
    let before = scenario.size_in(&app);
    let inode = || fs::metadata(driver.home().join("other")).unwrap().ino();
    let old = inode();

    let file = |path: &str| scenario.lab().cluster().file(path);
    let newer = file("/usr/local/bin/newer");
    fs::copy(file("/usr/local/bin/flexvol"), &newer).unwrap();
    let mut more = File::options().append(true).open(&newer).unwrap();
    more.write_all(b"a later build").unwrap();
    drop(more);
    driver.install_by("newer");
    assert_ne!(inode(), old);

    scenario.ask_for("upgraded", 640);
    scenario.wait_grown("upgraded", 640);
    assert_eq!(scenario.size_in(&app) - before, 320);
    assert_eq!(scenario.exec(&app, "sha256sum /data/file"), sum);
    scenario.delete_pod(&app);
    scenario.eventually("the pod's directories to go", || scenario.no_pods_on_disk());
    drop(driver);
    fs::remove_file(newer).unwrap();
    scenario.end();
}

fn missing(_: &Points) {
    let scenario = Scenario::begin();
    let driver = Driver::install(&scenario);
    driver.volume("orphan");
    driver.uninstall().unwrap();
    let app = pod("app", "orphan");
    scenario.apply(std::slice::from_ref(&app));
    scenario.wait_event("default", "app", "no volume plugin matched");
    driver.install_by("flexvol");
    scenario.wait_running(&app);
    scenario.delete_pod(&app);
    drop(driver);
    scenario.end();
}

fn removed(_: &Points) {
    let scenario = Scenario::begin();
    let driver = Driver::install(&scenario);
    driver.volume("kept");
    let app = pod("app", "kept");
    scenario.run_pod(&app);
    let refusal = driver.uninstall().unwrap_err();
    assert!(refusal.contains("are mounted"), "{refusal}");
    scenario.exec(&app, "echo text >/data/file && sync");

    fs::remove_dir_all(driver.home()).unwrap();
    scenario
        .lab()
        .kubectl(&["delete", "pod", "app", "--wait=false"]);
    scenario.eventually("the container to end", || {
        let status = scenario.get("default", "pod", "app")["status"].to_string();
        status.contains("terminated")
    });
    assert!(!scenario.no_pods_on_disk());
    driver.install_by("flexvol");
    scenario.eventually("the pod to go", || scenario.no_pods_on_disk());
    let next = pod("next", "kept");
    scenario.run_pod(&next);
    assert_eq!(scenario.exec(&next, "cat /data/file"), "text\n");
    scenario.delete_pod(&next);
    drop(driver);
    scenario.end();
}
