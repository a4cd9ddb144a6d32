//! What the chart has in each release of Kubernetes.

use super::render::{Rendering, kind_and_name};
use anyhow::{Context, Result, ensure};

/// A release, a namespace, values, and the expected objects or error of the chart.
pub struct Elsewhere {
    version: &'static str,
    namespace: &'static str,
    value: &'static str,
    has: Result<&'static [&'static str], &'static str>,
}

/// Disables the safety policies, as older releases require.
const UNGUARDED: &str = "admission.agents=false,admission.controller=false";

/// Checks of policies, webhooks and scheduler objects that only some releases support, without any choice by the user.
pub const ELSEWHERE: [Elsewhere; 13] = [
    Elsewhere {
        version: "1.33.0",
        namespace: "flexvol",
        value: "metrics.prometheusRule.enabled=true,admission.agents=false,admission.controller=false",
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

/// Names of objects that not every release has.
const KNOWN: [&str; 6] = [
    "disk.example.com",
    "flexvol-agents",
    "flexvol-webhook",
    "flexvol-controller-volumes",
    "flexvol-lease",
    "flexvol-alerts",
];

impl Elsewhere {
    pub fn check(&self) -> Result<()> {
        let (version, value) = (self.version, self.value);
        let arguments = ["--set", value];
        let rendering = Rendering {
            namespace: self.namespace,
            version: version.to_owned(),
            ..Rendering::with(&arguments)
        };
        let checked = match self.has {
            Err(why) => rendering.refused(why),
            Ok(wanted) => expect_known(&rendering, wanted),
        };
        checked.with_context(|| format!("Kubernetes {version} with {value}"))
    }
}

fn expect_known(rendering: &Rendering<'_>, wanted: &[&str]) -> Result<()> {
    let objects = rendering.objects()?;
    let has = |name: &&str| {
        objects
            .iter()
            .any(|object| kind_and_name(object).1 == *name)
    };
    let found: Vec<_> = KNOWN.into_iter().filter(has).collect();
    ensure!(
        found == wanted,
        "the chart has {found:?}, and not {wanted:?}"
    );
    Ok(())
}
