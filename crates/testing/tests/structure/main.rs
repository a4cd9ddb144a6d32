//! How the sources of all crates hang together: dependencies between files go one way.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod events;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Modules by path, `a::b`, with the modules that each names.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directories of sources, each with the name of its crate.
fn crates() -> Vec<(String, PathBuf)> {
    let root = workspace();
    let mut all = vec![("flexvol".to_owned(), root.join("src"))];
    for folder in ["crates", "drivers"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let source = entry.path().join("src");
            if source.is_dir() {
                all.push((entry.file_name().into_string().unwrap(), source));
            }
        }
    }
    all
}

/// The sources of a crate by the path of their module; those of the crate's roots have none.
fn sources(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let module = module(path.strip_prefix(directory).unwrap());
                let text = fs::read_to_string(&path).unwrap();
                found
                    .entry(module)
                    .or_insert_with(String::new)
                    .push_str(&text);
            }
        }
    }
    found
}

fn module(file: &Path) -> String {
    let mut parts: Vec<_> = file
        .with_extension("")
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    if matches!(parts.last().unwrap().as_str(), "mod" | "lib" | "main") {
        parts.pop();
    }
    parts.join("::")
}

/// Without what is only there in tests.
fn product(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests {").next().unwrap()
}

/// Without comments, texts, and what is only there in tests.
fn code(source: &str) -> String {
    let lines = product(source)
        .lines()
        .map(|line| line.split("//").next().unwrap());
    let mut code = String::new();
    for line in lines {
        // Every second part is in quotes.
        let parts = line.split('"').step_by(2);
        code.extend(parts.chain(["\n"]));
    }
    code
}

/// The paths that a `use` names, with its braces resolved.
fn expand(prefix: &str, text: &str, into: &mut Vec<String>) {
    let mut depth = 0;
    let mut start = 0;
    for (at, character) in text.char_indices().chain([(text.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = text[start..at].trim();
                start = (at + 1).min(text.len());
                match part.split_once('{') {
                    Some((head, rest)) => {
                        let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
                        expand(&format!("{prefix}{}", head.trim()), inner, into);
                    }
                    None if part.is_empty() => {}
                    None => into.push(format!("{prefix}{}", part.split(" as ").next().unwrap())),
                }
            }
            _ => {}
        }
    }
}

/// The paths in a source that begin in its own crate, as they are written.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("use ") {
        let (tree, after) = after.split_once(';').unwrap_or((after, ""));
        let line = before.rsplit('\n').next().unwrap().trim();
        if line.is_empty() || line.starts_with("pub") {
            expand("", &tree.replace('\n', " "), &mut found);
        }
        rest = after;
    }
    let is_path = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':');
    let words = code.split(|character| !is_path(character));
    found.extend(words.filter(|word| word.contains("::")).map(str::to_owned));
    found
}

/// The module that a path of `from` leads to.
fn resolve(from: &str, path: &str, modules: &BTreeSet<String>) -> Option<String> {
    let mut base: Vec<&str> = from.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    match *parts.first()? {
        "crate" => {
            base.clear();
            parts.remove(0);
        }
        "self" => {
            parts.remove(0);
        }
        "super" => {
            while parts.first() == Some(&"super") {
                base.pop();
                parts.remove(0);
            }
        }
        // Of this module's own children, or another crate.
        first => {
            let child = [base.as_slice(), &[first]].concat().join("::");
            if !modules.contains(&child) {
                return None;
            }
        }
    }
    let mut target = base;
    for part in parts {
        let next = [target.as_slice(), &[part]].concat().join("::");
        if !modules.contains(&next) {
            break;
        }
        target.push(part);
    }
    Some(target.join("::"))
}

fn graph(sources: &BTreeMap<String, String>) -> Graph {
    let modules: BTreeSet<_> = sources.keys().cloned().collect();
    let mut graph = Graph::new();
    for (module, source) in sources {
        let is_test = module.rsplit("::").next() == Some("tests");
        if is_test || module.is_empty() {
            continue;
        }
        let named = paths(&code(source));
        let named = named
            .iter()
            .filter_map(|path| resolve(module, path, &modules));
        let is_other = |target: &String| {
            // A module and its own children are one thing.
            !target.is_empty() && target != module && !target.starts_with(&format!("{module}::"))
        };
        graph.insert(module.clone(), named.filter(is_other).collect());
    }
    graph
}

