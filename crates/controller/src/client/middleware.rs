//! Client middleware: rate limit, timeouts, fence and metrics of requests, and pruning of responses.

use super::{
    failpoint::Failpoint,
    fence::{Fence, end},
    prune::Prune,
    rate_limit::{Budget, RateLimit, is_json},
    request_info::{self, RequestInfo},
    timeouts::{Timed, Watched, timeout_error},
};
use crate::support::metrics::Metrics;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
};
use tokio::time::{Instant, timeout};
use tower::{BoxError, Layer, Service};

pub(super) struct Shared {
    limit: RateLimit,
    fence: Fence,
    metrics: Metrics,
    failpoint: Option<Failpoint>,
    /// Whether responses are read whole, without pruning.
    pub(super) reads_whole: bool,
}

impl Shared {
    pub(super) fn new(budget: Budget, fence: Fence, metrics: Metrics) -> Self {
        Shared {
            limit: RateLimit::new(budget),
            fence,
            metrics,
            failpoint: Failpoint::from_environment(),
            reads_whole: false,
        }
    }

    fn received<B>(
        &self,
        mut answer: Response<B>,
        info: RequestInfo,
        begun: Instant,
        watched: Option<&String>,
    ) -> Response<Timed<B>> {
        self.limit.answered(&answer);
        // Only a JSON response proves that an object does not exist. Load balancers answer 404 too, and the API server
        // itself answers it in plain text while it starts.
        if answer.status() == StatusCode::NOT_FOUND && !is_json(&answer) {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        let whole = self.reads_whole || !answer.status().is_success();
        let prune = (!whole).then(|| Prune::new(info.needed));
        let watched = watched.filter(|_| answer.status().is_success());
        let watched = watched.map(|of| Watched {
            watches: self.metrics.watches.clone(),
            of: of.clone(),
        });
        answer.map(|body| Timed::new(body, begun, info.limits, prune, watched))
    }
}

#[derive(Clone)]
pub(super) struct Counted(pub(super) Arc<Shared>);

impl<S> Layer<S> for Counted {
    type Service = Counting<S>;

    fn layer(&self, inner: S) -> Counting<S> {
        Counting {
            inner,
            shared: Arc::clone(&self.0),
        }
    }
}

#[derive(Clone)]
pub(super) struct Counting<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, B> Service<Request<Body>> for Counting<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send,
{
    type Response = Response<Timed<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The ready service moves into the future, and its clone stays behind.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let info = RequestInfo::of(&request);
            let resource = request_info::resource(request.uri().path()).to_owned();
            let watched = info.watches.then(|| request.uri().path().to_owned());
            if let Some(of) = &watched {
                shared.metrics.watches.asked(of);
            }
            // Requests for the lease do not wait for the rate limit, which could cost the lease.
            if !info.is_lease {
                shared.limit.wait().await;
            }
            if info.writes && shared.fence.is_past() {
                end("the lease was not renewed in time");
            }
            let failpoint = shared.failpoint.as_ref().filter(|_| info.writes);
            let write = failpoint.map(Failpoint::begin);
            let begun = Instant::now();
            let limits = info.limits;
            let answer = match timeout(limits.begin, inner.call(request)).await {
                Ok(Ok(answer)) => Ok(shared.received(answer, info, begun, watched.as_ref())),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(timeout_error(limits.begin)),
            };
            if answer.is_err() {
                shared.limit.unanswered();
            }
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            shared.metrics.requested(info.verb, &resource, code);
            match &watched {
                Some(of) if code == 200 => shared.metrics.watches.began(of),
                None if code != 0 => shared.metrics.watches.answered(),
                _ => {}
            }
            if let (Some(failpoint), Some(write)) = (failpoint, write) {
                failpoint.answered(write);
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Refusal, refusal},
        *,
    };
    use futures_util::{StreamExt, future::pending, stream};
    use http_body_util::{BodyExt, Full, StreamBody};
    use hyper::body::{Bytes, Frame};
    use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
    use kube::{Api, Client, api::ListParams};
    use serde_json::json;
    use std::{collections::BTreeMap, convert::Infallible, time::Duration};
    use tokio::time::sleep;

