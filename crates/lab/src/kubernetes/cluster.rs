//! A node with its control plane: creation, components, and removal.

use super::{
    build::Programs,
    command::{run, run_with},
    components::{Component, KEY, Pods, TOKENS},
    containerd, control_groups, data_disk, image, kubelet,
    node::{self, Node, NodeLifetime, wait_until},
    paths::{CONFIGURATION, Home, KEPT, KUBECONFIG, PLUGINS, PROGRAMS},
    version::Version,
};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Timeout for a component to become ready.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The administrator's token. The API server can be reached only from inside the node.
const TOKEN: &str = "flexvol-lab";

/// File that marks a lab's directory and names the release. Other directories are never removed.
const MARKER: &str = "kubernetes-of-flexvol-lab";

/// Path in the node of the images for every cluster.
const IMAGES: &str = "/var/lib/lab/images.tar";

/// File that exists if pods are clients of the API server.
const CLIENTS: &str = "pods-are-clients";

/// A node and its control plane.
#[derive(Debug)]
pub struct Cluster {
    home: Home,
    programs: Programs,
    executable: PathBuf,
    node: Node,
    lifetime: NodeLifetime,
    pods: Pods,
}

impl Cluster {
    /// Creates a cluster in an empty or missing directory and waits until its node is ready.
    ///
    /// `executable` is the lab's own; its `init` verb is the node's first process.
    ///
    /// # Errors
    /// When a part cannot be created or does not become ready. The parts remain for inspection; [`Cluster::down`]
    /// removes them.
    pub fn up(
        directory: &Path,
        programs: Programs,
        executable: &Path,
        lifetime: NodeLifetime,
        pods: Pods,
    ) -> Result<Self> {
        fs::create_dir_all(directory).context("make the lab's directory")?;
        let home = Home::at(
            &directory
                .canonicalize()
                .context("find the lab's directory")?,
        );
        ensure!(
            fs::read_dir(home.path())?.next().is_none(),
            "{} is not empty; take down what is there first",
            home.path().display()
        );
        fs::write(home.own(MARKER), programs.version().to_string())?;
        if pods == Pods::Clients {
            fs::write(home.own(CLIENTS), "")?;
        }
        furnish(&home, programs.version(), pods)?;
        let node = Node::boot(executable, &home, &programs.directory(), lifetime)?;
        let cluster = Cluster {
            home,
            programs,
            executable: executable.to_owned(),
            node,
            lifetime,
            pods,
        };
        cluster.start_all()?;
        Ok(cluster)
    }

    /// Returns the cluster in a directory, if its node runs.
    ///
    /// # Errors
    /// When the directory has something else.
    pub fn of(directory: &Path, executable: &Path) -> Result<Option<Self>> {
        let Ok(directory) = directory.canonicalize() else {
            return Ok(None);
        };
        let home = Home::at(&directory);
        let Some(node) = Node::of(&home)? else {
            return Ok(None);
        };
        let version: Version = fs::read_to_string(home.own(MARKER))?.trim().parse()?;
        let programs = Programs::of(version)?;
        let pods = if home.own(CLIENTS).exists() {
            Pods::Clients
        } else {
            Pods::Apart
        };
        Ok(Some(Cluster {
            home,
            programs,
            executable: executable.to_owned(),
            node,
            lifetime: NodeLifetime::TakenDown,
            pods,
        }))
    }

    /// Stops the node in a directory and removes the directory.
    ///
    /// # Errors
    /// When the directory is not a lab's, or cannot be removed.
    pub fn down(directory: &Path) -> Result<()> {
        let Ok(directory) = directory.canonicalize() else {
            return Ok(());
        };
        let home = Home::at(&directory);
        ensure!(
            home.own(MARKER).exists() || fs::read_dir(home.path())?.next().is_none(),
            "{} is no lab",
            home.path().display()
        );
        if let Some(node) = Node::of(&home)? {
            node.cut_power()?;
        }
        control_groups::remove(&home)?;
        fs::remove_dir_all(home.path()).context("remove the lab's directory")
    }

    /// Returns the release of Kubernetes.
    #[must_use]
    pub fn version(&self) -> Version {
        self.programs.version()
    }

