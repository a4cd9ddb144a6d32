//! Measures the costs of claims and volumes. Fills a double of the API server with as many as requested, starts the
//! controller, lets some of them grow, and prints the costs. Repeats it with the largest claims that tenants may make.
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use anyhow::{Context, Result, ensure};
use flexvol_apiserver::{Key, Kubernetes, Server};
use serde_json::{Value, json};
use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const DRIVER: &str = "lab.example/plain";

/// Number of claims that grow.
const GROW: usize = 500;

/// The driver that grows them, from the tests with a real Kubernetes.
const SCRIPT: &str = include_str!("../../../tests/kubernetes/plain.sh");

/// Maximum memory of the controller in KiB, with any number of objects.
const MEMORY: u64 = 150 << 10;

/// Number of large claims, and the controller's maximum memory in KiB with them. The chart's limit is a quarter above
/// the measured value.
const LARGE: usize = 1000;
const MEMORY_BESIDE_LARGE: u64 = 192 << 10;

/// Maximum number of requests of one growth, including those of the node's agent.
const REQUESTS: f64 = 8.0;

fn main() -> Result<()> {
    let asked = env::args().find_map(|argument| argument.parse().ok());
    let count: usize = asked.unwrap_or(10_000);
    let server = Server::start().context("start the double")?;
    let started = Instant::now();
    fill(&server, count)?;
    println!(
        "filled    {count} claims, volumes and NodeVolumes in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    server.play(Kubernetes { expands: true });

    let dir = tempfile::tempdir()?;
    let started = Instant::now();
    let controller = Program::start(&server, dir.path(), &["controller", "--identity=one"])?;
    // It sends no requests any more once its watches have seen everything.
    let ready = rests(&server, 6)?;
    println!(
        "ready     after {:.1} s and {} requests",
        (ready - started).as_secs_f64(),
        server.requests().len()
    );
    println!(
        "memory    {} MiB resident",
        controller.memory("VmRSS")? >> 10
    );

    let grown = count.min(GROW);
    install(dir.path(), &server, grown)?;
    let plugins = format!("--plugin-dir={}", dir.path().join("plugins").display());
    let _agent = Program::start(&server, dir.path(), &["agent", "--node=node", &plugins])?;
    wait("the node to be known", || {
        Ok(server.store().count("StorageNode") == 1)
    })?;
    rests(&server, 7)?;
    let before = server.requests().len();
    let started = Instant::now();
    for number in 0..grown {
        let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        server.store().merge(&claim_key(number), &more)?;
    }
    let mut next = 0;
    wait("all to have grown", || {
        let store = server.store();
        while next < grown {
            let claim = store.get(&claim_key(next)).context("find a claim")?;
            if claim["status"]["capacity"]["storage"] != "2Gi" {
                return Ok(false);
            }
            next += 1;
        }
        Ok(true)
    })?;
    let took = started.elapsed().as_secs_f64();
    let requests = server.requests();
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let (rate, each) = (
        grown as f64 / took,
        (requests.len() - before) as f64 / grown as f64,
    );
    println!("growth    {rate:.0} a second, {each:.1} requests each");
    let memory = controller.memory("VmHWM")?;
    println!("memory    {} MiB at most", memory >> 10);
    ensure!(memory <= MEMORY, "the controller needs {memory} KiB");
    ensure!(
        each <= REQUESTS,
        "a growth costs {each} requests: {:?}",
        &requests[before..before + 40]
    );
    drop(controller);
    large()
}

/// Creates claims of tenants, half of them of our class. Those are read one by one too, and are all impossible.
fn large() -> Result<()> {
    let server = Server::start().context("start the double")?;
    let class = json!({"metadata": {"name": "plain"}, "provisioner": DRIVER});
    let mut store = server.store();
    store.create(&Key::new("StorageClass", "", "plain"), class)?;
    let labels = (0..5000).map(|number| {
        let name = format!("{}.example.com/{number:050}", "n".repeat(110));
        (name, Value::from("v".repeat(60)))
    });
    let labels = Value::Object(labels.collect());
    let size = labels.to_string().len();
    for number in 0..LARGE {
        let key = claim_key(number);
        let mut annotations = json!({});
        if number % 2 == 0 {
            annotations["volume.kubernetes.io/storage-provisioner"] = DRIVER.into();
        }
        let claim = json!({
            "metadata": {"name": key.name, "labels": labels, "annotations": annotations},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "plain",
                "resources": {"requests": {"storage": "5Ti"}},
            },
        });
        store.create(&key, claim)?;
    }
    drop(store);
    let dir = tempfile::tempdir()?;
    let started = Instant::now();
    let controller = Program::start(&server, dir.path(), &["controller", "--identity=one"])?;
    let ready = rests(&server, 6)?;
    let memory = controller.memory("VmHWM")?;
    println!(
        "large     {LARGE} claims of {} KiB: {} MiB at most, at rest after {:.1} s",
        size >> 10,
        memory >> 10,
        (ready - started).as_secs_f64()
    );
    ensure!(
        memory <= MEMORY_BESIDE_LARGE,
        "the controller needs {memory} KiB beside large claims"
    );
    Ok(())
}

struct Program(Child);

