//! The life of volumes in an empty cluster, with the chart or the plain manifests: both programs run as pods
//! of one image, which has no shell.

mod leaders;

use crate::{
    claims::{claim, class, delete_claim, wait_bound},
    claims_of_sets::{annotate, ready, set},
    claims_scheduled,
    controllers::{rules_are_known, tokens_name_nodes},
    documents,
    lab::{self, Lab, beside, executable},
    objects::pod,
    scenario::Scenario,
    webhooks,
};
use flexvol_lab::{
    helm,
    kubernetes::{DISK, PLUGINS, run},
};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    slice, thread,
};

tests! {
    "chart: from an empty cluster, claims live and go while controllers and agents come and go, and uninstalling loses nothing", &[Need::Root]
        => whole_story;
}

/// The driver that the chart installs by default.
const DRIVER: &str = "example.com/disk";

/// The chart's name for its provisioner, in which the scheduler looks up capacity.
const PROVISIONER: &str = "disk.example.com";

/// The image that the plain manifests name.
const IMAGE: &str = "registry.example.com/flexvol:0.1.0";

const NAMESPACE: &str = "flexvol";

/// The name of the release, and what its objects' names begin with. Those of the plain manifests begin with `flexvol`.
const RELEASE: &str = "storage";
const PREFIX: &str = "storage-flexvol";

/// Selectors of the chart's pods.
const CONTROLLERS: &str = "--selector=app.kubernetes.io/component=controller";
const NODES: &str = "--selector=app.kubernetes.io/component=node";

fn whole_story(points: &Points) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let story = Story(Scenario::alone(Lab::empty()));
        for chapter in [
            Story::install,
            Story::test_the_release,
            Story::follow_readme,
            Story::grow_a_claim,
            Story::lose_leaders,
            Story::grow_a_set,
            Story::uninstall,
            Story::go_on_by_hand,
            Story::install_drivers_alone,
        ] {
            chapter(&story);
            points.add(1);
        }
    }));
    lab::end_own();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

struct Story(Scenario);

impl Story {
    fn install(&self) {
        let parts = [executable(), beside("flexvol-controller")];
        let parts = parts.each_ref().map(PathBuf::as_path);
        self.lab().cluster().make_image(IMAGE, &parts).unwrap();
        assert!(!self.is_installed(), "nobody has installed the driver yet");
        let chart = deploy("chart");
        let mut arguments = vec!["install", RELEASE, "--create-namespace", &chart];
        let later = format!("storageClasses[0].provisioner={PROVISIONER}");
        arguments.extend(["--set", "image.repository=registry.example.com/flexvol"]);
        arguments.extend(["--set", "networkPolicy.enabled=true"]);
        arguments.extend(["--set", "storageClasses[0].name=later", "--set", &later]);
        for (is_there, without) in [
            (tokens_name_nodes(), "--set=admission.agents=false"),
            (webhooks::are_there(), "--set=admission.controller=false"),
        ] {
            arguments.extend((!is_there).then_some(without));
        }
        self.helm(&arguments);
        assert!(self.is_installed(), "pods are ready without the driver");
        let pool = json!({"pool": "default"});
        // The classes are named after the set's claims.
        self.0.apply(&[
            class("at-once", DRIVER, false, &pool),
            class("plain", DRIVER, false, &pool),
        ]);
    }

    /// Runs `helm test`, whose pod has only the rights in the chart.
    fn test_the_release(&self) {
        let said = self.helm_with(&["test", RELEASE, "--logs"], &["--timeout=150s"]);
        for part in [
            "bound to persistent volume pvc-",
            "grown to 384Mi; its file system grows when a pod uses it, after ",
            "gone, with its volume and storage, after ",
        ] {
            assert!(said.contains(part), "{part:?} is missing:\n{said}");
        }
        println!("{said}");
        self.wait_volumes(0);
        for kind in ["clusterrole", "storageclass"] {
            let left = format!("{PREFIX}-check");
            let found = self
                .lab()
                .kubectl(&["get", kind, &left, "--ignore-not-found"]);
            assert!(found.is_empty(), "{kind} {left} has outlived the test");
        }
    }

    fn follow_readme(&self) {
        documents::quick_start(&self.0);
        self.wait_volumes(0);
    }

