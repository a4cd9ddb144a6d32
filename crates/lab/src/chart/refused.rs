//! Values that the chart refuses, each by its name.

use super::render::Rendering;
use anyhow::{Result, bail, ensure};
use flexvol_lab::kubernetes::Version;

/// An argument of Helm, its value, and what the refusal has to contain.
type Refused = (&'static str, &'static str, &'static str);

const REFUSED: [Refused; 23] = [
    // Names that there are not.
    ("--set", "imgae.tag=x", "imgae"),
    ("--set", "image.tags=x", "tags"),
    ("--set", "node.toleration=x", "toleration"),
    (
        "--set",
        "drivers[0].name=a/b,drivers[0].configuration=x",
        "configuration",
    ),
    ("--set", "controller.resources.request.cpu=1", "request"),
    ("--set", "metrics.podMonitor.enable=true", "enable"),
    // Values of another kind.
    ("--set", "controller.replicas=abc", "/controller/replicas"),
    ("--set-json", "image.tag=1.1", "/image/tag"),
    ("--set", "image.digest=sha256:1", "/image/digest"),
    (
        "--set",
        "image.repository=registry.example.com/flexvol:0.1.0",
        "/image/repository",
    ),
    ("--set", "pluginDir=relative", "/pluginDir"),
    ("--set", "claims=maybe", "/claims"),
    ("--set", "node.nodeSelector=foo", "/node/nodeSelector"),
    ("--set", "admission.growth=perhaps", "/admission/growth"),
    (
        "--set",
        "drivers[0].name=noslash,drivers[0].config=x",
        "/drivers/0/name",
    ),
    ("--set", "drivers=null", "drivers"),
    ("--set", "metrics=true", "/metrics"),
    (
        "--set",
        r"controller.podLabels.app\.kubernetes\.io/name=x",
        "podLabels",
    ),
    (
        "--set",
        "storageClasses[0].name=a,storageClasses[0].provisioner=b/c",
        "the drivers have: example.com/disk",
    ),
    (
        "--set",
        "image.repository=",
        "set image.repository to where",
    ),
    // Former names.
    (
        "--set",
        "replicas=3",
        "replicas is called controller.replicas now",
    ),
    (
        "--set",
        "alerts.enabled=true",
        "alerts is called metrics.prometheusRule now",
    ),
    (
        "--set",
        "admission.volumes=true",
        "admission.volumes is called admission.controller now",
    ),
];

pub fn check() -> Result<()> {
    for (flag, value, why) in REFUSED {
        let rendering = Rendering {
            release: "flexvol",
            namespace: "flexvol",
            version: &Version::newest().to_string(),
            set: "default",
            arguments: &[flag, value],
        };
        match rendering.text() {
            Ok(_) => bail!("{flag} {value} is not refused"),
            Err(error) => ensure!(
                format!("{error:#}").contains(why),
                "{flag} {value} is refused, and not because of {why}: {error:#}"
            ),
        }
    }
    Ok(())
}
