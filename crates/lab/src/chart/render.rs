//! Renders the chart by Helm.

use crate::project::project;
use anyhow::{Context, Result, bail, ensure};
use flexvol_lab::{
    helm,
    kubernetes::{Version, run},
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The directory `deploy` of the project.
pub fn deploy() -> PathBuf {
    project().join("deploy")
}

pub fn chart() -> PathBuf {
    deploy().join("chart")
}

/// A file with values, by the first part of its name.
pub fn values(set: &str) -> PathBuf {
    chart().join(format!("ci/{set}-values.yaml"))
}

pub fn helm() -> Result<Command> {
    let mut helm = Command::new(helm::program()?);
    // Rendering and linting store nothing.
    helm::keep_in(&mut helm, Path::new("/nonexistent"));
    Ok(helm)
}

/// What is rendered.
#[derive(Clone, Debug)]
pub struct Rendering<'a> {
    pub release: &'a str,
    pub namespace: &'a str,
    /// The release of Kubernetes.
    pub version: String,
    /// The file with values.
    pub set: &'a str,
    /// More arguments of Helm.
    pub arguments: &'a [&'a str],
}

impl<'a> Rendering<'a> {
    /// The default values and these arguments, in the newest release of Kubernetes.
    pub fn with(arguments: &'a [&'a str]) -> Self {
        Rendering {
            release: "flexvol",
            namespace: "flexvol",
            version: Version::newest().to_string(),
            set: "default",
            arguments,
        }
    }

    pub fn text(&self) -> Result<String> {
        let mut template = helm()?;
        template.args(["template", self.release]).arg(chart());
        template.args(["--namespace", self.namespace]);
        template.args(["--kube-version", &self.version]);
        template.arg("--values").arg(values(self.set));
        run(template.args(self.arguments))
    }

    /// Checks that the chart refuses this, and says why.
    pub fn refused(&self, why: &str) -> Result<()> {
        match self.text() {
            Ok(_) => bail!("it is not refused: {why}"),
            Err(error) => ensure!(
                format!("{error:#}").contains(why),
                "it is refused, and not because of {why}: {error:#}"
            ),
        }
        Ok(())
    }

    pub fn objects(&self) -> Result<Vec<Value>> {
        let text = self.text()?;
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).context("read what Helm has rendered")?;
        let is_there = |object: &Value| !object.is_null();
        Ok(objects.into_iter().filter(is_there).collect())
    }
}

/// The kind and the name of an object.
pub fn kind_and_name(object: &Value) -> (&str, &str) {
    (
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default(),
    )
}
