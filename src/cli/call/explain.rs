//! Explanations of a callout and its answer.

use flexvol_storage::{
    host::exec::Output,
    sdk::{Callout, DriverStatus, Status},
};
use std::{ffi::OsString, path::Path, time::Duration};

/// The arguments of each callout in the newest Kubernetes, and its purpose in words. The last two arguments of an
/// expansion are bytes.
const LAYOUTS: [(&str, &str, &str); 15] = [
    ("init", "", "what the driver can do"),
    ("getvolumename", "JSON", "a name, which nobody uses"),
    ("attach", "JSON NODE", "to attach the volume to the node"),
    (
        "waitforattach",
        "DEVICE JSON",
        "to wait until the volume is attached",
    ),
    (
        "isattached",
        "JSON NODE",
        "whether the volume is attached to the node",
    ),
    ("detach", "NAME NODE", "to detach the volume from the node"),
    (
        "mountdevice",
        "DIR DEVICE JSON",
        "to mount the volume for all pods of the node",
    ),
    (
        "unmountdevice",
        "DIR",
        "to unmount what is mounted for all pods of the node",
    ),
    ("mount", "DIR JSON", "to mount the volume for a pod"),
    ("unmount", "DIR", "to unmount what is mounted for a pod"),
    (
        "expandvolume",
        "JSON DIR NEW OLD, or NEW OLD JSON",
        "to grow the volume",
    ),
    (
        "expandfs",
        "JSON DEVICE DIR NEW OLD, or NEW OLD JSON",
        "to grow the volume and its file system",
    ),
    ("provision", "JSON", "to make a volume"),
    ("delete", "JSON", "to delete the volume and its data"),
    ("capacity", "JSON", "how large a volume could be made"),
];

/// Explains what is asked, or how to ask it correctly.
pub fn question(executable: &Path, argv: &[OsString]) -> Vec<String> {
    let name = argv.first().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    let layout = LAYOUTS.iter().find(|(known, ..)| name == *known);
    let Some((_, arguments, purpose)) = layout else {
        // Do not print the word: if the callout was forgotten, it may be an argument with secrets.
        let known = LAYOUTS.map(|(name, ..)| name).join(" ");
        return vec![
            format!("calling {}", executable.display()),
            format!("wrong   the first word is no callout; these are: {known}"),
        ];
    };
    let mut lines = vec![format!("calling {} {name}", executable.display())];
    match Callout::parse(argv) {
        Ok(callout) => {
            let about = callout.subject().map(|subject| format!(" ({subject})"));
            lines.push(format!("asked   {purpose}{}", about.unwrap_or_default()));
            lines.extend(sizes(&callout));
        }
        Err(error) => {
            lines.push(format!("wrong   {error}"));
            lines.push(format!("usage   {name} {arguments}"));
            lines.extend(words(arguments));
        }
    }
    lines
}

fn sizes(callout: &Callout) -> Option<String> {
    match callout {
        Callout::ExpandFs { size, .. } | Callout::ExpandVolume { size, .. } => Some(format!(
            "sizes   from {} to at least {}",
            size.old, size.new
        )),
        Callout::Provision { size, .. } => Some(format!("sizes   at least {size}")),
        _ => None,
    }
}

fn words(arguments: &str) -> Vec<String> {
    const WORDS: [(&str, &str); 6] = [
        (
            "JSON",
            r#"an object of strings: '{"kubernetes.io/pvOrVolumeName":"pv1","kubernetes.io/readwrite":"rw","handle":"..."}'"#,
        ),
        (
            "DIR",
            "an absolute directory; kubelet makes it before mount",
        ),
        (
            "DEVICE",
            "what attach answered; '' for a driver without attach",
        ),
        ("NAME", "the name of the persistent volume"),
        ("NODE", "the name of the node in Kubernetes"),
        ("NEW OLD", "plain numbers of bytes"),
    ];
    WORDS
        .iter()
        .filter(|(word, _)| arguments.contains(word))
        .map(|(word, meaning)| format!("        {word}: {meaning}"))
        .collect()
}

/// Explains how kubelet interprets the answer (`handleCmdResponse` in pkg/volume/flexvolume/driver-call.go).
pub fn answer(output: &Output, code: u8, took: Duration) -> Vec<String> {
    let tenths = took.as_micros() / 100;
    let mut lines = vec![format!(
        "took    {}.{} ms, exit code {code}",
        tenths / 10,
        tenths % 10
    )];
    if !output.stderr.is_empty() {
        lines.push(
            "stderr  kubelet reads standard error as part of the reply, and this spoils it:"
                .to_owned(),
        );
        let text = String::from_utf8_lossy(&output.stderr);
        lines.extend(text.lines().map(|line| format!("        {line}")));
    }
    let taken = match serde_json::from_slice::<DriverStatus>(&output.stdout) {
        Err(error) => format!("an error: the reply is not the JSON of a driver ({error})"),
        Ok(_) if !output.stderr.is_empty() => "an error: the reply is not JSON alone".to_owned(),
        Ok(reply) => match (reply.status, code) {
            (Status::Success, 0) => "done".to_owned(),
            (Status::Success, _) => "an error: Success with another exit code than 0".to_owned(),
            (Status::NotSupported, _) => {
                "not supported: it does not ask again for any volume of the driver".to_owned()
            }
            (Status::Failure, _) => format!(
                "failed, and asks again: {}",
                reply.message.unwrap_or_default()
            ),
        },
    };
    lines.push(format!("kubelet takes it as {taken}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(argv: &[&str]) -> String {
        let argv: Vec<OsString> = argv.iter().map(Into::into).collect();
        question(Path::new("/d"), &argv).join("\n")
    }

    #[test]
    fn every_callout_has_a_layout() {
        let names = LAYOUTS.map(|(name, ..)| name);
        assert_eq!(names, Callout::NAMES);
    }

    #[test]
    fn what_is_asked_is_told() {
        let told = ask(&[
            "expandfs",
            r#"{"kubernetes.io/pvOrVolumeName":"pv1"}"#,
            "",
            "/dir",
            "2048",
            "1024",
        ]);
        assert!(
            told.contains("(pv1)") && told.contains("from 1Ki to at least 2Ki"),
            "{told}"
        );
    }

    #[test]
    fn wrong_arguments_are_explained() {
        let told = ask(&["mount", "/dir"]);
        assert!(
            told.contains("usage   mount DIR JSON") && told.contains("JSON: an object"),
            "{told}"
        );
        assert!(!told.contains("DEVICE"), "{told}");
        let told = ask(&["mout"]);
        assert!(told.contains("unmountdevice mount unmount"), "{told}");
    }

    #[test]
    fn no_secret_is_told() {
        let json = r#"{"kubernetes.io/secret/k":"aHVudGVyMg=="}"#;
        for argv in [&["mount", "/dir", json][..], &["mount", json], &[json]] {
            let told = ask(argv);
            assert!(
                !told.contains("aHVudGVyMg") && !told.contains("hunter2"),
                "{told}"
            );
        }
    }
}
