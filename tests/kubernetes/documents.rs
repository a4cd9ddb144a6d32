//! Commands in the documents: by hand on one node, and README's quick start in a cluster.

use crate::{lab::place_driver, objects::pod, scenario::Scenario};
use flexvol_testing::{Need, Points, tests};

tests! {
    "documents: install on a node, make a volume, use it, let it grow", &[Need::Root]
        => by_the_book;
}

const README: &str = include_str!("../../README.md");

const NODE: &str = include_str!("../../docs/operate/node.md");

/// The project's directory, in which a reader types the commands.
const PROJECT: &str = env!("CARGO_MANIFEST_DIR");

/// Directory in the node for what the reader writes into the project. It is lost at the next boot.
const LAYER: &str = "/run/documents";

/// A block of a section: commands after `$`, or objects.
#[derive(Debug)]
enum Block {
    Commands(Vec<Command>),
    Objects(&'static str),
}

/// A command, and its output according to the document.
#[derive(Debug)]
struct Command {
    line: &'static str,
    shown: Vec<&'static str>,
}

fn by_the_book(points: &Points) {
    let scenario = Scenario::begin();
    let Block::Commands(install) = &blocks(NODE, "Install")[0] else {
        panic!("the installation begins with something else than commands");
    };
    for command in install {
        type_in(&scenario, command.line);
        points.add(1);
    }
    let app = pod("app", "data");
    let mut sizes = Vec::new();
    for block in blocks(NODE, "Use") {
        match block {
            Block::Objects(text) => {
                scenario.lab().apply_text(text);
                scenario.wait_running(&app);
                sizes.push(scenario.size_in(&app));
            }
            Block::Commands(commands) => {
                for Command { line, .. } in commands {
                    let said = type_in(&scenario, line);
                    if line.contains("patch pvc") {
                        scenario.wait_grown_to("data", "2Gi");
                        sizes.push(scenario.size_in(&app));
                    }
                    assert!(!line.contains("df -h") || said.contains("/data"), "{said}");
                    points.add(1);
                }
            }
        }
    }
    assert_eq!(sizes.len(), 2, "the page grows its volume once");
    assert_eq!(sizes[1] - sizes[0], 1024, "MiB between {sizes:?}");
    assert_eq!(scenario.image_bytes("data"), 2 << 30);
    // Its shell ignores SIGTERM, and the default grace period is half a minute.
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
    // The reader replaced the driver by another build.
    place_driver(scenario.lab().cluster());
    scenario.end();
}

/// Follows README's quick start in a cluster with the chart, beginning with its objects, and removes everything.
pub fn quick_start(scenario: &Scenario) {
    for block in blocks(README, "Quick start") {
        match block {
            Block::Objects(text) => {
                let save = format!("cat >quick-start.yaml <<'END'\n{text}END");
                type_in(scenario, &save);
            }
            Block::Commands(commands) if commands[0].line.starts_with("kubectl ") => {
                for Command { line, shown } in commands {
                    let said = type_in(scenario, line);
                    let said: Vec<_> = said.lines().collect();
                    if line.contains("df -h") {
                        // Device numbers and the size of metadata differ.
                        assert_eq!(size(&said), size(&shown), "{line}");
                    } else {
                        assert_eq!(said, shown, "{line}");
                    }
                    if line.contains("patch pvc") {
                        scenario.wait_grown_to("data", "2Gi");
                    }
                }
            }
            // The image exists already: the chart's tests have one.
            Block::Commands(_) => {}
        }
    }
    let delete = "kubectl delete -f quick-start.yaml";
    assert!(README.contains(delete), "README deletes what it made");
    // Its shell ignores SIGTERM, and the default grace period is half a minute.
    type_in(scenario, &format!("{delete} --grace-period=1"));
}

/// Runs one line in the node, in the project's directory, as a person would.
#[track_caller]
fn type_in(scenario: &Scenario, line: &str) -> String {
    // Writes go to an overlay over the project, and `target` is where the page says.
    let line = format!(
        "mkdir -p {LAYER}/files {LAYER}/work && \
         mount -t overlay -o lowerdir={PROJECT},upperdir={LAYER}/files,workdir={LAYER}/work project {PROJECT} && \
         cd {PROJECT} && unset CARGO_TARGET_DIR && {line}"
    );
    let shell = ["--mount", "bash", "-o", "pipefail", "-c", &line];
    scenario.lab().run("unshare", &shell)
}

/// The blocks in the section with this heading.
fn blocks(document: &'static str, heading: &str) -> Vec<Block> {
    let start = document
        .find(&format!("\n## {heading}\n"))
        .expect("a section of the document");
    let section = &document[start + 1..];
    let section = section.find("\n## ").map_or(section, |end| &section[..end]);
    let fenced = section.split("```").skip(1).step_by(2);
    let blocks = fenced.map(
        |block| match block.split_once('\n').expect("a block of a section") {
            ("console", lines) => Block::Commands(commands(lines)),
            ("yaml", text) => Block::Objects(text),
            (other, _) => panic!("there is a block of {other:?} under {heading}"),
        },
    );
    blocks.collect()
}

/// The second column of the second line of `df`.
fn size<'text>(lines: &[&'text str]) -> &'text str {
    lines[1].split_whitespace().nth(1).expect("a size from df")
}

fn commands(lines: &'static str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for text in lines.lines() {
        match (text.strip_prefix("$ "), commands.last_mut()) {
            (Some(line), _) => commands.push(Command {
                line,
                shown: Vec::new(),
            }),
            (None, Some(command)) => command.shown.push(text),
            (None, None) => panic!("{text:?} comes before any command"),
        }
    }
    commands
}
