//! The verb `scripts/lab chart`: checks that the manifests for use without Helm equal the chart's output.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use flexvol_lab::{
    helm,
    kubernetes::{Version, run},
};
use std::{fs, path::Path, process::Command};

/// Check the chart, and that the plain manifests are what it says
#[derive(Debug, Args)]
pub struct Chart {
    /// Write the plain manifests
    #[arg(long)]
    write: bool,
}

/// A file of plain manifests in `deploy`.
struct Plain {
    file: &'static str,
    /// Heading for the reader.
    heading: &'static str,
    /// The chart's templates in it, in the order in which they are applied.
    templates: &'static [&'static str],
    /// Values that differ from the chart's defaults.
    values: &'static [&'static str],
}

const PLAIN: [Plain; 9] = [
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
        templates: &["namespace", "rights", "controller", "nodes"],
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
        templates: &["namespace", "nodes"],
        values: &["createNamespace=true", "claims=false"],
    },
];

impl Plain {
    /// Returns the file's text, rendered from the chart.
    fn text(&self, chart: &Path) -> Result<String> {
        let mut template = helm()?;
        template.args(["template", "flexvol"]).arg(chart);
        template.arg("--namespace=flexvol");
        // As for the newest release, because the reader chooses among the files.
        template.args(["--kube-version", &Version::newest().to_string()]);
        for value in self.values {
            template.args(["--set", value]);
        }
        for name in self.templates {
            template.args(["--show-only", &format!("templates/{name}.yaml")]);
        }
        let rendered = run(&mut template)?;
        // Drops Helm's comments about templates, which mean nothing to the reader.
        let lines = rendered
            .lines()
            .filter(|line| !line.starts_with("# Source: "));
        let objects: Vec<_> = lines.collect();
        let objects = objects.join("\n");
        let objects = objects.trim_start_matches("---\n").trim_end();
        Ok(format!(
            "# {}\n# Written from deploy/chart by scripts/lab chart --write.\n{objects}\n",
            self.heading
        ))
    }
}

/// A release, a namespace, values, and the expected objects or error of the chart.
struct Elsewhere {
    version: &'static str,
    namespace: &'static str,
    value: &'static str,
    has: Result<&'static [&'static str], &'static str>,
}

/// Disables the safety policies, as older releases require.
const UNGUARDED: &str = "admission.agents=false,admission.controller=false";

/// Checks of policies, webhooks and scheduler objects that only some releases support, without any choice by the user.
const ELSEWHERE: [Elsewhere; 13] = [
    Elsewhere {
        version: "1.33.0",
        namespace: "flexvol",
        value: "alerts.enabled=true,admission.agents=false,admission.controller=false",
        has: Ok(&[
            "disk.example.com",
            "flexvol-webhook",
            "flexvol-lease",
            "flexvol-alerts",
        ]),
    },
    Elsewhere {
        version: "1.32.0",
        namespace: "flexvol",
        value: "admission.growth=auto",
        has: Ok(&[
            "disk.example.com",
            "flexvol-agents",
            "flexvol-webhook",
            "flexvol-controller-volumes",
            "flexvol-lease",
        ]),
    },
    Elsewhere {
        version: "1.31.9",
        namespace: "flexvol",
        value: "admission.growth=auto",
        has: Err("admission.agents needs Kubernetes 1.32, which is v1.31.9"),
    },
    Elsewhere {
        version: "1.31.9",
        namespace: "flexvol",
        value: "admission.agents=false",
        has: Ok(&[
            "disk.example.com",
            "flexvol-webhook",
            "flexvol-controller-volumes",
            "flexvol-lease",
        ]),
    },
    Elsewhere {
        version: "1.29.9",
        namespace: "flexvol",
        value: "admission.agents=false",
        has: Err("admission.controller needs Kubernetes 1.30, which is v1.29.9"),
    },
    Elsewhere {
        version: "1.29.9",
        namespace: "flexvol",
        value: UNGUARDED,
        has: Ok(&["disk.example.com", "flexvol-lease"]),
    },
    Elsewhere {
        version: "1.23.9",
        namespace: "flexvol",
        value: UNGUARDED,
        has: Ok(&[]),
    },
    Elsewhere {
        version: "1.33.0",
        namespace: "flexvol",
        value: UNGUARDED,
        has: Ok(&["disk.example.com", "flexvol-webhook", "flexvol-lease"]),
    },
    Elsewhere {
        version: "1.23.9",
        namespace: "flexvol",
        value: "claims=false",
        has: Ok(&[]),
    },
    Elsewhere {
        version: "1.31.9",
        namespace: "flexvol",
        value: "admission.agents=true",
        has: Err("admission.agents is true and needs Kubernetes 1.32, which is v1.31.9"),
    },
    Elsewhere {
        version: "1.29.9",
        namespace: "flexvol",
        value: "admission.inline=true,admission.agents=false,admission.controller=false",
        has: Err("admission.inline is true and needs Kubernetes 1.30, which is v1.29.9"),
    },
    Elsewhere {
        version: "1.33.0",
        namespace: "kube-system",
        value: "admission.growth=auto",
        has: Err("flexvol does not go into kube-system"),
    },
    Elsewhere {
        version: "1.33.0",
        namespace: "kube-system",
        value: "claims=false",
        has: Ok(&[]),
    },
];

