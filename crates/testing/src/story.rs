//! Stories: sequences of requests to an API server and its answers, so that a real API server and its double can be
//! compared.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Sends the requests of a story to an API server and returns the answers.
///
/// A story has one line of JSON for each request: `what` it shows, `method`, `path` and optionally `body`. With `keep`
/// the answer is kept under a name; `{name/pointer}` in later requests is replaced by a value of that answer, such as a
/// resource version.
///
/// `curl` runs curl with these arguments and returns its output; `server` is the URL, `token` the client's credential.
///
/// # Panics
/// When the story or an answer is malformed.
#[must_use]
pub fn tell(
    story: &str,
    server: &str,
    token: &str,
    mut curl: impl FnMut(&[String]) -> String,
) -> Vec<Value> {
    let mut kept: BTreeMap<String, Value> = BTreeMap::new();
    let mut numbering = Numbering::default();
    let mut lines = Vec::new();
    for line in story.lines() {
        let step: Value = serde_json::from_str(line).expect("a line of JSON");
        let text = |key: &str| step[key].as_str().unwrap_or_default();
        let url = format!("{server}{}", filled(text("path"), &kept));
        let sort = match text("method") {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut arguments: Vec<_> = [
            ["--silent", "--show-error"],
            ["--insecure", "--globoff"],
            ["--request", text("method")],
            ["--header", &format!("Content-Type: {sort}")],
            ["--header", &format!("Authorization: Bearer {token}")],
            ["--write-out", "\\n%{http_code}"],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
        if !step["body"].is_null() {
            arguments.push("--data".to_owned());
            arguments.push(filled(&step["body"].to_string(), &kept));
        }
        arguments.push(url);
        let answer = curl(&arguments);
        let (body, code) = answer.rsplit_once('\n').expect("a body and a code");
        if let Some(name) = step["keep"].as_str() {
            let body = serde_json::from_str(body).unwrap_or_else(|e| panic!("{answer}: {e}"));
            kept.insert(name.to_owned(), body);
        }
        let code: u16 = code.trim().parse().expect("a code");
        // A watch answers with one object a line. The answer for an unknown path is not JSON.
        let all: Vec<Value> = serde_json::Deserializer::from_str(body)
            .into_iter()
            .map_while(Result::ok)
            .filter(|answer: &Value| answer.is_object() && answer["type"] != "BOOKMARK")
            .map(|answer| numbering.normalized(&answer))
            .collect();
        lines.push(json!({"what": step["what"], "code": code, "answer": all}));
    }
    lines
}

/// Replaces the placeholders in a text by values of earlier answers.
fn filled(text: &str, kept: &BTreeMap<String, Value>) -> String {
    let mut text = text.to_owned();
    for (name, answer) in kept {
        while let Some(start) = text.find(&format!("{{{name}/")) {
            let end = start + text[start..].find('}').expect("a brace that closes");
            let pointer = &text[start + 1 + name.len()..end];
            let value = answer.pointer(pointer).and_then(Value::as_str);
            let value = value
                .unwrap_or_else(|| panic!("{name} has no {pointer}: {answer}"))
                .to_owned();
            text.replace_range(start..=end, &value);
        }
    }
    text
}

/// Numbers values that differ in every run, in the order of their appearance.
#[derive(Default)]
struct Numbering(BTreeMap<(&'static str, String), usize>);

impl Numbering {
    fn number(&mut self, what: &'static str, value: &Value) -> Value {
        let Some(text) = value.as_str() else {
            return Value::Null;
        };
        let of_this = self.0.keys().filter(|(kind, _)| *kind == what).count();
        let known = self.0.entry((what, text.to_owned()));
        json!(format!("{what} {}", known.or_insert(of_this + 1)))
    }

    /// Reduces an answer to what shows the API server's behaviour.
    fn normalized(&mut self, answer: &Value) -> Value {
        let mut normalized = Map::new();
        for key in [
            "apiVersion",
            "kind",
            "type",
            "reason",
            "code",
            "spec",
            "status",
            "details",
        ] {
            normalized.insert(key.to_owned(), answer[key].clone());
        }
        match answer["kind"].as_str() {
            // The message differs between releases, and a success has none.
            Some("Status") => {
                normalized.insert("details".to_owned(), Value::Null);
            }
            Some(list) if list.ends_with("List") => {
                let items = answer["items"].as_array().into_iter().flatten();
                let items: Vec<_> = items.map(|item| self.normalized(item)).collect();
                normalized.insert("items".to_owned(), items.into());
                let more = answer["metadata"]["continue"].as_str();
                normalized.insert(
                    "more".to_owned(),
                    more.is_some_and(|m| !m.is_empty()).into(),
                );
            }
            _ if answer["object"].is_object() => {
                normalized.insert("object".to_owned(), self.normalized(&answer["object"]));
            }
            _ => {
                let meta = &answer["metadata"];
                normalized.insert(
                    "metadata".to_owned(),
                    json!({
                        "name": meta["name"],
                        "namespace": meta["namespace"],
                        "labels": meta["labels"],
                        "finalizers": meta["finalizers"],
                        "generation": meta["generation"],
                        "grace": meta["deletionGracePeriodSeconds"],
                        "deleting": meta["deletionTimestamp"].is_string(),
                        "uid": self.number("uid", &meta["uid"]),
                        "version": self.number("version", &meta["resourceVersion"]),
                    }),
                );
                // A timestamp.
                if let Some(Value::Object(status)) = normalized.get_mut("status") {
                    status.remove("lastPhaseTransitionTime");
                }
                for key in ["count", "parameters", "reclaimPolicy", "volumeBindingMode"] {
                    normalized.insert(key.to_owned(), answer[key].clone());
                }
            }
        }
        normalized.retain(|_, value| !value.is_null());
        Value::Object(normalized)
    }
}
