//! The command `check`, beside controller and agent.

use crate::world::{SCRIPT, World, tell};
use flexvol_apiserver::{Fault, Kubernetes, Plan};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use std::process::{Child, Stdio};

pub fn grown_and_gone() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let (succeeded, said) = world.check("plain", &[]);
        let parts = [
            "made claim default/flexvol-check-",
            " of 10Mi, storage class plain\n",
            "bound to persistent volume pvc-",
            " of 10Mi, made by lab.example/plain on node node, after ",
            "asked for 20Mi\n",
            "grown to 20Mi, after ",
            "deleted the claim\n",
            "gone, with its volume and storage, after ",
        ];
        let mut rest = said.as_str();
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else {
                return Err(format!("{part:?} is missing in its place:\n{said}"));
            };
            rest = after;
        }
        assert!(succeeded, "{said}");
        assert!(world.nothing_is_left(), "{said}");
        Ok(())
    });
}

/// The driver's refusal is in what the command says.
pub fn without_room() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let full = r#"echo '{"status":"Failure","message":"there is no room","errorClass":"exhausted"}'; exit 1"#;
        let script = SCRIPT
            .replace("/var/lib/lab/plain", &world.path("node/storage"))
            .replace("expandvolume)\n", &format!("expandvolume)\n{full}\n"));
        world.install_script("node", &script);
        let (succeeded, said) = world.check("plain", &["--timeout=5"]);
        assert!(!succeeded, "{said}");
        assert!(
            said.contains("it took too long to grow the volume: "),
            "{said}"
        );
        assert!(said.contains("there is no room"), "{said}");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// The driver cannot grow anything, and its `init` does not say so: by Kubernetes' defaults kubelet grows the file system.
/// What the persistent volume and the claim's condition say then is only what was asked for.
pub fn without_sizes() {
    for expands in [false, true] {
        tell(World::beside(Kubernetes { expands }), |world| {
            world.start_on_a_node();
            let script = SCRIPT
                .replace("/var/lib/lab/plain", &world.path("node/storage"))
                .replace(r#","requiresFSResize":false"#, "")
                .replace("\nexpandvolume)\n", "\nno-expandvolume)\n");
            world.install_script("node", &script);
            let (succeeded, said) = world.check("plain", &[]);
            assert!(succeeded, "{said}");
            let parts = ["no growth was seen: ", "gone, with its volume and storage"];
            let is_said = parts.iter().all(|part| said.contains(part));
            assert!(is_said && !said.contains("grown to"), "{said}");
            assert!(world.nothing_is_left(), "{said}");
            Ok(())
        });
    }
}

pub fn without_agents() {
    tell(World::start(), |world| {
        world.node("node");
        world.start_controller(&[]);
        let (succeeded, said) = world.check("plain", &["--timeout=5"]);
        assert!(!succeeded, "{said}");
        let why = "\nevent ProvisioningFailed: no node has driver lab.example/plain\n";
        assert!(
            said.contains("it took too long to bind the claim"),
            "{said}"
        );
        assert!(said.contains(why), "{said}");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}

/// A class whose claims are not bound without pods, or leave their volumes.
pub fn of_another_class() {
    tell(World::start(), |world| {
        for (name, field, value) in [
            ("kept", "reclaimPolicy", "Retain"),
            ("late", "volumeBindingMode", "WaitForFirstConsumer"),
        ] {
            world.class(name, &json!({field: value}));
            let (succeeded, said) = world.check(name, &[]);
            assert!(!succeeded && said.contains(value), "{said}");
        }
        let (succeeded, said) = world.check("none", &[]);
        assert!(
            !succeeded && said.contains("read the storage class"),
            "{said}"
        );
        let requests = world.server.requests();
        let asked = |request: &String| request.starts_with("POST PersistentVolumeClaim");
        assert!(!requests.iter().any(asked), "no claim is made");
        Ok(())
    });
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

/// As kubelet ends it when its pod is deleted, and as a user does.
pub fn ended() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        tell(World::start(), |world| {
            world.node("node");
            world.start_controller(&[]);
            let mut command = world.check_command("plain");
            let check = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let check = check.spawn().unwrap();
            let made = world.eventually("a claim", |world| {
                world.server.store().count("PersistentVolumeClaim") == 1
            });
            kill(pid(&check), signal).unwrap();
            let output = check.wait_with_output().unwrap();
            made?;
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{said}");
            assert!(said.contains("interrupted before its end"), "{said}");
            world.eventually("nothing to be left", World::nothing_is_left)
        });
    }
}

pub fn without_reader() {
    tell(World::start(), |world| {
        world.start_on_a_node();
        let mut check = world.check_command("plain");
        let mut check = check.stdout(Stdio::piped()).spawn().unwrap();
        drop(check.stdout.take());
        assert!(check.wait().unwrap().success());
        assert!(world.nothing_is_left());
        Ok(())
    });
}

/// The claim was made, and the command was not told so.
pub fn unanswered() {
    tell(World::start(), |world| {
        world.node("node");
        let fault = Fault::LostAnswer;
        world.server.fail(Plan { fault, at: 1 });
        let (succeeded, said) = world.check("plain", &[]);
        assert!(!succeeded, "{said}");
        assert!(said.contains("make claim default/flexvol-check-"), "{said}");
        world.eventually("nothing to be left", World::nothing_is_left)
    });
}
