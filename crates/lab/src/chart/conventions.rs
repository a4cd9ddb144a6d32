//! Names, labels and references of the chart's objects, whatever the release is called.

use super::render::{Rendering, kind_and_name};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Labels by which pods are selected.
const SELECTOR: [&str; 3] = [
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/name",
];

/// The other labels of each object.
const LABELS: [&str; 4] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Kinds whose names do not begin with the release's.
const FIXED: [&str; 4] = [
    "CSIDriver",
    "CustomResourceDefinition",
    "Namespace",
    "StorageClass",
];

/// Sets of values, with the name of the release, and what its objects' names begin with.
const RENDERED: [(&str, &[&str], &str, &str); 6] = [
    ("default", &[], "flexvol", "flexvol"),
    ("default", &[], "storage", "storage-flexvol"),
    ("everything", &[], "storage", "storage-flexvol"),
    (
        "everything",
        &["--set=fullnameOverride=disks"],
        "storage",
        "disks",
    ),
    ("drivers", &[], "flexvol", "flexvol"),
    ("drivers", &[], "other", "other-flexvol"),
];

/// Kinds that only the set with everything on has.
const OPTIONAL: [&str; 4] = ["Namespace", "NetworkPolicy", "PodMonitor", "PrometheusRule"];

pub fn check() -> Result<()> {
    for (set, arguments, release, prefix) in RENDERED {
        let rendering = Rendering {
            release,
            namespace: "elsewhere",
            set,
            ..Rendering::with(arguments)
        };
        let objects = rendering.objects();
        let objects = objects.with_context(|| format!("render the values {set}"))?;
        check_kinds(set, &objects)?;
        check_priorities(&objects).with_context(|| format!("render the values {set}"))?;
        check_class_of_test(&objects).with_context(|| format!("render the values {set}"))?;
        for object in &objects {
            let (kind, name) = kind_and_name(object);
            check_object(object, release, prefix)
                .and_then(|()| check_references(object, &objects))
                .with_context(|| format!("{kind} {name} of release {release} with {set}"))?;
        }
    }
    Ok(())
}

fn check_kinds(set: &str, objects: &[Value]) -> Result<()> {
    let kinds: BTreeSet<_> = objects
        .iter()
        .map(|object| kind_and_name(object).0)
        .collect();
    for kind in OPTIONAL {
        ensure!(
            kinds.contains(kind) == (set == "everything"),
            "whether there is a {kind} with the values {set}"
        );
    }
    Ok(())
}

