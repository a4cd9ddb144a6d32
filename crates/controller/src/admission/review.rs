//! The questions of API servers and the answers to them (`k8s.io/api/admission/v1`).

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// An update that an API server asks about.
#[derive(Clone, Debug, Deserialize)]
pub struct Update<K> {
    /// What the answer refers to.
    pub uid: String,
    /// The object as it shall be.
    #[serde(rename = "object")]
    pub new: K,
    /// The object as it is.
    #[serde(rename = "oldObject")]
    pub old: K,
}

/// What nothing is judged by. Strangers may send long lists of empty things there, each of which
/// would be a hundred times as large in memory.
const UNREAD: [(&str, &str); 4] = [
    ("/metadata", "managedFields"),
    ("/metadata", "ownerReferences"),
    ("/spec", "template"),
    ("/status", "conditions"),
];

/// How many claim templates a set may have to be judged.
const MOST_TEMPLATES: usize = 64;

/// Reads a question about an update.
///
/// # Errors
/// When it is none, or about a set with too many claim templates.
pub fn read<K: DeserializeOwned>(body: &[u8]) -> Result<Update<K>> {
    #[derive(Deserialize)]
    struct Review {
        request: Update<Value>,
    }
    let review: Review = serde_json::from_slice(body).context("read the admission review")?;
    let Update { uid, new, old } = review.request;
    let [new, old] = [needed(new)?, needed(old)?];
    Ok(Update { uid, new, old })
}

/// The parts of an object that are judged.
fn needed<K: DeserializeOwned>(mut object: Value) -> Result<K> {
    for (place, key) in UNREAD {
        if let Some(Value::Object(parts)) = object.pointer_mut(place) {
            parts.remove(key);
        }
    }
    let templates = object.pointer("/spec/volumeClaimTemplates");
    let templates = templates.and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(
        templates <= MOST_TEMPLATES,
        "the set has {templates} claim templates, and more than {MOST_TEMPLATES} are not judged"
    );
    serde_json::from_value(object).context("read the object")
}

/// What is thought of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Why it is refused, if it is.
    pub refusal: Option<String>,
    /// What its author is told if it is not.
    pub warnings: Vec<String>,
    /// Operations that change it (RFC 6902).
    pub patch: Vec<Value>,
}

impl Verdict {
    /// It may pass.
    #[must_use]
    pub fn allowed() -> Self {
        Verdict::default()
    }

    /// It may pass, and its author is told something.
    #[must_use]
    pub fn warned(warning: String) -> Self {
        Verdict {
            warnings: vec![warning],
            ..Verdict::default()
        }
    }

    /// It may not pass.
    #[must_use]
    pub fn refused(why: String) -> Self {
        Verdict {
            refusal: Some(why),
            ..Verdict::default()
        }
    }

    /// The answer to the question with this UID.
    #[must_use]
    pub fn answer(&self, uid: &str) -> String {
        let mut response = json!({
            "uid": uid,
            "allowed": self.refusal.is_none(),
            "warnings": self.warnings,
        });
        if let Some(why) = &self.refusal {
            response["status"] = json!({"code": 403, "reason": "Forbidden", "message": why});
        } else if !self.patch.is_empty() {
            response["patchType"] = "JSONPatch".into();
            let patch = Value::from(self.patch.clone()).to_string();
            response["patch"] = json!(ByteString(patch.into_bytes()));
        }
        let review = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": response,
        });
        review.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PodTemplateSpec};

    fn response(verdict: &Verdict) -> Value {
        let answer: Value = serde_json::from_str(&verdict.answer("u-1")).unwrap();
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], "u-1");
        answer["response"].clone()
    }

    #[test]
    fn a_refusal_says_why_and_changes_nothing() {
        let mut verdict = Verdict::refused("no room".to_owned());
        verdict.patch = vec![json!({"op": "remove", "path": "/a"})];
        let response = response(&verdict);
        assert_eq!(response["allowed"], false);
        assert_eq!(response["status"]["message"], "no room");
        assert!(response.get("patch").is_none());
    }

    #[test]
    fn a_patch_is_sent_as_kubernetes_reads_it() {
        let verdict = Verdict {
            patch: vec![json!({"op": "add", "path": "/a", "value": "1"})],
            ..Verdict::warned("a is 1".to_owned())
        };
        let response = response(&verdict);
        assert_eq!(response["allowed"], true);
        assert_eq!(response["warnings"], json!(["a is 1"]));
        assert_eq!(response["patchType"], "JSONPatch");
        let patch: ByteString = serde_json::from_value(response["patch"].clone()).unwrap();
        let patch: Value = serde_json::from_slice(&patch.0).unwrap();
        assert_eq!(patch, json!(verdict.patch));
        assert!(self::response(&Verdict::allowed()).get("patch").is_none());
    }

    #[test]
    fn lists_of_strangers_stay_small() {
        let question = |object: Value| {
            let request = json!({"uid": "u", "object": object, "oldObject": {}});
            json!({"request": request}).to_string()
        };
        let many = vec![json!({}); 10_000];
        let bloated = question(json!({
            "metadata": {"name": "db", "managedFields": many, "ownerReferences": many},
            "spec": {"serviceName": "db", "template": {"spec": {"volumes": many}}},
        }));
        let set = read::<StatefulSet>(bloated.as_bytes()).unwrap().new;
        assert_eq!(set.metadata.name.as_deref(), Some("db"));
        assert_eq!(set.metadata.managed_fields, None);
        assert_eq!(set.metadata.owner_references, None);
        assert_eq!(set.spec.template, PodTemplateSpec::default());

        let templates = question(json!({"spec": {"volumeClaimTemplates": many}}));
        let error = read::<StatefulSet>(templates.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("10000 claim templates"));
    }

    #[test]
    fn what_is_no_question_is_no_update() {
        let question = json!({"request": {"uid": "u-1", "object": 2, "oldObject": 1}}).to_string();
        let update: Update<u8> = read(question.as_bytes()).unwrap();
        assert_eq!((update.uid.as_str(), update.old, update.new), ("u-1", 1, 2));
        for none in ["", "{}", r#"{"request": {"uid": "u", "object": 1}}"#] {
            assert!(read::<u8>(none.as_bytes()).is_err(), "{none}");
        }
    }
}