    /// Returns how long a request takes whose response begins after so many seconds, if at all, and never ends.
    async fn waits(uri: &str, begins: Option<u64>) -> u64 {
        let answer = move |_: Request<Body>| async move {
            match begins {
                Some(seconds) => sleep(Duration::from_secs(seconds)).await,
                None => pending().await,
            }
            let half = stream::iter([Ok::<_, Infallible>(Frame::data("{".into()))]);
            let body = StreamBody::new(half.chain(stream::pending()));
            Ok::<_, BoxError>(Response::new(body))
        };
        let budget = Budget {
            rate: 10.0,
            burst: 5,
            yields: false,
        };
        let shared = Shared::new(budget, Fence::default(), Metrics::default());
        let service = Counted(Arc::new(shared)).layer(tower::service_fn(answer));
        let client = Client::new(service, "default");
        let begun = Instant::now();
        let request = Request::get(uri).body(Body::empty()).unwrap();
        let whole = async { client.send(request).await?.into_body().collect().await };
        assert!(whole.await.is_err(), "{uri}");
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_end_is_given_up_as_one_that_does_not_begin() {
        let (one, many) = (
            "/api/v1/persistentvolumes/data",
            "/api/v1/persistentvolumes",
        );
        let watch = "/api/v1/persistentvolumes?watch=true&timeoutSeconds=290";
        for (uri, begins, seconds) in [
            (one, None, 4),
            (one, Some(3), 4),
            (many, None, 60),
            (many, Some(50), 60),
            (watch, None, 60),
            (watch, Some(1), 350),
        ] {
            assert_eq!(waits(uri, begins).await, seconds, "{uri} {begins:?}");
        }
    }

    /// Creates a client whose server always sends this response, with a log of its requests.
    fn client(
        answer: impl Fn() -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
        rate: f64,
    ) -> Client {
        let service = move |_: Request<Body>| {
            let answer = answer();
            async move { Ok::<_, BoxError>(answer) }
        };
        let budget = Budget {
            rate,
            burst: 5,
            yields: false,
        };
        let shared = Shared::new(budget, Fence::default(), Metrics::default());
        let service = Counted(Arc::new(shared)).layer(tower::service_fn(service));
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn that_something_is_not_there_is_believed_of_the_api_server_alone() {
        let get = async |kind: &'static str, text: &'static str| {
            let answer = move || {
                let answer = Response::builder().status(404).header("content-type", kind);
                answer.body(Full::from(text)).unwrap()
            };
            let claims: Api<ConfigMap> = Api::default_namespaced(client(answer, 1000.0));
            claims.get_opt("data").await
        };
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"NotFound","code":404}"#;
        assert!(get("application/json", status).await.unwrap().is_none());
        for (kind, text) in [
            ("text/plain; charset=utf-8", "404 page not found\n"),
            ("text/html", "<h1>404</h1>"),
        ] {
            let error = get(kind, text).await.unwrap_err();
            assert_eq!(refusal(&error), Refusal::Other, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_asks_again_before_the_api_server_says_so() {
        let begun = Instant::now();
        let answer = || {
            let answer = Response::builder().status(429).header("retry-after", "3");
            answer.body(Full::from("too many")).unwrap()
        };
        let maps: Api<ConfigMap> = Api::default_namespaced(client(answer, 1000.0));
        let mut asked = Vec::new();
        for _ in 0..3 {
            maps.get("data").await.unwrap_err();
            asked.push(begun.elapsed().as_secs());
        }
        assert_eq!(asked, [0, 3, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_object_has_to_wait_for_holds_nobody_else() {
        let begun = Instant::now();
        let answer = || {
            let answer = Response::builder()
                .status(429)
                .header("retry-after", "10")
                .header("content-type", "application/json");
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 429,
                "message": "Cannot evict pod as it would violate the pod's disruption budget.",
                "reason": "TooManyRequests", "details": {"retryAfterSeconds": 10},
            });
            answer.body(Full::from(status.to_string())).unwrap()
        };
        let maps: Api<ConfigMap> = Api::default_namespaced(client(answer, 1000.0));
        for _ in 0..3 {
            maps.get("data").await.unwrap_err();
        }
        assert_eq!(begun.elapsed().as_secs(), 0);
    }

    #[tokio::test]
    async fn a_list_of_large_objects_is_read_without_what_is_not_needed() {
        let labels: BTreeMap<_, _> = (0..1000)
            .map(|n| (format!("l{n}"), "v".repeat(60)))
            .collect();
        let claim = json!({"metadata": {"name": "data", "namespace": "ns", "labels": labels}});
        let list = json!({
            "kind": "List", "apiVersion": "v1", "metadata": {}, "items": [claim],
        });
        let answer = move || Response::new(Full::from(list.to_string()));
        let claims: Api<PersistentVolumeClaim> = Api::all(client(answer, 1000.0));
        let found = claims.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(found[0].metadata.name.as_deref(), Some("data"));
        assert!(found[0].metadata.labels.is_none());
    }
}
