//! Admission reviews: requests of API servers, and responses (`k8s.io/api/admission/v1`).

use crate::{
    api::well_known::{CLASS, GROW, is_object_name},
    client::prune::{Keep, Prune},
};
use anyhow::{Context, Result, anyhow, ensure};
use http_body_util::BodyExt;
use hyper::body::Body;
use k8s_openapi::{ByteString, api::apps::v1::StatefulSet};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// An update that is reviewed.
#[derive(Clone, Debug, Deserialize)]
pub struct Update<K> {
    /// The request's UID, for the response.
    pub uid: String,
    /// The object as it shall be.
    #[serde(rename = "object")]
    pub new: K,
    /// The object as it is.
    #[serde(rename = "oldObject")]
    pub old: K,
}

/// Maximum length of a request. It contains an object twice, and objects in etcd have at most a mebibyte and a half. A
/// longer request passes without a review.
const MAX_LENGTH: usize = 4 << 20;

/// Maximum number of needed bytes of a request. Usual ones have less than a tenth of it, which becomes twenty times as
/// large in memory.
const KEPT: usize = 64 << 10;

/// Maximum number of a set's claim templates. Each may need two requests to the API server, while other reviews wait.
const MOST_TEMPLATES: usize = 16;

const WORD: Keep = Keep::WORD;
const STORAGE: Keep = Keep::Members(&[("storage", WORD)]);
const CLASS_OF_CLAIM: Keep = Keep::Members(&[(CLASS, WORD)]);

macro_rules! review {
    ($($name:literal: $keep:expr),* $(,)?) => {
        Keep::Whole(KEPT, &Keep::Members(&[("request", Keep::Members(&[
            ("uid", WORD),
            ("namespace", WORD),
            ("object", Keep::Members(&[$(($name, $keep)),*])),
            ("oldObject", Keep::Members(&[$(($name, $keep)),*])),
        ]))]))
    };
}

/// Needed fields of a claim's update.
pub static CLAIM: Keep = review!(
    "metadata": Keep::Members(&[
        ("name", WORD), ("namespace", WORD), ("uid", WORD), ("deletionTimestamp", WORD),
        ("annotations", CLASS_OF_CLAIM),
    ]),
    "spec": Keep::Members(&[
        ("volumeName", WORD), ("storageClassName", WORD),
        ("resources", Keep::Members(&[("requests", STORAGE)])),
    ]),
    "status": Keep::Members(&[("phase", WORD), ("capacity", STORAGE)]),
);

/// Needed fields of a stateful set's update.
pub static SET: Keep = review!(
    "metadata": Keep::Members(&[
        ("name", WORD), ("namespace", WORD), ("uid", WORD), ("deletionTimestamp", WORD),
        ("annotations", Keep::Begins(GROW, &WORD)),
    ]),
    "spec": Keep::Members(&[
        ("replicas", WORD),
        ("ordinals", Keep::Members(&[("start", WORD)])),
        ("selector", Keep::Members(&[("matchLabels", Keep::Each(&WORD))])),
        // All templates are kept, because the patch addresses a template by its index.
        ("volumeClaimTemplates", Keep::Members(&[
            ("metadata", Keep::Members(&[("name", WORD), ("annotations", CLASS_OF_CLAIM)])),
            ("spec", Keep::Members(&[
                ("storageClassName", WORD),
                ("resources", Keep::Members(&[("requests", STORAGE)])),
            ])),
        ])),
    ]),
    "status": Keep::Members(&[("replicas", WORD)]),
);

/// Receives the needed fields of a request. The rest is never in memory.
///
/// # Errors
/// When the request is incomplete or too large.
pub async fn arrive<B>(needed: &'static Keep, mut body: B) -> Result<Vec<u8>>
where
    B: Body + Unpin,
    B::Data: AsRef<[u8]>,
{
    let (mut prune, mut kept, mut length) = (Prune::new(needed), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| anyhow!("the question did not arrive"))?;
        let Ok(part) = frame.into_data() else {
            continue;
        };
        length += part.as_ref().len();
        ensure!(length <= MAX_LENGTH, "the question is too long");
        kept.append(&mut prune.next(part.as_ref())?);
        // Any number of spaces may precede or follow a value.
        ensure!(
            kept.len() <= KEPT,
            "there is too much between the question's values"
        );
    }
    Ok(kept)
}

/// The namespace of a request's object, as the API server writes it, or an empty one. Nothing else is parsed, and a host
/// that is no API server may write any text.
pub fn namespace(kept: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Request {
        namespace: String,
    }
    #[derive(Deserialize)]
    struct Review {
        request: Request,
    }
    let review = serde_json::from_slice(kept);
    let named = review.map(|Review { request }| request.namespace);
    named
        .ok()
        .filter(|name| is_object_name(name))
        .unwrap_or_default()
}

/// Parses the needed fields of a request.
///
/// # Errors
/// When it is no admission review.
pub fn read<K: DeserializeOwned>(kept: &[u8]) -> Result<Update<K>> {
    #[derive(Deserialize)]
    #[serde(bound = "K: DeserializeOwned")]
    struct Review<K> {
        request: Update<K>,
    }
    let review: Review<K> = serde_json::from_slice(kept).context("read the admission review")?;
    Ok(review.request)
}

