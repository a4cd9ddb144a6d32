//! Recorded callouts of a real Kubernetes.

use serde_json::Value;

/// One line of a recording: the caller, the callout, and the kinds of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Name of the calling program.
    pub caller: String,
    /// Name of the driver without its vendor.
    pub driver: String,
    /// The first argument.
    pub callout: String,
    /// Kinds of the other arguments, in the words of flex-spec.md: `DIR`, `DEVICE`, `JSON` … A directory is given with
    /// its owner, JSON with its keys.
    pub layout: Vec<String>,
}

impl Recorded {
    /// Parses a line.
    ///
    /// # Panics
    /// When the line is malformed.
    #[must_use]
    pub fn of(line: &Value) -> Self {
        let text = |key: &str| line[key].as_str().expect("a text").to_owned();
        let argv: Vec<&str> = line["argv"]
            .as_array()
            .expect("arguments")
            .iter()
            .map(|argument| argument.as_str().expect("a text"))
            .collect();
        let caller = text("caller");
        Recorded {
            // The kernel truncates a program's name to fifteen characters.
            caller: if "kube-controller-manager".starts_with(&caller) {
                "kube-controller-manager".to_owned()
            } else {
                caller
            },
            driver: text("driver"),
            callout: argv[0].to_owned(),
            layout: argv[1..].iter().map(|argument| kind(argument)).collect(),
        }
    }
}

fn kind(argument: &str) -> String {
    if let Ok(Value::Object(object)) = serde_json::from_str(argument) {
        // Options that the volume's author chose say nothing about the caller.
        let keys = object.keys().filter(|key| key.contains('/'));
        let keys: Vec<_> = keys
            .map(|key| key.trim_start_matches("kubernetes.io/"))
            .collect();
        return format!("JSON({})", keys.join(","));
    }
    let digits = !argument.is_empty() && argument.bytes().all(|byte| byte.is_ascii_digit());
    match argument {
        "" => "DEVICE(empty)".to_owned(),
        _ if digits => "BYTES".to_owned(),
        _ if argument.contains("/pods/") => "DIR(pod)".to_owned(),
        _ if argument.contains("/plugins/") => "DIR(node)".to_owned(),
        _ if argument.starts_with('/') => "DEVICE".to_owned(),
        _ => "NAME".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_told_by_their_kinds() {
        let line = json!({"caller": "kube-controller", "driver": "disk", "argv": [
            "expandfs", "{\"kubernetes.io/fsType\":\"\",\"pool\":\"a\"}", "",
            "/var/lib/kubelet/pods/1/volumes/a~b/v", "200", "100"]});
        let recorded = Recorded::of(&line);
        assert_eq!(recorded.caller, "kube-controller-manager");
        assert_eq!(recorded.callout, "expandfs");
        assert_eq!(
            recorded.layout,
            [
                "JSON(fsType)",
                "DEVICE(empty)",
                "DIR(pod)",
                "BYTES",
                "BYTES"
            ]
        );
    }
}
