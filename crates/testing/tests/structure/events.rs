//! The page about troubleshooting names the reasons of all events that the controller writes.

use super::{product, sources, workspace};
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../../docs/operate/troubleshooting.md");

/// The arguments of a call that are before its closing bracket.
fn arguments(call: &str) -> Vec<&str> {
    let (mut found, mut start) = (Vec::new(), 0);
    let (mut depth, mut is_quoted, mut last) = (0, false, ' ');
    for (at, character) in call.char_indices() {
        match character {
            '"' if last != '\\' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' | '{' => depth += 1,
            ',' | ')' if depth == 0 => {
                found.push(call[start..at].trim());
                start = at + 1;
                if character == ')' {
                    break;
                }
            }
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        last = character;
    }
    found.retain(|argument| !argument.is_empty());
    found
}

/// The texts in an expression, and those of its constants.
fn texts(expression: &str, files: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (number, part) in expression.split('"').enumerate() {
        if number % 2 == 1 {
            found.insert(part.to_owned());
            continue;
        }
        let is_name = |character: char| character.is_alphanumeric() || character == '_';
        let names = part.split(|character| !is_name(character));
        let is_constant = |name: &str| {
            name.starts_with(|first: char| first.is_uppercase()) && name == name.to_uppercase()
        };
        for name in names.filter(|name| is_constant(name)) {
            let begin = format!("const {name}: &str = \"");
            let value = files.iter().find_map(|file| file.split_once(&begin));
            let value = value.unwrap_or_else(|| panic!("constant {name} is no text"));
            found.insert(value.1.split('"').next().unwrap().to_owned());
        }
    }
    found
}

/// The texts of a variable: of its `let`, or of the calls of the closure whose first parameter it is.
fn texts_of_variable(variable: &str, file: &str, files: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let begin = format!("let {variable} = ");
    for statement in file.split(&begin).skip(1) {
        found.extend(texts(statement.split(';').next().unwrap(), files));
    }
    if let Some((before, _)) = file.split_once(&format!(" = |{variable}: &str")) {
        let closure = before.rsplit(' ').next().unwrap();
        for call in file.split(&format!(" {closure}(")).skip(1) {
            found.extend(texts(arguments(call)[0], files));
        }
    }
    found
}

/// The reasons with which files record events: the third of the four arguments of `record`.
fn reasons(files: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        for call in file.split(".record(").skip(1) {
            // What else is recorded has fewer arguments.
            let [_, _, reason, _] = arguments(call)[..] else {
                continue;
            };
            let mut of_call = texts(reason, files);
            if of_call.is_empty() {
                of_call = texts_of_variable(reason, file, files);
            }
            assert!(
                !of_call.is_empty(),
                "no reason is found for `{reason}` in .record({}; record the event with a text or a constant",
                call.chars().take(100).collect::<String>()
            );
            found.extend(of_call);
        }
    }
    found
}

/// The reasons in the first column of the table of events.
fn reasons_in_page(page: &str) -> BTreeSet<String> {
    let section = page.split("\n## Events\n").nth(1).unwrap();
    let table = section.split("\n#").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

#[test]
fn troubleshooting_names_every_reason_of_an_event_and_no_other() {
    let all = sources(&workspace().join("crates/controller/src"));
    let is_product = |module: &str| module.split("::").all(|part| part != "tests");
    let files: Vec<_> = all
        .iter()
        .filter(|(module, _)| is_product(module))
        .map(|(_, source)| product(source).to_owned())
        .collect();
    assert_eq!(reasons(&files), reasons_in_page(PAGE));
}

#[test]
fn a_reason_is_found_however_it_is_written() {
    let files = [
        r#"pub const GONE: &str = "Gone"; all.record(name);"#,
        r#"events.record(claim, kind(a, b), "Made", &format!("a, ({b}"));"#,
        "events.record(\n    &set,\n    EventType::Normal,\n    GONE,\n    why,\n);",
        r#"let reason = match kind { Kind::Left => "Left", _ => GONE }; events.record(a, b, reason, c)"#,
        r#"let tell = |word: &str, why: &str| { events.record(a, b, word, why); }; tell("Told", x)"#,
    ];
    let found = reasons(&files.map(str::to_owned));
    assert_eq!(Vec::from_iter(found), ["Gone", "Left", "Made", "Told"]);
}