impl Update<StatefulSet> {
    /// # Errors
    /// When the set has too many claim templates to be judged.
    pub fn is_usual(&self) -> Result<()> {
        let templates = self.new.spec.volume_claim_templates.iter().flatten();
        let templates = templates.count();
        ensure!(
            templates <= MOST_TEMPLATES,
            "the set has {templates} claim templates, and more than {MOST_TEMPLATES} are not judged"
        );
        Ok(())
    }
}

/// Result of a review.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Why the update is rejected, if it is.
    pub refusal: Option<String>,
    /// Warnings for the author of an allowed update.
    pub warnings: Vec<String>,
    /// JSON patch of the object (RFC 6902).
    pub patch: Vec<Value>,
}

impl Verdict {
    /// Allows the update.
    #[must_use]
    pub fn allowed() -> Self {
        Verdict::default()
    }

    /// Allows the update with a warning.
    #[must_use]
    pub fn warned(warning: String) -> Self {
        Verdict {
            warnings: vec![warning],
            ..Verdict::default()
        }
    }

    /// Rejects the update.
    #[must_use]
    pub fn refused(why: String) -> Self {
        Verdict {
            refusal: Some(why),
            ..Verdict::default()
        }
    }

    /// Formats the response to the request with this UID.
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
    use k8s_openapi::api::core::v1::PodTemplateSpec;

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

    /// Returns the needed fields of a request that arrives in chunks.
    async fn kept(needed: &'static Keep, question: &str) -> Result<String> {
        let parts: Vec<_> = question.as_bytes().chunks(9999).collect();
        let parts = parts.into_iter().map(|part| {
            let part = hyper::body::Bytes::copy_from_slice(part);
            Ok::<_, std::io::Error>(hyper::body::Frame::data(part))
        });
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(parts));
        Ok(String::from_utf8(arrive(needed, body).await?).unwrap())
    }

    #[tokio::test]
    async fn what_nothing_is_judged_by_is_not_kept() {
        let many = vec![json!({}); 10_000];
        let mut deep = json!([]);
        for _ in 0..50 {
            deep = json!([deep]);
        }
        let object = json!({
            "metadata": {
                "name": "db", "managedFields": many, "ownerReferences": many,
                "annotations": {"grow.flexvol.dev/data": "2Gi", "other": "x".repeat(99_999)},
            },
            "spec": {
                "serviceName": "db", "template": {"spec": {"volumes": many}}, "more": deep,
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"selector": many}}],
            },
            "status": {"conditions": many},
        });
        let request = json!({"uid": "u", "object": object, "oldObject": {}, "options": many});
        let question = json!({"kind": "AdmissionReview", "request": request}).to_string();
        let kept = kept(&SET, &question).await.unwrap();
        assert!(kept.len() < 250, "{kept}");
        let update: Update<StatefulSet> = read(kept.as_bytes()).unwrap();
        assert_eq!(update.uid, "u");
        assert_eq!(update.new.metadata.name.as_deref(), Some("db"));
        assert_eq!(update.new.metadata.annotations.unwrap().len(), 1);
        assert_eq!(update.new.spec.template, PodTemplateSpec::default());
        assert_eq!(update.new.spec.volume_claim_templates.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn what_would_be_too_large_is_not_judged() {
        let question =
            |object: Value| json!({"request": {"uid": "u", "object": object, "oldObject": {}}});
        let templates = |count: usize| {
            question(json!({"spec": {"volumeClaimTemplates": vec![json!({}); count]}}))
        };
        let labels = |count: usize| {
            let all: Value = (0..count).map(|n| (n.to_string(), json!("x"))).collect();
            question(json!({"spec": {"selector": {"matchLabels": all}}}))
        };
        assert!(kept(&SET, &labels(3000).to_string()).await.is_ok());
        for too_large in [templates(300), labels(9000)] {
            assert!(kept(&SET, &too_large.to_string()).await.is_err());
        }
        for too_large in [
            "[".repeat(KEPT),
            " ".repeat(KEPT + 1),
            "{},".repeat(KEPT),
            format!(r#"{{"request":{}"#, "[".repeat(KEPT)),
            format!(r#"{{"request":{{{}"#, r#""uid":"u","#.repeat(KEPT)),
            format!(r#"{{"other":"{}"}}"#, "x".repeat(MAX_LENGTH)),
        ] {
            assert!(kept(&CLAIM, &too_large).await.is_err());
        }
        let several = kept(&SET, &templates(17).to_string()).await.unwrap();
        let error = read::<StatefulSet>(several.as_bytes()).unwrap().is_usual();
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("17 claim templates")
        );
    }

    #[tokio::test]
    async fn the_namespace_is_the_one_that_the_api_server_says() {
        let object = json!({"metadata": {"namespace": "other"}});
        for (said, is) in [
            (json!("shop"), "shop"),
            (json!(""), ""),
            (json!("?x"), ""),
            (json!("n".repeat(300)), ""),
            (json!(1), ""),
            (Value::Null, ""),
        ] {
            let request = json!({"uid": "u", "namespace": said, "object": object, "oldObject": {}});
            let question = json!({"request": request}).to_string();
            let kept = kept(&CLAIM, &question).await.unwrap();
            assert_eq!(namespace(kept.as_bytes()), is, "{said}");
        }
        assert_eq!(namespace(b"nonsense"), "");
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
