//! The double answers as real API servers did, whose answers are recorded.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use flexvol_apiserver::Server;
use flexvol_testing::story::tell;
use serde_json::Value;
use std::{fs, path::Path, process::Command};

#[test]
fn the_double_answers_every_request_of_the_story_as_the_real_api_server_did() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/api");
    let story = fs::read_to_string(dir.join("story.jsonl")).unwrap();
    let server = Server::start().unwrap();
    let found = tell(
        &story,
        &format!("http://{}", server.address()),
        "",
        |arguments| {
            let output = Command::new("curl").args(arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        },
    );
    let known = fs::read_to_string(dir.join("recorded.jsonl")).unwrap();
    let known: Vec<Value> = known
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), known.len());
    let both = found.iter().zip(&known);
    let different: String = both
        .filter(|(found, known)| found != known)
        .map(|(found, known)| format!("found    {found}\nrecorded {known}\n"))
        .collect();
    assert!(different.is_empty(), "{different}");
}