    /// Deletes the leader before the claim is edited, and the agent after it.
    fn grow_a_claim(&self) {
        self.0.apply(&[claim("data", "later", 320)]);
        let app = pod("app", "data");
        self.0.run_pod(&app);
        let volume = wait_bound(&self.0, "data");
        self.0
            .exec(&app, "head -c 5000000 /dev/urandom >/data/file && sync");
        let sum = self.sum(&app);
        let before = self.0.size_in(&app);
        self.delete_leader();
        self.0.ask_for("data", 640);
        self.delete_pods(NODES);
        self.0.wait_grown("data", 640);
        assert_eq!(self.0.size_in(&app) - before, 320);
        assert_eq!(self.sum(&app), sum);
        assert_eq!(self.assets(), slice::from_ref(&volume));
    }

    /// Makes, grows and deletes claims while there is no controller, or one that has just started.
    fn grow_a_set(&self) {
        self.0.apply(&[set()]);
        self.delete_pods(CONTROLLERS);
        ready(&self.0, 2);
        annotate(&self.0, "data", "352Mi");
        self.delete_leader();
        let wait_grown = |size: &str| {
            for claim in ["data-db-0", "data-db-1"] {
                self.0.wait_grown_to(claim, size);
            }
        };
        wait_grown("352Mi");
        if webhooks::are_there() {
            self.edit_template("384Mi");
            wait_grown("384Mi");
        }
        self.wait_volumes(5);
        let delete = |arguments: &[&str]| {
            self.lab().kubectl(&[&["delete"], arguments].concat());
        };
        delete(&["statefulset", "db", "--timeout=60s"]);
        delete(&["pods", "--selector=app=db", "--timeout=150s"]);
        for claim in ["data-db-0", "data-db-1", "log-db-0", "log-db-1"] {
            delete(&["pvc", claim, "--wait=false"]);
        }
        self.delete_pods(CONTROLLERS);
        self.wait_volumes(1);
    }

    /// Uninstalls the chart: the driver, volumes with their objects, and NodeVolumes stay.
    fn uninstall(&self) {
        let app = pod("app", "data");
        let sum = self.sum(&app);
        self.helm(&["uninstall", RELEASE]);
        assert!(self.is_installed());
        assert_eq!(self.sum(&app), sum);
        self.0.delete_pod(&app);
        self.0.run_pod(&app);
        assert_eq!(self.sum(&app), sum);
        self.0.delete_pod(&app);
        let delete = ["delete", "pvc", "data", "--wait=false"];
        self.lab().kubectl(&delete);
        for kind in ["persistentvolumes", "nodevolumes"] {
            assert_eq!(self.number_of(kind), 1, "{kind} without anybody to act");
        }
        assert_eq!(self.assets().len(), 1);
    }

    /// Applies the plain manifests, which take over what the chart left.
    fn go_on_by_hand(&self) {
        let mut manifests = vec!["cluster/objects.yaml", "cluster/controller.yaml"];
        if lab::version() >= claims_scheduled::SINCE.parse().unwrap() {
            manifests.push("cluster/scheduler.yaml");
        }
        if lab::version() >= "1.29.0".parse().unwrap() {
            manifests.push("cluster/pressure.yaml");
        }
        if webhooks::are_there() {
            manifests.push("cluster/webhooks.yaml");
            manifests.push("cluster/controller-policy.yaml");
        }
        if tokens_name_nodes() {
            manifests.push("cluster/agents.yaml");
        }
        for file in &manifests {
            let file = deploy(file);
            let mut apply = vec!["apply", "--filename", &file];
            apply.extend((!rules_are_known()).then_some("--validate=false"));
            self.lab().kubectl(&apply);
        }
        self.wait_volumes(0);
        self.0.apply(&[claim("again", "at-once", 320)]);
        wait_bound(&self.0, "again");
        self.wait_volumes(1);
        delete_claim(&self.0, "again");
        self.wait_volumes(0);
        for file in manifests.iter().rev() {
            self.lab().kubectl(&["delete", "--filename", &deploy(file)]);
        }
        self.forget_driver();
    }

    fn install_drivers_alone(&self) {
        let file = deploy("daemonset.yaml");
        self.lab().kubectl(&["apply", "--filename", &file]);
        self.0
            .eventually("the driver to be installed", || self.is_installed());
        self.lab().kubectl(&["delete", "--filename", &file]);
        self.forget_driver();
    }

    /// Edits the set's first claim template. Kubernetes refuses this while no controller answers.
    fn edit_template(&self, size: &str) {
        let place = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
        let edit = json!([{"op": "replace", "path": place, "value": size}]).to_string();
        let patch = [
            "patch",
            "statefulset",
            "db",
            "--type=json",
            "--patch",
            &edit,
        ];
        self.0.eventually("the edited template to be taken", || {
            self.lab().cluster().kubectl(&patch).is_ok()
        });
    }

