//! The manifests for use without Helm, which are written from the chart.

use super::render::Rendering;
use anyhow::Result;

/// A file of plain manifests in `deploy`.
pub struct Plain {
    pub file: &'static str,
    /// Heading for the reader.
    heading: &'static str,
    /// The chart's templates in it, in the order in which they are applied.
    templates: &'static [&'static str],
    /// Values that differ from the chart's defaults.
    values: &'static [&'static str],
}

pub const PLAIN: [Plain; 9] = [
    Plain {
        file: "cluster/objects.yaml",
        heading: "The objects of flexvol-controller. Apply this first; deleting it forgets all NodeVolumes.\n\
            # Kubernetes before 1.23 takes it by `kubectl apply --validate=false`.",
        templates: &["objects"],
        values: &[],
    },
    Plain {
        file: "cluster/controller.yaml",
        heading: "Installs the drivers on every node, and makes, grows and deletes the volumes of claims.\n\
            # Apply objects.yaml first. Adjust the image, the drivers, and the plugin directory of your kubelets.",
        templates: &[
            "namespace",
            "resourcequota",
            "rights",
            "controller",
            "nodes",
        ],
        values: &["createNamespace=true"],
    },
    Plain {
        file: "cluster/pressure.yaml",
        heading: "Belongs to controller.yaml, for Kubernetes 1.29 or newer: keeps a controller going while the cluster is short.",
        templates: &["pressure"],
        values: &[],
    },
    Plain {
        file: "cluster/scheduler.yaml",
        heading: "Belongs to controller.yaml, for Kubernetes 1.24 or newer: before, pods would wait for ever.",
        templates: &["scheduler"],
        values: &[],
    },
    Plain {
        file: "cluster/webhooks.yaml",
        heading: "Belongs to controller.yaml. Apply it after that.",
        templates: &["webhooks"],
        values: &[],
    },
    Plain {
        file: "cluster/controller-policy.yaml",
        heading: "Belongs to controller.yaml. Adjust the drivers.",
        templates: &["controller-policy"],
        values: &[],
    },
    Plain {
        file: "cluster/agents.yaml",
        heading: "Belongs to controller.yaml.",
        templates: &["agents"],
        values: &[],
    },
    Plain {
        file: "cluster/admission.yaml",
        heading: "For every FlexVolume driver, with or without the other files.",
        templates: &["admission"],
        values: &["admission.inline=true"],
    },
    Plain {
        file: "daemonset.yaml",
        heading: "Installs the drivers on every node, and nothing else.\n\
            # Adjust the image, the drivers, and the plugin directory of your kubelets.",
        templates: &["namespace", "resourcequota", "nodes"],
        values: &["createNamespace=true", "claims=false"],
    },
];

/// Beginnings of lines that are about Helm, and mean nothing to the reader.
const OF_HELM: [&str; 3] = [
    "# Source: ",
    "helm.sh/chart: ",
    "app.kubernetes.io/managed-by: ",
];

impl Plain {
    /// Returns the file's text, rendered from the chart.
    pub fn text(&self) -> Result<String> {
        let mut arguments = Vec::new();
        for value in self.values {
            arguments.extend(["--set".to_owned(), (*value).to_owned()]);
        }
        for name in self.templates {
            arguments.extend(["--show-only".to_owned(), format!("templates/{name}.yaml")]);
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        // As for the newest release, because the reader chooses among the files.
        let rendered = Rendering::with(&arguments).text()?;
        let is_about_helm = |line: &str| OF_HELM.iter().any(|begin| line.starts_with(begin));
        let lines = rendered
            .lines()
            .filter(|line| !is_about_helm(line.trim_start()));
        let objects: Vec<_> = lines.collect();
        let objects = objects.join("\n");
        let objects = objects.trim_start_matches("---\n").trim_end();
        Ok(format!(
            "# {}\n# Written from deploy/chart by scripts/lab chart --write.\n{objects}\n",
            self.heading
        ))
    }
}
