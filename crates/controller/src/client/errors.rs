//! What a failed request says.

/// Whether the API server, or somebody whom it asks, does not want it so, and says why.
#[must_use]
pub fn is_refused(error: &anyhow::Error) -> bool {
    let request = error.downcast_ref::<kube::Error>();
    matches!(request, Some(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422))
}

/// Whether something failed because the object is another than was read: whoever looks again finds it.
#[must_use]
pub fn is_conflict(error: &anyhow::Error) -> bool {
    let request = error.downcast_ref::<kube::Error>();
    request.map(refusal) == Some(Refusal::Changed)
}

/// What a failed request says about the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not there.
    Missing,
    /// It has changed since it was read, or is there already.
    Changed,
    /// Something else.
    Other,
}

/// What a failed request says about the object.
#[must_use]
pub fn refusal(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) if status.code == 404 => Refusal::Missing,
        kube::Error::Api(status) if status.code == 409 => Refusal::Changed,
        _ => Refusal::Other,
    }
}

/// What was just deleted is counted a moment longer; nothing but words tells it from other refusals
/// (`staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota`).
pub(crate) fn is_quota(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota"))
}

/// An error in words: of what the API server refused, its own, and nothing of how they came here.
#[must_use]
pub fn error_message(error: &anyhow::Error) -> String {
    let each = error
        .chain()
        .map(|cause| match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => (status.message.clone(), true),
            _ => (cause.to_string(), false),
        });
    let mut text = String::new();
    for (words, last) in each {
        if !text.is_empty() {
            text += ": ";
        }
        text += &words;
        if last {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn what_the_api_server_refused_is_told_in_its_own_words() {
        let status = Status::failure("no such thing", "NotFound").with_code(404);
        let error = kube::Error::Api(Box::new(status));
        assert_eq!(refusal(&error), Refusal::Missing);
        let error = anyhow::Error::from(error).context("read the claim");
        assert_eq!(error_message(&error), "read the claim: no such thing");
        assert_eq!(
            error.downcast_ref::<kube::Error>().map(refusal),
            Some(Refusal::Missing)
        );
    }
}
