//! The command `check`, beside controller and agent.

use crate::world::{SCRIPT, World, tell};

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