    /// Returns the node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the cluster's directory on the host.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns the API server's version, such as `v1.37.1`.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn server_version(&self) -> Result<String> {
        let version: Value = serde_json::from_str(&self.kubectl(&["get", "--raw", "/version"])?)?;
        Ok(version["gitVersion"]
            .as_str()
            .context("a version")?
            .to_owned())
    }

    /// Starts a stopped component.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, component: Component) -> Result<()> {
        self.start_with(component, &[])
    }

    /// Starts a stopped component with additional arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_with(&self, component: Component, more: &[&str]) -> Result<()> {
        let mut arguments = component.arguments(self.version(), self.pods);
        arguments.extend(more.iter().map(ToString::to_string));
        self.node
            .start(component.name(), &component.program(), &arguments)
    }

    /// Sends a signal to a component and waits until it ends.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&self, component: Component, signal: Signal) -> Result<()> {
        self.node.stop(component.name(), signal)
    }

    /// Cuts the node's power: its processes, mounts, loop devices and `/run` vanish.
    ///
    /// # Errors
    /// When a part remains.
    pub fn cut_power(&self) -> Result<()> {
        self.node.cut_power()?;
        control_groups::remove(&self.home)
    }

    /// Boots the node again after a power cut. Its disks are unchanged.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn boot(&mut self) -> Result<()> {
        self.node = Node::boot(
            &self.executable,
            &self.home,
            &self.programs.directory(),
            self.lifetime,
        )?;
        self.start_all()
    }

    /// Runs kubectl as the cluster's administrator and returns its output.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run(self.node.command("kubectl").args(arguments))
    }

    /// Applies objects with kubectl.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub fn apply(&self, objects: &[Value]) -> Result<String> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        run_with(
            self.node.command("kubectl").args(["apply", "--filename=-"]),
            &list,
        )
    }

    /// Returns the host's path of a file in the node, also while the node is down.
    ///
    /// # Panics
    /// When the node does not keep the file over a reboot.
    #[must_use]
    pub fn file(&self, in_node: &str) -> PathBuf {
        self.home.file(in_node)
    }

    fn start_all(&self) -> Result<()> {
        self.start(Component::Etcd)?;
        self.start(Component::Containerd)?;
        self.start(Component::ApiServer)?;
        self.import_images()?;
        wait_until("the API server", TIMEOUT, || {
            self.still_running(Component::ApiServer)?;
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).is_ok())
        })?;
        self.start_proxy()?;
        wait_until("the proxy", TIMEOUT, || Ok(self.has_proxy()))?;
        self.start(Component::ControllerManager)?;
        self.start(Component::Scheduler)?;
        self.start(Component::Kubelet)?;
        self.wait_ready()
    }

    /// Waits until the node is ready for pods.
    ///
    /// # Errors
    /// When the node does not become ready.
    pub fn wait_ready(&self) -> Result<()> {
        // After a reboot the node stays Ready until its missing heartbeat is noticed, so the lease must have been
        // renewed.
        let lease = || {
            let path = [
                "get",
                "lease",
                node::NAME,
                "--namespace=kube-node-lease",
                "--output=jsonpath={.spec.renewTime}",
            ];
            self.kubectl(&path).unwrap_or_default()
        };
        let before = lease();
        wait_until("the node to be ready", TIMEOUT, || {
            self.still_running(Component::Kubelet)?;
            let ready =
                "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}{.spec.taints}";
            let status = self
                .kubectl(&["get", "node", node::NAME, ready])
                .unwrap_or_default();
            Ok(status == "True" && lease() != before)
        })
    }

    fn still_running(&self, component: Component) -> Result<()> {
        if self.node.running(component.name()).is_some() {
            return Ok(());
        }
        let log = self.log(component);
        let tail: Vec<_> = log.lines().rev().take(15).collect();
        let tail: Vec<_> = tail.into_iter().rev().collect();
        bail!("{} ended:\n{}", component.name(), tail.join("\n"))
    }

    /// Returns a component's log.
    #[must_use]
    pub fn log(&self, component: Component) -> String {
        let file = self
            .home
            .file(&format!("/var/log/{}.log", component.name()));
        let bytes = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn import_images(&self) -> Result<()> {
        let list = || run(self.ctr().args(["ls", "-q"]));
        wait_until("containerd", TIMEOUT, || {
            self.still_running(Component::Containerd)?;
            Ok(list().is_ok())
        })?;
        if !list()?.contains(image::BUSYBOX) {
            self.import(IMAGES)?;
        }
        Ok(())
    }

    fn ctr(&self) -> Command {
        let mut ctr = self.node.command("/usr/bin/ctr");
        ctr.arg("--namespace=k8s.io").arg("images");
        ctr
    }

    /// Imports an archive of images, given by its path in the node, into the container runtime.
    fn import(&self, archive: &str) -> Result<()> {
        run(self.ctr().args(["import", "--snapshotter=native", archive]))?;
        Ok(())
    }

    /// Creates an image of static executables, placed at its root, for pods. Symbols are stripped, because every
    /// container gets a copy.
    ///
    /// # Errors
    /// When the image cannot be created.
    pub fn make_image(&self, name: &str, executables: &[&Path]) -> Result<()> {
        let archive = format!("{CONFIGURATION}/image.tar");
        let file = self.file(&archive);
        image::of_executables(&self.home.own("image"), name, executables, &file)?;
        self.import(&archive)?;
        fs::remove_file(file).context("remove the archive of the image")
    }
}

/// Creates everything that a node needs before its first start.
fn furnish(home: &Home, version: Version, pods: Pods) -> Result<()> {
    for kept in KEPT {
        fs::create_dir_all(home.kept(kept)).context("make the node's directories")?;
    }
    for dir in [CONFIGURATION, PROGRAMS, PLUGINS, "/var/lib/kubelet"] {
        fs::create_dir_all(home.file(dir)).context("make the node's directories")?;
    }
    data_disk::make(home)?;
    image::archive(&home.own("image"), &home.file(IMAGES))?;
    run(Command::new("openssl")
        .args(["genrsa", "-out"])
        .arg(home.file(KEY))
        .arg("2048"))?;
    let administrator = format!("{TOKEN},admin,admin,system:masters\n");
    fs::write(home.file(TOKENS), administrator).context("write the token")?;
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {
            "server": format!("https://127.0.0.1:{}", pods.server_port()),
            // The certificate is created at startup, and nobody else is in this network.
            "insecure-skip-tls-verify": true,
        }}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        "current-context": "lab",
    });
    fs::write(home.file(KUBECONFIG), kubeconfig.to_string()).context("write the kubeconfig")?;
    symlink(
        format!("{PROGRAMS}/kubectl"),
        home.file("/usr/local/bin/kubectl"),
    )?;
    containerd::configure(home)?;
    kubelet::configure(home, version)
}
