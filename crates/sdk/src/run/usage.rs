//! What a person is told who runs a driver by hand.

use crate::Callout;
use std::ffi::OsString;

/// Whether these are the arguments of a person at a terminal. No caller leaves them out.
pub(super) fn is_asked_for(arguments: &[OsString]) -> bool {
    match arguments {
        [] => true,
        [only] => ["--help", "-h", "help"].iter().any(|name| only == name),
        _ => false,
    }
}

/// Says what the program is, and lists its callouts.
pub(super) fn text(program: &str) -> String {
    let callouts = Callout::USAGE.map(|callout| format!("  {program} {callout}\n"));
    format!(
        "{program} is a FlexVolume driver. Kubernetes runs it once for each operation on a volume, and reads one line of JSON:\n\n\
         {}\nJSON is one object of strings: the volume's options, and the keys kubernetes.io/... that kubelet adds.\n\
         The driver is installed as VENDOR~{program}/{program} below kubelet's --volume-plugin-dir.\n",
        callouts.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_names_every_callout() {
        let text = text("disk");
        for name in Callout::NAMES {
            let line = format!("\n  disk {name}");
            assert!(
                text.contains(&format!("{line} ")) || text.contains(&format!("{line}\n")),
                "{name}: {text}"
            );
        }
    }

    #[test]
    fn a_callout_is_never_taken_for_a_question() {
        let asked = |line: &[&str]| is_asked_for(&line.iter().map(Into::into).collect::<Vec<_>>());
        assert!(asked(&[]) && asked(&["--help"]));
        assert!(!asked(&["init"]) && !asked(&["unmount", "--help"]));
        for name in Callout::NAMES {
            assert!(!asked(&[name]), "{name}");
        }
    }
}
