//! The examples of flex-spec.md, for tests that parse them and tests that run them.

const SPEC: &str = include_str!("../../flex-spec.md");

/// One callout of the document: `$ driver CALLOUT …` and the line after it.
#[derive(Clone, Debug)]
pub struct Example {
    /// The heading above it, which for most is the callout's name.
    pub section: String,
    /// Whether it is about a driver installed with attach.
    pub attach: bool,
    /// The arguments after the executable, with placeholders.
    pub argv: Vec<String>,
    /// The reply, with placeholders.
    pub reply: String,
}

/// The examples in the order of the document, in which they can be run one after another.
pub fn examples() -> Vec<Example> {
    let mut examples = Vec::new();
    let mut section = String::new();
    let mut lines = SPEC.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("### ") {
            section = heading.trim_matches('`').to_owned();
        }
        let Some(info) = line.strip_prefix("```console") else {
            continue;
        };
        let mut argv = None;
        for line in lines.by_ref().take_while(|line| *line != "```") {
            match line.strip_prefix("$ driver ") {
                Some(command) => argv = Some(words(command)),
                None => examples.push(Example {
                    section: section.clone(),
                    attach: info.contains("attach"),
                    argv: argv
                        .take()
                        .unwrap_or_else(|| panic!("no command before {line}")),
                    reply: line.to_owned(),
                }),
            }
        }
        assert_eq!(argv, None, "a command without a reply in {section}");
    }
    examples
}

/// Splits a command line into words. Examples use only single quotes and spaces.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in command.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    assert!(!quoted, "an open quote in {command}");
    words.extend(word);
    words
}

/// Replaces `DIR/`, `HANDLE`, `VOLUMEID`, `BYTES` and `POOLSIZE` in a word or a reply. They stand for values that are
/// known only at run time.
pub fn filled(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(name, value)
    })
}
