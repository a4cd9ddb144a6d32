//! Values that the chart refuses, each by its name.

use super::render::Rendering;
use anyhow::{Context, Result};

/// Values of the option `--set`, and what the refusal has to contain.
const REFUSED: [(&str, &str); 22] = [
    // Names that there are not.
    ("imgae.tag=x", "imgae"),
    ("image.tags=x", "tags"),
    ("node.toleration=x", "toleration"),
    (
        "drivers[0].name=a/b,drivers[0].configuration=x",
        "configuration",
    ),
    ("controller.resources.request.cpu=1", "request"),
    ("metrics.podMonitor.enable=true", "enable"),
    // Values of another kind.
    ("controller.replicas=abc", "/controller/replicas"),
    ("image.digest=sha256:1", "/image/digest"),
    (
        "image.repository=registry.example.com/flexvol:0.1.0",
        "/image/repository",
    ),
    ("pluginDir=relative", "/pluginDir"),
    ("claims=maybe", "/claims"),
    ("node.nodeSelector=foo", "/node/nodeSelector"),
    ("admission.growth=perhaps", "/admission/growth"),
    (
        "drivers[0].name=noslash,drivers[0].config=x",
        "/drivers/0/name",
    ),
    ("drivers=null", "drivers"),
    ("metrics=true", "/metrics"),
    (
        r"controller.podLabels.app\.kubernetes\.io/name=x",
        "podLabels",
    ),
    (
        "storageClasses[0].name=a,storageClasses[0].provisioner=b/c",
        "the drivers have: example.com/disk",
    ),
    ("image.repository=", "set image.repository to where"),
    // Former names.
    ("replicas=3", "replicas is called controller.replicas now"),
    (
        "alerts.enabled=true",
        "alerts is called metrics.prometheusRule now",
    ),
    (
        "admission.volumes=true",
        "admission.volumes is called admission.controller now",
    ),
];

pub fn check() -> Result<()> {
    // Only JSON has fractions.
    refuse("--set-json", "image.tag=1.1", "/image/tag")?;
    REFUSED
        .into_iter()
        .try_for_each(|(value, why)| refuse("--set", value, why))
}

fn refuse(flag: &str, value: &str, why: &str) -> Result<()> {
    let refused = Rendering::with(&[flag, value]).refused(why);
    refused.with_context(|| format!("{flag} {value}"))
}