    fn lab(&self) -> &Lab {
        self.0.lab()
    }

    /// Runs helm on the chart, and waits until it is done.
    #[track_caller]
    fn helm(&self, arguments: &[&str]) {
        self.helm_with(arguments, &["--wait", "--timeout=150s"]);
    }

    #[track_caller]
    fn helm_with(&self, arguments: &[&str], more: &[&str]) -> String {
        let cluster = self.lab().cluster();
        let helm = helm::program().unwrap();
        let mut command = cluster.node().command(helm.to_str().unwrap());
        helm::keep_in(&mut command, &cluster.home().join("helm"));
        command.args(arguments);
        command.args(["--namespace", NAMESPACE]).args(more);
        run(&mut command).unwrap_or_else(|e| panic!("{e}"))
    }

    fn is_installed(&self) -> bool {
        self.0.is_in_node(Path::new(&installed()))
    }

    /// Runs the installed driver with a verb for people.
    #[track_caller]
    fn driver(&self, arguments: &[&str]) -> String {
        let where_it_is = ["--plugin-dir", PLUGINS];
        self.lab()
            .run(&installed(), &[arguments, &where_it_is].concat())
    }

    fn forget_driver(&self) {
        self.driver(&["uninstall", "--name", DRIVER]);
        assert!(!self.is_installed());
    }

    fn sum(&self, pod: &Value) -> String {
        self.0.exec(pod, "sha256sum /data/file")
    }

    /// The names of the volumes that have storage. Checks that the storage is on the data disk.
    fn assets(&self) -> Vec<String> {
        let text = self.driver(&["list", "--driver", DRIVER, "--output", "json"]);
        let list: Value = serde_json::from_str(&text).unwrap();
        let volumes = list["volumes"].as_array().unwrap().iter();
        let names: Vec<_> = volumes
            .map(|volume| volume["name"].as_str().unwrap().to_owned())
            .collect();
        let images = format!("{DISK}/pools/default/volumes");
        let images = self.lab().run("ls", &[&images]);
        assert_eq!(images.lines().count(), names.len(), "{images}");
        names
    }

    fn number_of(&self, kind: &str) -> usize {
        let found = self.lab().kubectl(&["get", kind, "--output=name"]);
        found.lines().count()
    }

    /// Waits until there are this many claims, persistent volumes and NodeVolumes, and checks the storage.
    #[track_caller]
    fn wait_volumes(&self, number: usize) {
        for kind in ["persistentvolumeclaims", "persistentvolumes", "nodevolumes"] {
            self.0.eventually(&format!("{number} {kind}"), || {
                self.number_of(kind) == number
            });
        }
        assert_eq!(self.assets().len(), number);
    }

    /// Deletes the pod of the leader, so that another controller takes over.
    fn delete_leader(&self) {
        let leader = self.leader();
        let pod = ["delete", "pod", &leader, "--namespace", NAMESPACE];
        self.lab()
            .kubectl(&[&pod[..], &["--wait=false", "--ignore-not-found"]].concat());
    }

    /// The name of the leader's pod.
    fn leader(&self) -> String {
        let lease = self
            .0
            .get(NAMESPACE, "lease", &format!("{PREFIX}-controller"));
        let leader = lease["spec"]["holderIdentity"].as_str().unwrap();
        leader.to_owned()
    }

    fn delete_pods(&self, which: &str) {
        let pods = ["delete", "pods", which, "--namespace", NAMESPACE];
        self.lab()
            .kubectl(&[&pods[..], &["--timeout=60s"]].concat());
    }
}

/// Prints the cluster's state if the test failed.
impl Drop for Story {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for command in [
            "get pods,pv,pvc,nodevolumes --all-namespaces --output=wide",
            "get events --all-namespaces",
            "logs --namespace=flexvol --selector=app.kubernetes.io/component=controller --tail=30 --prefix",
            "logs --namespace=flexvol --selector=app.kubernetes.io/component=node --all-containers --tail=30 --prefix",
        ] {
            let words: Vec<_> = command.split(' ').collect();
            let said = self.lab().cluster().kubectl(&words);
            println!("{}", said.unwrap_or_else(|error| error.to_string()));
        }
    }
}

/// Path of the driver that kubelet calls.
fn installed() -> String {
    format!("{PLUGINS}/example.com~disk/disk")
}

/// A file of the project, which the node sees at the same path.
fn deploy(file: &str) -> String {
    let project = env!("CARGO_MANIFEST_DIR");
    format!("{project}/deploy/{file}")
}
