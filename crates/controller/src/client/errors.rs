//! Classification of failed requests.

/// Whether the API server, or a webhook that it calls, rejected the request as invalid or forbidden.
#[must_use]
pub fn is_refused(error: &anyhow::Error) -> bool {
    let request = error.downcast_ref::<kube::Error>();
    matches!(request, Some(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422))
}

/// Whether a request failed because the object has changed since it was read, so that a fresh read helps.
#[must_use]
pub fn is_conflict(error: &anyhow::Error) -> bool {
    let request = error.downcast_ref::<kube::Error>();
    request.map(refusal) == Some(Refusal::Changed)
}

/// The outcome of a failed request for its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The object does not exist.
    Missing,
    /// The object has changed since it was read, or exists already.
    Changed,
    /// Any other failure.
    Other,
}

/// Classifies a failed request.
#[must_use]
pub fn refusal(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) if status.code == 404 => Refusal::Missing,
        kube::Error::Api(status) if status.code == 409 => Refusal::Changed,
        _ => Refusal::Other,
    }
}

/// Whether a quota was exceeded. Deleted objects count a moment longer, so a retry may succeed. Only the message
/// distinguishes this error (`staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota`).
pub(crate) fn is_quota(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota"))
}

/// Whether the API server refused a request for lack of rights.
#[must_use]
pub fn is_forbidden(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<kube::Error>();
    cause.is_some_and(|error| matches!(error, kube::Error::Api(status) if status.code == 403))
}

/// Formats an error with its causes, down to the API server's own message and no further.
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
        assert!(!is_forbidden(&error));
        assert_eq!(
            error.downcast_ref::<kube::Error>().map(refusal),
            Some(Refusal::Missing)
        );
    }
}
