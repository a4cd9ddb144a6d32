//! The documents: their links resolve, and the first two that newcomers read stay short.

use flexvol_testing::{Points, tests};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

tests! {
    "documents: every link leads to a file and a heading that are there and in the book, and to every page leads one"
        => links_lead_somewhere;
    "documents: README and ARCHITECTURE have at most 150 lines" => first_pages_are_short;
    "documents: every script says how it is used, and does nothing else then"
        => scripts_say_how_they_are_used;
}

const PROJECT: &str = env!("CARGO_MANIFEST_DIR");

fn scripts_say_how_they_are_used(points: &Points) {
    for entry in fs::read_dir(Path::new(PROJECT).join("scripts")).unwrap() {
        let script = entry.unwrap().path();
        let name = script.file_name().unwrap().to_str().unwrap();
        // `lab` is a program of the workspace, which has to be built. `need` takes programs to install.
        if ["lab", "need"].contains(&name) {
            continue;
        }
        let output = Command::new(&script).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{name}"
        );
        // The usage text is the script's first comment, and all of it.
        let source = fs::read_to_string(&script).unwrap();
        let comment = source
            .lines()
            .skip(1)
            .map_while(|line| line.strip_prefix('#'));
        let comment: Vec<_> = comment
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), comment, "{name}");
        points.add(1);
    }
}

fn links_lead_somewhere(points: &Points) {
    let project = Path::new(PROJECT);
    let mut pages = markdown_in(&project.join("docs"));
    pages.retain(|page| !page.ends_with("docs/SUMMARY.md"));
    let beside = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "flex-spec.md",
    ];
    let beside = beside.map(|name| project.join(name));
    let sanity = markdown_in(&project.join("crates/sanity"));
    let mut linked = BTreeSet::new();
    let (book, deploy) = (in_book(), project.join("deploy").canonicalize().unwrap());
    for page in pages.iter().chain(&beside).chain(&sanity) {
        let text = prose(&fs::read_to_string(page).unwrap());
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let target = target.canonicalize();
            let target = target.unwrap_or_else(|e| panic!("{}: {link}: {e}", page.display()));
            if !heading.is_empty() {
                let text = prose(&fs::read_to_string(&target).unwrap());
                let mut anchors = text.lines().filter_map(anchor);
                let found = anchors.any(|anchor| anchor == heading);
                assert!(
                    found,
                    "{}: {link}: there is no such heading",
                    page.display()
                );
            }
            assert!(
                book.contains(&target) || target.starts_with(&deploy),
                "{}: {link}: docs/SUMMARY.md does not have it",
                page.display()
            );
            linked.insert(target);
            points.add(1);
        }
    }
    for page in pages {
        assert!(
            linked.contains(&page),
            "nothing leads to {}",
            page.display()
        );
    }
}

fn first_pages_are_short(points: &Points) {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let text = fs::read_to_string(Path::new(PROJECT).join(name)).unwrap();
        let lines = text.lines().count();
        assert!(
            lines <= 150,
            "{name} has {lines} lines: move something to docs"
        );
        points.add(1);
    }
}

/// Returns the files that `scripts/book` puts into the book.
fn in_book() -> BTreeSet<PathBuf> {
    let docs = Path::new(PROJECT).join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let pages = links(&summary).map(|page| docs.join(page).canonicalize().unwrap());
    pages.chain([Path::new(PROJECT).join("LICENSE")]).collect()
}

/// Returns all documents below a directory.
fn markdown_in(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(markdown_in(&path));
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path.canonicalize().unwrap());
        }
    }
    found
}

/// The text outside fenced blocks.
fn prose(text: &str) -> String {
    let outside = text.split("```").step_by(2);
    outside.collect()
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    let targets = ends.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
}

/// The anchor of a heading in links, as GitHub makes it.
fn anchor(line: &str) -> Option<String> {
    let heading = line.trim_start_matches('#').strip_prefix(' ')?;
    let heading = line.starts_with('#').then_some(heading)?;
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.collect::<String>().to_lowercase().replace(' ', "-"))
}