impl Elsewhere {
    fn check(&self, chart: &Path) -> Result<()> {
        let (version, value) = (self.version, self.value);
        let mut template = helm()?;
        template.args(["template", "flexvol"]).arg(chart);
        template.args(["--namespace", self.namespace]);
        template.args(["--kube-version", version, "--set", value]);
        match (run(&mut template), self.has) {
            (Ok(text), Ok(wanted)) => {
                let known = [
                    "disk.example.com",
                    "flexvol-agents",
                    "flexvol-webhook",
                    "flexvol-controller-volumes",
                    "flexvol-lease",
                    "flexvol-alerts",
                ];
                let has = |name: &&str| {
                    let line = format!("metadata: {{name: {name}");
                    text.lines().any(|found| found.starts_with(&line))
                };
                let found: Vec<_> = known.into_iter().filter(has).collect();
                ensure!(
                    found == wanted,
                    "for Kubernetes {version} with {value} the chart has {found:?}, and not {wanted:?}"
                );
            }
            (Ok(_), Err(why)) => bail!("Kubernetes {version} with {value} is not refused: {why}"),
            (Err(error), Ok(_)) => {
                return Err(error).with_context(|| format!("Kubernetes {version} with {value}"));
            }
            (Err(error), Err(why)) => ensure!(
                format!("{error:#}").contains(why),
                "Kubernetes {version} with {value} is refused, and not because {why}: {error:#}"
            ),
        }
        Ok(())
    }
}

fn helm() -> Result<Command> {
    let mut helm = Command::new(helm::program()?);
    // Rendering and linting store nothing.
    helm::keep_in(&mut helm, Path::new("/nonexistent"));
    Ok(helm)
}

impl Chart {
    pub fn run(&self) -> Result<()> {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let chart = deploy.join("chart");
        let text = fs::read_to_string(chart.join("Chart.yaml")).context("read the chart")?;
        for key in ["version", "appVersion"] {
            let line = format!("{key}: {}", env!("CARGO_PKG_VERSION"));
            ensure!(
                text.lines().any(|found| found == line),
                "deploy/chart/Chart.yaml has no line {line:?}, the version of the executables"
            );
        }
        run(helm()?.args(["lint", "--strict"]).arg(&chart)).context("check the chart")?;
        for elsewhere in &ELSEWHERE {
            elsewhere.check(&chart)?;
        }
        let mut stale = Vec::new();
        for plain in &PLAIN {
            let wanted = plain.text(&chart)?;
            let file = deploy.join(plain.file);
            if fs::read_to_string(&file).is_ok_and(|found| found == wanted) {
                continue;
            }
            if self.write {
                fs::write(&file, wanted).with_context(|| format!("write {}", file.display()))?;
            } else {
                stale.push(format!("deploy/{}", plain.file));
            }
        }
        ensure!(
            stale.is_empty(),
            "{} are not what the chart says; run scripts/lab chart --write",
            stale.join(", ")
        );
        Ok(())
    }
}
