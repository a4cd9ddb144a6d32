//! Properties of a request to the API server that the middleware needs.

use crate::client::{
    fields::{self, Asks},
    prune::Keep,
    timeouts::Limits,
};
use http::{Method, Request};
use kube::client::Body;
use std::time::Duration;

/// Properties of a request.
#[derive(Clone, Copy)]
pub(crate) struct RequestInfo {
    /// The verb, by Kubernetes' names (`RequestInfo` in `apiserver/pkg/endpoints/request`).
    pub verb: &'static str,
    pub limits: Limits,
    /// Whether it is about a lease.
    pub is_lease: bool,
    /// Whether only the leader may send it.
    pub writes: bool,
    /// Whether it is a watch.
    pub watches: bool,
    /// The fields of the response that are needed.
    pub needed: &'static Keep,
}

impl RequestInfo {
    pub fn of(request: &Request<Body>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let parameter = |key: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let reads = *request.method() == Method::GET;
        let resource = ResourcePath::of(request.uri().path());
        let is = |group: &str, plural: &str| {
            resource
                .as_ref()
                .is_some_and(|resource| (resource.group, resource.plural) == (group, plural))
        };
        let is_lease = is("coordination.k8s.io", "leases");
        let kind = if matches!(parameter("watch"), Some("true" | "1")) {
            Asks::Watch
        } else if reads && resource.as_ref().is_some_and(|resource| resource.all) {
            Asks::List
        } else {
            Asks::One
        };
        let limits = match kind {
            Asks::Watch => {
                let seconds = parameter("timeoutSeconds").and_then(|text| text.parse().ok());
                Limits::watch(seconds.map(Duration::from_secs))
            }
            Asks::List => Limits::MANY,
            Asks::One if reads || is_lease => Limits::ONE,
            Asks::One => Limits::WRITE,
        };
        let needed = resource.as_ref().map_or_else(fields::unknown, |resource| {
            fields::needed(resource.group, resource.plural, kind)
        });
        let verb = match (request.method(), kind) {
            (_, Asks::Watch) => "watch",
            (&Method::GET, Asks::List) => "list",
            (&Method::GET, Asks::One) => "get",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, _) => "delete",
            _ => "other",
        };
        RequestInfo {
            verb,
            limits,
            is_lease,
            writes: !reads && !is_lease && !is("", "events"),
            watches: kind == Asks::Watch,
            needed,
        }
    }
}

/// Returns the resource of a path, for metrics. Names in the path are arbitrary and left out.
pub(crate) fn resource(path: &str) -> &str {
    ResourcePath::of(path).map_or("other", |resource| resource.plural)
}

/// The resource of a path: `/api/v1/[namespaces/N/]PLURAL…` or `/apis/GROUP/VERSION/…`
/// (`RequestInfoFactory` in `apiserver/pkg/endpoints/request`). Names in the path are arbitrary.
struct ResourcePath<'a> {
    group: &'a str,
    plural: &'a str,
    /// Whether the path names no single object.
    all: bool,
}

impl<'a> ResourcePath<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        parts.next()?;
        let plural = parts.next()?;
        let in_namespace = (plural == "namespaces").then(|| parts.nth(1)).flatten();
        Some(ResourcePath {
            group,
            plural: in_namespace.unwrap_or(plural),
            all: parts.next().is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_is_does_not_depend_on_how_its_object_is_called() {
        let info = |method: Method, uri: &str| {
            let request = Request::builder().method(method).uri(uri);
            let info = RequestInfo::of(&request.body(Body::empty()).unwrap());
            (info.limits, info.is_lease, info.writes)
        };
        let (one, write, many) = (Limits::ONE, Limits::WRITE, Limits::MANY);
        let patch = |uri: &str| info(Method::PATCH, uri);
        let leases = "/apis/coordination.k8s.io/v1/namespaces/flexvol/leases";
        assert_eq!(
            patch(&format!("{leases}/flexvol-controller")),
            (one, true, false)
        );
        assert_eq!(info(Method::POST, leases), (one, true, false));
        assert_eq!(
            patch("/api/v1/namespaces/ns/events/a.b"),
            (write, false, false)
        );
        // Adversarial names, which would exempt writes from the fence.
        for uri in [
            "/api/v1/namespaces/leases/persistentvolumeclaims/data",
            "/api/v1/namespaces/ns/persistentvolumeclaims/leases",
            "/api/v1/namespaces/events/persistentvolumeclaims/events/status",
            "/apis/leases/v1/namespaces/ns/leases/data",
            "/api/v1/persistentvolumes/leases?x=watch=true",
            "/api/v1/namespaces/events",
        ] {
            assert_eq!(patch(uri), (write, false, true), "{uri}");
        }
        let get = |uri: &str| info(Method::GET, uri).0;
        let volumes = "/api/v1/persistentvolumes";
        let watch = |seconds: Option<u64>| Limits::watch(seconds.map(Duration::from_secs));
        assert_eq!(get(&format!("{volumes}?limit=5&watch=true")), watch(None));
        assert_eq!(
            get(&format!("{volumes}?watch=true&timeoutSeconds=290&x=1")),
            watch(Some(290))
        );
        for lists in [
            "/api/v1/persistentvolumes?labelSelector=watch=true",
            "/apis/flexvol.dev/v1alpha1/nodevolumes?limit=500",
            "/api/v1/namespaces/ns/persistentvolumeclaims",
        ] {
            assert_eq!(get(lists), many, "{lists}");
        }
        for reads in [
            "/api/v1/persistentvolumes/data",
            "/api/v1/namespaces/ns/persistentvolumeclaims/data",
        ] {
            assert_eq!(get(reads), one, "{reads}");
        }
    }
}