/// A circle of modules, if there is one.
fn circle(graph: &Graph) -> Option<Vec<String>> {
    fn visit(
        graph: &Graph,
        module: &str,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(at) = way.iter().position(|seen| seen == module) {
            return Some(way[at..].to_vec());
        }
        if !done.insert(module.to_owned()) {
            return None;
        }
        way.push(module.to_owned());
        for next in graph.get(module).into_iter().flatten() {
            if let Some(found) = visit(graph, next, way, done) {
                return Some(found);
            }
        }
        way.pop();
        None
    }
    let mut done = BTreeSet::new();
    graph
        .keys()
        .find_map(|module| visit(graph, module, &mut Vec::new(), &mut done))
}

/// What stands side by side in a folder, files and folders, with what each names of the others.
fn side_by_side(graph: &Graph, folder: &str) -> Graph {
    let prefix = match folder {
        "" => String::new(),
        folder => format!("{folder}::"),
    };
    let entry = |module: &str| {
        let inside = module.strip_prefix(&prefix)?;
        Some(inside.split("::").next().unwrap_or(inside).to_owned())
    };
    let mut entries = Graph::new();
    for (module, named) in graph {
        let Some(from) = entry(module) else { continue };
        let others = named.iter().filter_map(|module| entry(module));
        let others: Vec<_> = others.filter(|other| *other != from).collect();
        entries.entry(from).or_default().extend(others);
    }
    entries
}

/// Every module that has others in it, and the crate itself.
fn folders(graph: &Graph) -> BTreeSet<String> {
    let outer = |module: &String| module.rsplit_once("::").map(|(outer, _)| outer.to_owned());
    graph
        .keys()
        .filter_map(outer)
        .chain([String::new()])
        .collect()
}

#[test]
fn no_file_depends_on_itself_by_way_of_others() {
    for (name, directory) in crates() {
        let circle = circle(&graph(&sources(&directory)));
        assert_eq!(circle, None, "{name}");
    }
}

#[test]
fn no_folder_depends_on_itself_by_way_of_others() {
    for (name, directory) in crates() {
        let graph = graph(&sources(&directory));
        for folder in folders(&graph) {
            let circle = circle(&side_by_side(&graph, &folder));
            assert_eq!(circle, None, "{name}: {folder}");
        }
    }
}

/// Sources that are made on purpose.
fn made(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
    let all = texts.iter();
    all.map(|(module, text)| ((*module).to_owned(), (*text).to_owned()))
        .collect()
}

/// From so many lines on a file has two subjects, or says in its first comment why it is one file.
const LONG: usize = 400;

#[test]
fn a_long_file_says_why_it_is_one() {
    let mut left = vec![workspace()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let is_source = path.extension().is_some_and(|kind| kind == "rs");
            if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
                left.push(path);
            } else if is_source {
                let text = fs::read_to_string(&path).unwrap();
                let comment = text.lines().take_while(|line| line.starts_with("//!"));
                let says_why = comment.collect::<String>().contains("one file");
                let lines = text.lines().count();
                assert!(
                    lines <= LONG || says_why,
                    "{}: {lines} lines",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn a_circle_that_is_made_on_purpose_is_found() {
    let one_way = made(&[
        ("a", "use crate::b::{C, d};"),
        ("b", "mod c;\nuse c::X;"),
        ("b::c", "use super::Y;"),
    ]);
    assert_eq!(circle(&graph(&one_way)), None);
    for back in [
        "use crate::{\n    a,\n};",
        "fn f() { crate::a::g() }",
        "use super::{a::T, other};",
    ] {
        let round = made(&[("a", "use crate::b::C;"), ("b", back)]);
        assert_eq!(circle(&graph(&round)).unwrap(), ["a", "b"], "{back}");
    }
}

#[test]
fn a_circle_of_folders_that_is_made_on_purpose_is_found() {
    let files = [
        ("a", "mod high;\nmod low;"),
        ("a::low", ""),
        ("a::high", "use crate::b::T;"),
        ("b", "use crate::a::low::U;"),
    ];
    let graph = graph(&made(&files));
    assert_eq!(circle(&graph), None);
    assert_eq!(folders(&graph), BTreeSet::from([String::new(), "a".into()]));
    assert_eq!(circle(&side_by_side(&graph, "")).unwrap(), ["a", "b"]);
    assert_eq!(circle(&side_by_side(&graph, "a")), None);
}
