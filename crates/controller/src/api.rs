//! The way to the API server: one client, whose requests are limited, timed and counted.

use crate::{
    cut::Cut,
    limits::{PATIENCE, Timed, late},
    metrics::Metrics,
    prune::Prune,
    resolve::{self, Getent},
    sort::Sort,
};
use anyhow::{Context as _, Result};
use http::{Request, Response, StatusCode, header};
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{self, Poll},
    time::Duration,
};
use tokio::time::{Instant, sleep_until, timeout};
use tower::{BoxError, Layer, Service, ServiceBuilder};

/// How many requests may be made.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// In a second, on average.
    pub rate: f64,
    /// At once.
    pub burst: u32,
}

/// Nobody waits for longer because the API server says so.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// Until when this process may write.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

impl Fence {
    /// From now on writes may begin until then.
    pub fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// A process that was stopped does not know it: time is looked at before each write. One that
    /// was never fenced may always write.
    fn is_past(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Connects as a kubeconfig says, or, without one, as pods of the cluster do.
///
/// # Errors
/// When there is neither, or one of them cannot be read, or nobody here knows where the API server is.
pub async fn connect(
    kubeconfig: Option<&Path>,
    budget: Budget,
    fence: Fence,
    metrics: Metrics,
) -> Result<Client> {
    open(kubeconfig, Shared::new(budget, fence, metrics)).await
}

/// The same for somebody who waits at a terminal, and who is shown objects, or changes them, as they are.
///
/// # Errors
/// As [`connect`].
pub async fn connect_person(kubeconfig: Option<&Path>) -> Result<Client> {
    let budget = Budget {
        rate: 20.0,
        burst: 40,
    };
    let mut shared = Shared::new(budget, Fence::default(), Metrics::default());
    shared.reads_whole = true;
    open(kubeconfig, shared).await
}

async fn open(kubeconfig: Option<&Path>, shared: Shared) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let text = Kubeconfig::read_from(path)
                .with_context(|| format!("read the kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(text, &KubeConfigOptions::default())
                .await
                .context("use the kubeconfig")?
        }
        None => Config::incluster()
            .context("find the API server: this is no pod of a cluster; give --kubeconfig FILE")?,
    };
    resolve::check(&config.cluster_url).await?;
    let mut connector = HttpConnector::new_with_resolver(Getent);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(PATIENCE));
    // A watch says nothing for minutes: this notices that the other side has gone.
    connector.set_keepalive(Some(Duration::from_secs(20)));
    connector.set_keepalive_interval(Some(Duration::from_secs(5)));
    connector.set_keepalive_retries(Some(3));
    let https = config
        .rustls_https_connector_with_connector(connector)
        .context("prepare TLS")?;
    let service = ServiceBuilder::new()
        // Before the server's own path is put in front of others.
        .layer(Counted(Arc::new(shared)))
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().context("use the credentials")?)
        .map_err(BoxError::from)
        .service(Http::builder(TokioExecutor::new()).build::<_, Body>(https));
    Ok(Client::new(service, config.default_namespace))
}

struct Shared {
    budget: Budget,
    /// When the next request may start, if all so far had been spread evenly.
    next: Mutex<Instant>,
    fence: Fence,
    metrics: Metrics,
    cut: Option<Cut>,
    /// Also what this program does not need.
    reads_whole: bool,
}

impl Shared {
    fn new(budget: Budget, fence: Fence, metrics: Metrics) -> Self {
        Shared {
            budget,
            next: Mutex::new(Instant::now()),
            fence,
            metrics,
            cut: Cut::of_environment(),
            reads_whole: false,
        }
    }

    /// When the next request may start.
    fn turn(&self) -> Instant {
        let now = Instant::now();
        let apart = Duration::from_secs_f64(1.0 / self.budget.rate);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(apart * self.budget.burst).unwrap_or(now);
        let turn = (*next).max(earliest);
        *next = turn + apart;
        turn.max(now)
    }

    /// The API server has too much to do, and says when to ask again: no request begins before that.
    fn hold(&self, pause: Duration) {
        let until = Instant::now() + pause.min(LONGEST_HOLD);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = (*next).max(until);
    }

