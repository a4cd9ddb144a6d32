//! Frequent reads of a cluster's objects. Each start of kubectl takes a tenth of a second of processor time that the
//! cluster needs, so one kubectl keeps running as a proxy.

use super::{
    cluster::Cluster,
    paths::{KUBECONFIG, RUN},
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

/// Name of the proxy among the node's programs.
const PROXY: &str = "kubectl-proxy";

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Path of the proxy's socket in the node.
fn socket() -> String {
    format!("{RUN}/{PROXY}.socket")
}

/// Returns the resource for a name that kubectl accepts: path of its group, plural, and whether it is namespaced.
fn resource(kind: &str) -> Option<(&'static str, &'static str, bool)> {
    Some(match kind {
        "event" => ("api/v1", "events", true),
        "lease" => ("apis/coordination.k8s.io/v1", "leases", true),
        "node" => ("api/v1", "nodes", false),
        "persistentvolume" => ("api/v1", "persistentvolumes", false),
        "persistentvolumeclaim" => ("api/v1", "persistentvolumeclaims", true),
        "pod" => ("api/v1", "pods", true),
        "resourcequota" => ("api/v1", "resourcequotas", true),
        "secret" => ("api/v1", "secrets", true),
        "statefulset" => ("apis/apps/v1", "statefulsets", true),
        "nodevolume" => ("apis/flexvol.dev/v1alpha1", "nodevolumes", false),
        "storagenode" => ("apis/flexvol.dev/v1alpha1", "storagenodes", false),
        _ => return None,
    })
}

fn path(namespace: &str, kind: &str) -> Result<String> {
    let (group, plural, has_namespace) =
        resource(kind).with_context(|| format!("{kind:?} is no kind that is read"))?;
    Ok(if has_namespace {
        format!("/{group}/namespaces/{namespace}/{plural}")
    } else {
        format!("/{group}/{plural}")
    })
}

impl Cluster {
    pub(super) fn start_proxy(&self) -> Result<()> {
        let arguments = [
            "proxy".to_owned(),
            format!("--kubeconfig={KUBECONFIG}"),
            format!("--unix-socket={}", socket()),
        ];
        self.node().start(PROXY, "kubectl", &arguments)
    }

    /// Whether the proxy accepts connections.
    pub(super) fn has_proxy(&self) -> bool {
        UnixStream::connect(self.node().path(&socket())).is_ok()
    }

    /// Returns an object.
    ///
    /// # Errors
    /// When the object does not exist, or the API server does not answer.
    pub fn object(&self, namespace: &str, kind: &str, name: &str) -> Result<Value> {
        self.read(&format!("{}/{name}", path(namespace, kind)?))
    }

    /// Returns reason and message of each event about an object.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn events(&self, namespace: &str, name: &str) -> Result<Vec<(String, String)>> {
        let path = path(namespace, "event")?;
        let list = self.read(&format!(
            "{path}?fieldSelector=involvedObject.name%3D{name}"
        ))?;
        let events = list["items"].as_array().context("read events")?;
        let text =
            |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let all = events.iter();
        Ok(all
            .map(|event| (text(event, "reason"), text(event, "message")))
            .collect())
    }

    fn read(&self, path: &str) -> Result<Value> {
        let mut proxy =
            UnixStream::connect(self.node().path(&socket())).context("reach the proxy")?;
        proxy.set_read_timeout(Some(TIMEOUT))?;
        // With HTTP/1.0 an answer ends with the connection.
        write!(proxy, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").context("ask the proxy")?;
        let mut answer = String::new();
        proxy
            .read_to_string(&mut answer)
            .context("hear the proxy")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a whole answer")?;
        let status = head.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "read {path}: {status}: {body}");
        serde_json::from_str(body).with_context(|| format!("read {path}"))
    }
}