/// Checks that the quota names the system's priority classes of all pods, which some clusters refuse otherwise.
fn check_priorities(objects: &[Value]) -> Result<()> {
    let names = |of: &mut dyn Iterator<Item = &Value>| -> BTreeSet<String> {
        of.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let specs = || objects.iter().map(|object| &object["spec"]);
    let mut used = names(&mut specs().map(|spec| &spec["template"]["spec"]["priorityClassName"]));
    used.retain(|name| name.starts_with("system-"));
    let scopes = specs()
        .filter_map(|spec| spec["scopeSelector"]["matchExpressions"][0]["values"].as_array());
    let admitted = names(&mut scopes.flatten());
    ensure!(
        used == admitted,
        "pods have the priority classes {used:?}, and a ResourceQuota admits {admitted:?}"
    );
    Ok(())
}

/// Checks that the class of `helm test`, which is there for everybody meanwhile, is of no use to tenants.
fn check_class_of_test(objects: &[Value]) -> Result<()> {
    let is_class = |object: &&Value| kind_and_name(object).0 == "StorageClass";
    for class in objects.iter().filter(is_class) {
        let annotations = labels(&class["metadata"]["annotations"]);
        if !annotations.contains_key("helm.sh/hook") {
            continue;
        }
        ensure!(
            annotations.get("flexvol.dev/namespaces") == Some(&"elsewhere"),
            "claims of other namespaces get volumes of the class of the test"
        );
        ensure!(
            annotations.contains_key("flexvol.dev/largest"),
            "volumes of the class of the test may have any size"
        );
    }
    Ok(())
}

fn check_object(object: &Value, release: &str, prefix: &str) -> Result<()> {
    let (kind, name) = kind_and_name(object);
    let rest = name.strip_prefix(prefix);
    ensure!(
        FIXED.contains(&kind) || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')),
        "the name does not begin with {prefix}"
    );
    check_labels(&object["metadata"]["labels"], release)?;
    let spec = &object["spec"];
    if !spec["template"].is_null() {
        check_labels(&spec["template"]["metadata"]["labels"], release).context("its pods")?;
        let selector = labels(&spec["selector"]["matchLabels"]);
        ensure!(
            selector.keys().copied().eq(SELECTOR),
            "pods are selected by {selector:?}"
        );
    }
    Ok(())
}

fn labels(of: &Value) -> BTreeMap<&str, &str> {
    let all = of.as_object().into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
        .collect()
}

fn check_labels(found: &Value, release: &str) -> Result<()> {
    let found = labels(found);
    for label in SELECTOR.iter().chain(&LABELS) {
        ensure!(
            found.get(label).is_some_and(|value| !value.is_empty()),
            "the label {label} is missing"
        );
    }
    ensure!(
        found["app.kubernetes.io/instance"] == release
            && found["app.kubernetes.io/name"] == "flexvol",
        "labels of another release: {found:?}"
    );
    Ok(())
}

/// Checks that whatever an object names is there.
fn check_references(object: &Value, objects: &[Value]) -> Result<()> {
    let there: BTreeSet<_> = objects.iter().map(kind_and_name).collect();
    let mut named = Vec::new();
    collect_named(object, &mut named);
    for (kind, name) in &named {
        ensure!(
            there.contains(&(kind.as_str(), name.as_str())),
            "it names {kind} {name}, which is not there"
        );
    }
    let spec = &object["spec"];
    let selectors = match kind_and_name(object).0 {
        "Service" => labels(&spec["selector"]),
        "NetworkPolicy" => labels(&spec["podSelector"]["matchLabels"]),
        "PodDisruptionBudget" | "PodMonitor" => labels(&spec["selector"]["matchLabels"]),
        _ => return Ok(()),
    };
    let selects = |of: &Value| {
        let pods = labels(&of["spec"]["template"]["metadata"]["labels"]);
        selectors
            .iter()
            .all(|(key, value)| pods.get(key) == Some(value))
    };
    ensure!(objects.iter().any(selects), "it selects no pods");
    Ok(())
}

/// Collects kind and name of what this part of an object names.
fn collect_named(part: &Value, named: &mut Vec<(String, String)>) {
    match part {
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = value["name"].as_str();
                let (kind, name) = match (key.as_str(), value.as_str()) {
                    ("serviceAccountName", name) => ("ServiceAccount", name),
                    ("policyName", name) => ("ValidatingAdmissionPolicy", name),
                    ("roleRef", _) => (value["kind"].as_str().unwrap_or_default(), name),
                    ("configMap", _) => ("ConfigMap", name),
                    ("serviceAccount", _) => ("ServiceAccount", name),
                    ("service", _) => ("Service", name),
                    _ => ("", None),
                };
                named.extend(name.map(|name| (kind.to_owned(), name.to_owned())));
            }
            if part["kind"] == "ServiceAccount" && part["metadata"].is_null() {
                let name = part["name"].as_str();
                named.extend(name.map(|name| ("ServiceAccount".to_owned(), name.to_owned())));
            }
            collect_resource_names(part, named);
            for value in fields.values() {
                collect_named(value, named);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| collect_named(value, named)),
        Value::String(text) => collect_from_text(text, named),
        _ => {}
    }
}

/// Collects what a rule of a role names. The leader makes the lease itself.
fn collect_resource_names(rule: &Value, named: &mut Vec<(String, String)>) {
    for resource in rule["resources"].as_array().into_iter().flatten() {
        let kind = match resource.as_str() {
            Some("deployments") => "Deployment",
            Some("secrets") => "Secret",
            Some("mutatingwebhookconfigurations") => "MutatingWebhookConfiguration",
            Some("validatingwebhookconfigurations") => "ValidatingWebhookConfiguration",
            _ => continue,
        };
        let names = rule["resourceNames"].as_array().into_iter().flatten();
        named.extend(names.map(|name| {
            let name = name.as_str().unwrap_or_default();
            (kind.to_owned(), name.to_owned())
        }));
    }
}

/// Collects what an argument of a program, or an expression of a policy, names.
fn collect_from_text(text: &str, named: &mut Vec<(String, String)>) {
    if let Some(name) = text.strip_prefix("--instance=") {
        // The lease, which is not there yet, has the controller's name.
        named.push(("Deployment".to_owned(), format!("{name}-controller")));
        named.push(("MutatingWebhookConfiguration".to_owned(), name.to_owned()));
        named.push(("Secret".to_owned(), format!("{name}-webhook")));
        named.push(("Service".to_owned(), format!("{name}-webhook")));
    }
    if let Some(name) = text.strip_prefix("--deployment=") {
        named.push(("Deployment".to_owned(), name.to_owned()));
    }
    if let Some(name) = text.strip_prefix("--class=") {
        named.push(("StorageClass".to_owned(), name.to_owned()));
    }
    if let Some((_, user)) = text.split_once("'system:serviceaccount:elsewhere:") {
        let name = user.split('\'').next().unwrap_or_default();
        named.push(("ServiceAccount".to_owned(), name.to_owned()));
    }
}