impl Program {
    fn start(server: &Server, dir: &Path, arguments: &[&str]) -> Result<Self> {
        let kubeconfig = dir.join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig())?;
        let program = Command::new(env!("CARGO_BIN_EXE_flexvol-controller"))
            .args(arguments)
            // The rate limit is not what is measured.
            .args(["--rate=100000", "--driver", DRIVER, "--kubeconfig"])
            .arg(&kubeconfig)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        program.map(Program).context("start a program")
    }

    /// In KiB.
    fn memory(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))
            .context("look at the controller, which has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        number.with_context(|| format!("find {field}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have exited by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates the objects of bound and settled claims.
fn fill(server: &Server, count: usize) -> Result<()> {
    let mut store = server.store();
    let class =
        json!({"metadata": {"name": "plain"}, "provisioner": DRIVER, "allowVolumeExpansion": true});
    store.create(&Key::new("StorageClass", "", "plain"), class)?;
    for number in 0..count {
        let key = claim_key(number);
        let claim = json!({
            "metadata": {
                "name": key.name,
                "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes",
                    "pv.kubernetes.io/bound-by-controller": "yes",
                    "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
                    "volume.kubernetes.io/storage-provisioner": DRIVER,
                },
                // As written by `kubectl` and Kubernetes' controllers: a third of an object.
                "managedFields": managed(),
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "plain",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claim = store.create(&key, claim)?;
        let uid = claim["metadata"]["uid"].as_str().unwrap_or_default();
        let name = format!("pvc-{uid}");
        // Those that grow are on the node whose agent runs.
        let node = if number < GROW {
            "node".to_owned()
        } else {
            format!("node-{}", number % 100)
        };
        let volume = json!({
            "metadata": {
                "name": name,
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER, "flexvol.dev/node": node},
                "labels": {"flexvol.dev/managed": "true"},
                "finalizers": ["flexvol.dev/storage"],
                "managedFields": managed(),
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": key.namespace, "name": key.name, "uid": uid},
                "flexVolume": {"driver": DRIVER, "options": {"handle": uid}},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "plain",
            },
        });
        let node_volume = json!({
            "metadata": {
                "name": name,
                "labels": {"flexvol.dev/node": node},
                "finalizers": ["flexvol.dev/node-volume"],
                "managedFields": managed(),
            },
            "spec": {
                "driver": DRIVER,
                "node": node,
                "state": "Present",
                "size": 1u64 << 30,
                "published": true,
                "claim": {"namespace": key.namespace, "name": key.name, "uid": uid},
            },
        });
        let volume_key = Key::new("PersistentVolume", "", &name);
        let node_volume_key = Key::new("NodeVolume", "", &name);
        store.create(&volume_key, volume)?;
        store.create(&node_volume_key, node_volume)?;
        store.merge_status(&volume_key, &json!({"phase": "Bound"}))?;
        store.merge_status(&node_volume_key, &answer(1 << 30, 1))?;
        store.merge(&key, &json!({"spec": {"volumeName": name}}))?;
        let status = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        store.merge_status(&key, &status)?;
    }
    Ok(())
}

fn claim_key(number: usize) -> Key {
    Key::new(
        "PersistentVolumeClaim",
        "default",
        &format!("data-{number}"),
    )
}

fn managed() -> Value {
    let fields = json!({"f:metadata": {"f:annotations": {".": {}, "f:pv.kubernetes.io/bind-completed": {}}}, "f:spec": {"f:volumeName": {}}});
    let one = |manager: &str| json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields});
    json!([
        one("kube-controller-manager"),
        one("kubectl-client-side-apply")
    ])
}

fn answer(size: u64, generation: u64) -> Value {
    json!({
        "state": "Present",
        "size": size,
        "nodeExpansionRequired": false,
        "source": {"options": {}},
        "failures": 0,
        "observedGeneration": generation,
    })
}

/// Installs the driver, with storage for the volumes that grow.
fn install(dir: &Path, server: &Server, grown: usize) -> Result<()> {
    let (place, storage) = (dir.join("plugins/lab.example~plain"), dir.join("storage"));
    fs::create_dir_all(&place)?;
    let script = SCRIPT.replace("/var/lib/lab/plain", &storage.display().to_string());
    let unfinished = place.join(".unfinished");
    fs::write(&unfinished, script)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
    fs::rename(unfinished, place.join("plain"))?;
    for number in 0..grown {
        let claim = server
            .store()
            .get(&claim_key(number))
            .context("find a claim")?;
        let name = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        fs::create_dir_all(storage.join(name))?;
        fs::write(storage.join(name).join("size"), (1u64 << 30).to_string())?;
    }
    Ok(())
}

fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so()? {
        ensure!(Instant::now() < deadline, "waiting for {what} in vain");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits until there are this many watches and then no requests for a while. Returns the time of the last request.
fn rests(server: &Server, watches: usize) -> Result<Instant> {
    let mut last = (0, Instant::now());
    wait("the programs to have seen everything", || {
        let requests = server.requests();
        if requests.len() != last.0 {
            last = (requests.len(), Instant::now());
        }
        let begun = requests
            .iter()
            .filter(|request| request.starts_with("WATCH"));
        Ok(begun.count() >= watches && last.1.elapsed() > Duration::from_secs(1))
    })?;
    Ok(last.1)
}
