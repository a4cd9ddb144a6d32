//! The Kubernetes objects that use a volume which was made manually.

use super::{driver_options::Chosen, print, yaml};
use crate::plugin::DriverName;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use flexvol_storage::sdk::{Bytes, FsType, VolumeName};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs};

/// The node label that every kubelet sets to its name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What Kubernetes must be told and the volume does not know.
#[derive(Debug, Args)]
pub struct Cluster {
    /// The node of the volume, as its label kubernetes.io/hostname says [default: this host's name]
    #[arg(long)]
    node: Option<String>,
    /// The storage class of volume and claim; only a class that allows it lets claims grow
    #[arg(long, value_name = "CLASS", default_value = "flexvol")]
    storage_class: String,
}

/// How manifests are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// YAML documents
    Yaml,
    /// One JSON object: a List
    Json,
}

/// The properties of one volume's persistent volume.
#[derive(Debug)]
pub struct Described<'a> {
    /// The name of the persistent volume, and of its claim.
    pub name: &'a str,
    /// The namespace of the claim; `None` allows any claim.
    pub namespace: Option<&'a str>,
    pub size: Bytes,
    /// The file system; `None` lets the driver choose.
    pub filesystem: Option<FsType>,
    pub options: BTreeMap<String, String>,
}

/// The properties of the cluster, complete.
#[derive(Debug)]
pub struct ClusterTarget {
    node: String,
    driver: DriverName,
    storage_class: String,
}

/// Parses a namespace, which must be a DNS label (`ValidateNamespaceName` in Kubernetes), since it is stored in a
/// volume's mark.
pub fn namespace(text: &str) -> Result<String, String> {
    match VolumeName::parse(text) {
        Ok(_) if text.len() <= 63 && !text.contains('.') => Ok(text.to_owned()),
        _ => Err("a namespace is 1 to 63 of a-z, 0-9 and '-'".to_owned()),
    }
}

impl Cluster {
    /// Fills in defaults.
    pub fn target(&self, chosen: &Chosen) -> Result<ClusterTarget> {
        let Some(driver) = chosen.name() else {
            bail!("the driver's name in Kubernetes is not known here; say --driver vendor/driver");
        };
        let node = match &self.node {
            Some(node) => node.clone(),
            None => fs::read_to_string("/proc/sys/kernel/hostname")
                .context("ask for this host's name")?
                .trim()
                .to_lowercase(),
        };
        Ok(ClusterTarget {
            node,
            driver: driver.clone(),
            storage_class: self.storage_class.clone(),
        })
    }
}

/// Returns the labels by which the objects are selected later.
fn labels() -> Value {
    json!({ "app.kubernetes.io/managed-by": "flexvol" })
}

impl ClusterTarget {
    pub fn persistent_volume(&self, volume: &Described<'_>) -> Value {
        let mut source = json!({
            "driver": self.driver.to_string(),
            "options": volume.options,
        });
        if let Some(filesystem) = &volume.filesystem {
            source["fsType"] = filesystem.as_str().into();
        }
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": volume.size.to_string() },
            "flexVolume": source,
            "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchExpressions": [
                    { "key": HOSTNAME, "operator": "In", "values": [self.node] },
                ] },
            ] } },
            // Stock Kubernetes cannot delete a FlexVolume: with another policy the volume ends as Failed.
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": self.storage_class,
            "volumeMode": "Filesystem",
        });
        if let Some(namespace) = volume.namespace {
            spec["claimRef"] = json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": volume.name,
                "namespace": namespace,
            });
        }
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": { "name": volume.name, "labels": labels() },
            "spec": spec,
        })
    }

    pub fn claim(&self, volume: &Described<'_>) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": volume.name, "namespace": volume.namespace, "labels": labels() },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": volume.size.to_string() } },
                "storageClassName": self.storage_class,
                "volumeName": volume.name,
            },
        })
    }

    /// Returns a class that allows growth. Without one the API server refuses to grow a claim, even for a volume
    /// that was made manually (`PersistentVolumeClaimResize` admission).
    pub fn storage_class(&self) -> Value {
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": { "name": self.storage_class },
            "allowVolumeExpansion": true,
            "provisioner": "kubernetes.io/no-provisioner",
            "reclaimPolicy": "Retain",
            "volumeBindingMode": "WaitForFirstConsumer",
        })
    }
}

/// Prints manifests; `remarks` become comments if the format has any.
pub fn print_all(format: Format, remarks: &[String], objects: &[Value]) -> Result<()> {
    match format {
        Format::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
            print(format_args!("{list:#}"))
        }
        Format::Yaml => {
            for remark in remarks.iter().flat_map(|remark| remark.lines()) {
                print(format_args!("{}", format!("# {remark}").trim_end()))?;
            }
            for object in objects {
                print(format_args!("---\n{}", yaml::document(object).trim_end()))?;
            }
            Ok(())
        }
    }
}