    fn received<B>(
        &self,
        mut answer: Response<B>,
        sort: Sort,
        begun: Instant,
    ) -> Response<Timed<B>> {
        if let Some(pause) = retry_after(&answer) {
            self.hold(pause);
        }
        // Of the API server's words alone it follows that something is not there. Load balancers say it
        // too, and the API server itself in plain text while it starts.
        if answer.status() == StatusCode::NOT_FOUND && !is_json(&answer) {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        let whole = self.reads_whole || !answer.status().is_success();
        let prune = (!whole).then(|| Prune::new(sort.needed));
        answer.map(|body| Timed::new(body, begun, sort.limits, prune))
    }
}

/// How long the API server has whoever it refuses wait (`Retry-After` of API priority and fairness).
fn retry_after<B>(answer: &Response<B>) -> Option<Duration> {
    let refused = answer.status() == StatusCode::TOO_MANY_REQUESTS;
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = seconds.parse().ok()?;
    refused.then(|| Duration::from_secs(seconds))
}

fn is_json<B>(answer: &Response<B>) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

#[derive(Clone)]
struct Counted(Arc<Shared>);

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
struct Counting<S> {
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
        // The one that is ready goes into the future, and its clone stays.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let sort = Sort::of(&request);
            let method = request.method().clone();
            let watched = sort.watches.then(|| request.uri().path().to_owned());
            if let Some(of) = &watched {
                shared.metrics.watches.asked(of);
            }
            // Whoever waits for its turn must not lose the lease for it.
            if !sort.lease {
                sleep_until(shared.turn()).await;
            }
            if sort.writes && shared.fence.is_past() {
                crate::leader::end("the lease was not renewed in time");
            }
            let cut = shared.cut.as_ref().filter(|_| sort.writes);
            let write = cut.map(Cut::begin);
            let begun = Instant::now();
            let limits = sort.limits;
            let answer = match timeout(limits.begin, inner.call(request)).await {
                Ok(Ok(answer)) => Ok(shared.received(answer, sort, begun)),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(late(limits.begin)),
            };
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            shared.metrics.requested(&method, code);
            match &watched {
                Some(of) if code == 200 => shared.metrics.watches.began(of),
                None if code != 0 => shared.metrics.watches.answered(),
                _ => {}
            }
            if let (Some(cut), Some(write)) = (cut, write) {
                cut.answered(write);
            }
            answer
        })
    }
}

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
pub fn words(error: &anyhow::Error) -> String {
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
    use futures_util::{StreamExt, future::pending, stream};
    use http_body_util::{BodyExt, Full, StreamBody};
    use hyper::body::{Bytes, Frame};
    use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
    use kube::{Api, api::ListParams, core::Status};
    use serde_json::json;
    use std::{collections::BTreeMap, convert::Infallible};
    use tokio::time::sleep;

    #[test]
    fn what_the_api_server_refused_is_told_in_its_own_words() {
        let status = Status::failure("no such thing", "NotFound").with_code(404);
        let error = kube::Error::Api(Box::new(status));
        assert_eq!(refusal(&error), Refusal::Missing);
        let error = anyhow::Error::from(error).context("read the claim");
        assert_eq!(words(&error), "read the claim: no such thing");
        assert_eq!(
            error.downcast_ref::<kube::Error>().map(refusal),
            Some(Refusal::Missing)
        );
    }

    /// How long whoever asks waits for an answer that begins so late, if at all, and does not end.
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

    /// A client of somebody who always answers so, and is told of each request.
    fn client(
        answer: impl Fn() -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
        rate: f64,
    ) -> Client {
        let service = move |_: Request<Body>| {
            let answer = answer();
            async move { Ok::<_, BoxError>(answer) }
        };
        let budget = Budget { rate, burst: 5 };
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

    #[tokio::test(start_paused = true)]
    async fn requests_are_spread_after_a_burst() {
        let budget = Budget {
            rate: 10.0,
            burst: 5,
        };
        let shared = Shared::new(budget, Fence::default(), Metrics::default());
        tokio::time::advance(Duration::from_secs(60)).await;
        let now = Instant::now();
        let turns: Vec<_> = (0..20).map(|_| (shared.turn() - now).as_millis()).collect();
        assert_eq!(turns[..5], [0; 5], "{turns:?}");
        assert!(turns[19] >= 1300 && turns[19] <= 1500, "{turns:?}");
    }
}
