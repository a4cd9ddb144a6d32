//! README's way from an empty node to a volume that has grown, with README's own words.

use crate::{lab::place_driver, objects::pod, scenario::Scenario};
use flexvol_testing::{Need, Points, Test};

pub const TESTS: &[Test] = &[Test {
    name: "README: install, make a volume, use it, let it grow",
    needs: &[Need::Root],
    run: by_the_book,
}];

const README: &str = include_str!("../../README.md");

/// The project, where a reader of README types the commands.
const PROJECT: &str = env!("CARGO_MANIFEST_DIR");

/// In the node: what README's reader writes into the project, until the node is rebooted.
const LAYER: &str = "/run/readme";

/// A block of a section: commands after `$`, or an object.
#[derive(Debug)]
enum Block {
    Commands(Vec<&'static str>),
    Object(&'static str),
}

fn by_the_book(points: &Points) {
    let scenario = Scenario::begin();
    let Block::Commands(install) = &blocks("Install")[0] else {
        panic!("README's installation begins with something else than commands");
    };
    for command in install {
        type_in(&scenario, command);
        points.add(1);
    }
    let app = pod("app", "data");
    let mut sizes = Vec::new();
    for block in blocks("Use") {
        match block {
            Block::Object(text) => {
                scenario.lab().apply_text(text);
                scenario.wait_running(&app);
                sizes.push(scenario.size_in(&app));
            }
            Block::Commands(commands) => {
                for command in commands {
                    let said = type_in(&scenario, command);
                    if command.contains("patch pvc") {
                        scenario.wait_grown_to("data", "2Gi");
                        sizes.push(scenario.size_in(&app));
                    }
                    assert!(
                        !command.contains("df -h") || said.contains("/data"),
                        "{said}"
                    );
                    points.add(1);
                }
            }
        }
    }
    assert_eq!(sizes.len(), 2, "README grows its volume once");
    assert_eq!(sizes[1] - sizes[0], 1024, "MiB between {sizes:?}");
    assert_eq!(scenario.image_bytes("data"), 2 << 30);
    // Its shell does not listen to the signal that ends it, which takes half a minute.
    scenario
        .lab()
        .kubectl(&["delete", "pod", "app", "--grace-period=1"]);
    scenario.eventually("the volume to be unmounted", || {
        let listed = type_in(
            &scenario,
            "flexvol list --driver example.com/disk --output json",
        );
        !listed.contains("/pods/")
    });
    type_in(&scenario, "flexvol uninstall --name example.com/disk");
    // README put its own build in its place.
    place_driver(scenario.lab().cluster());
    scenario.end();
}

/// Runs one line in the node as a person would, in the project's directory.
#[track_caller]
fn type_in(scenario: &Scenario, line: &str) -> String {
    // What is written goes to a layer over the project, and `target` is where README says it is.
    let line = format!(
        "mkdir -p {LAYER}/files {LAYER}/work && \
         mount -t overlay -o lowerdir={PROJECT},upperdir={LAYER}/files,workdir={LAYER}/work project {PROJECT} && \
         cd {PROJECT} && unset CARGO_TARGET_DIR && {line}"
    );
    let shell = ["--mount", "bash", "-o", "pipefail", "-c", &line];
    scenario.lab().run("unshare", &shell)
}

/// The blocks of README's section with this heading.
fn blocks(heading: &str) -> Vec<Block> {
    let start = README
        .find(&format!("\n## {heading}\n"))
        .expect("a section of README");
    let section = &README[start + 1..];
    let section = section.find("\n## ").map_or(section, |end| &section[..end]);
    let fenced = section.split("```").skip(1).step_by(2);
    let blocks = fenced.map(
        |block| match block.split_once('\n').expect("a block of README") {
            ("console", lines) => Block::Commands(
                lines
                    .lines()
                    .filter_map(|line| line.strip_prefix("$ "))
                    .collect(),
            ),
            ("yaml", text) => Block::Object(text),
            (other, _) => panic!("README has a block of {other:?} under {heading}"),
        },
    );
    blocks.collect()
}
