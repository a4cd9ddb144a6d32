//! The HTTP server, on a local port, in threads of its own.

use crate::{
    Fault, Hold, Key, Kubernetes, Plan, Refused, Store, hold, kubernetes,
    request::ApiRequest,
    shared::Shared,
    store::write::{Condition, merge},
    watch::{is_chosen, watch},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::watch::Sender,
    time::sleep,
};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Longer than the timeouts of all clients here.
const LATE: Duration = Duration::from_millis(4500);

/// A running double. It stops when dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Stops all tasks when dropped.
    runtime: Runtime,
}

impl Server {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no threads or ports are available.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let shared = Arc::new(Shared {
            store: Mutex::default(),
            requests: Mutex::default(),
            cuts: Sender::new(0),
            held: Sender::default(),
            refuses: Mutex::default(),
            delays: Mutex::default(),
        });
        let address = listener.local_addr()?;
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Server {
            shared,
            address,
            runtime,
        })
    }

    /// Starts Kubernetes' other controllers, which react to changes from now on.
    pub fn play(&self, kubernetes: Kubernetes) {
        let shared = Arc::clone(&self.shared);
        let now = shared.store().version();
        self.runtime
            .spawn(kubernetes::follow(kubernetes, shared, now));
    }

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a kubeconfig for clients.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "double", "user": {}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
            "current-context": "double",
        })
        .to_string()
    }

    /// Returns the objects. No request is answered while the guard is held.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.store()
    }

    /// Plans one fault. Counting of requests starts anew.
    pub fn fail(&self, plan: Plan) {
        let mut requests = self.shared.requests();
        requests.plan = Some(plan);
        requests.met = 0;
    }

    /// Holds back requests with this name (see [`Server::requests`]) until the returned value is dropped. They are
    /// counted before they are held.
    pub fn hold(&self, request: &str) -> Hold {
        Hold::of(&self.shared.held, request)
    }

    /// Refuses requests with this name (see [`Server::requests`]) from now on, or no longer. They are counted.
    pub fn refuse(&self, request: &str, refused: Option<Refused>) {
        let mut all = self.shared.refuses();
        match refused {
            Some(refused) => drop(all.insert(request.to_owned(), refused)),
            None => drop(all.remove(request)),
        }
    }

    /// Delays requests with this name (see [`Server::requests`]) from now on, as a slow admission webhook does. One whose
    /// client goes away meanwhile is not carried out.
    pub fn delay(&self, request: &str, delay: Duration) {
        self.shared.delays().insert(request.to_owned(), delay);
    }

    /// Whether the planned fault has not happened yet.
    #[must_use]
    pub fn is_to_fail(&self) -> bool {
        self.shared.requests().plan.is_some()
    }

    /// Plans a fault of the next write of a lease. Requests for leases are not counted.
    pub fn fail_lease(&self, fault: Fault) {
        self.shared.requests().lease = Some(fault);
    }

    /// Whether the planned fault of a lease has not happened yet.
    #[must_use]
    pub fn is_to_fail_lease(&self) -> bool {
        self.shared.requests().lease.is_some()
    }

    /// Returns method, kind and name of all requests so far, except those for leases.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests().all.clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Answers are small and must not wait for further packets.
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| serve(Arc::clone(&shared), request));
        tokio::spawn(async move {
            // A disconnected client is not an error.
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
    }
}

async fn serve(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let request = match ApiRequest::of(&head.method, &head.uri) {
        Ok(request) => request,
        Err(refused) => return Ok(refusal(&refused)),
    };
    let sort = head.headers.get("content-type").cloned();
    let merges = sort.is_some_and(|sort| sort == "application/merge-patch+json");
    if request.method == Method::PATCH && !merges {
        return Ok(refusal(&Refused::unknown("patches that are not merged")));
    }
    // A client that disconnects within its request has requested nothing.
    let body = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    let body = body.unwrap_or_default();
    let fault = shared.requests().count(&request);
    hold::wait(&shared.held, &request.words()).await;
    let delay = shared.delays().get(&request.words()).copied();
    sleep(delay.unwrap_or_default()).await;
    if let Some(refused) = shared.refuses().get(&request.words()) {
        return Ok(refusal(refused));
    }
    let done = match fault {
        None => answer(&shared, &request, &body),
        Some(Fault::Conflict) => {
            let key = request.key(request.name.as_deref().unwrap_or_default());
            refusal(&Refused::changed(&key))
        }
        Some(Fault::Unavailable) => {
            let message = "the server is currently unable to handle the request";
            refusal(&Refused::new(503, "ServiceUnavailable", message))
        }
        Some(Fault::LostAnswer) => {
            drop(answer(&shared, &request, &body));
            let message = "request did not complete within the allotted timeout";
            refusal(&Refused::new(504, "Timeout", message))
        }
        Some(Fault::Late) => {
            // The client disconnects meanwhile, which drops this connection.
            let late = tokio::spawn(async move {
                sleep(LATE).await;
                answer(&shared, &request, &body)
            });
            late.await.expect("a late answer")
        }
        Some(Fault::Stall) => half(answer(&shared, &request, &body)).await,
        Some(fault @ (Fault::DropWatches | Fault::Forget)) => {
            let done = answer(&shared, &request, &body);
            if fault == Fault::Forget {
                shared.store().compact();
            }
            shared.cut_watches();
            done
        }
    };
    Ok(done)
}

fn answer(shared: &Arc<Shared>, request: &ApiRequest, body: &Bytes) -> Response<Body> {
    if request.watch {
        let stream = watch(Arc::clone(shared), request.clone());
        return response(200, BodyExt::boxed_unsync(StreamBody::new(stream)));
    }
    match carry_out(&mut shared.store(), request, body) {
        Ok((code, text)) => response(code, Full::from(text).boxed_unsync()),
        Err(refused) => refusal(&refused),
    }
}

/// Sends the first half of an answer, and never ends the body.
async fn half(answer: Response<Body>) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let Ok(body) = body.collect().await;
    let mut text = body.to_bytes();
    text.truncate(text.len() / 2);
    let begins = stream::iter([Ok(Frame::data(text))]);
    let body = StreamBody::new(begins.chain(stream::pending()));
    Response::from_parts(head, body.boxed_unsync())
}

fn refusal(refused: &Refused) -> Response<Body> {
    if refused.reason.is_empty() {
        let text = refused.message.clone();
        let mut answer = response(refused.code, Full::from(text).boxed_unsync());
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert("content-type", plain);
        return answer;
    }
    let text = refused.status().to_string();
    response(refused.code, Full::from(text).boxed_unsync())
}

fn response(code: u16, body: Body) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(body)
        .expect("a code of HTTP")
}

fn carry_out(
    store: &mut Store,
    request: &ApiRequest,
    body: &Bytes,
) -> Result<(u16, String), Refused> {
    let parsed_body = || {
        let parsed = serde_json::from_slice::<Value>(body);
        parsed.map_err(|error| Refused::new(400, "BadRequest", error.to_string()))
    };
    let Some(name) = &request.name else {
        return match request.method {
            Method::GET => list(store, request).map(|text| (200, text)),
            Method::POST => {
                let object = parsed_body()?;
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let key = request.key(name);
                Ok((201, store.create(&key, object)?.to_string()))
            }
            _ => Err(Refused::unknown("writes of whole collections")),
        };
    };
    let key = request.key(name);
    let object = match request.method {
        Method::GET => {
            let text = store.text(&key).ok_or_else(|| Refused::missing(&key))?;
            return Ok((200, text.to_string()));
        }
        Method::PATCH => {
            let patch = parsed_body()?;
            store.update(&key, request.part, |before| {
                let mut after = before.clone();
                merge(&mut after, &patch);
                Ok(after)
            })?
        }
        Method::PUT => {
            let object = parsed_body()?;
            if object["metadata"]["resourceVersion"].is_null() {
                let why =
                    "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
                return Err(Refused::invalid(request.kind, name, why));
            }
            store.update(&key, request.part, |_| Ok(object))?
        }
        Method::DELETE => {
            let options = if body.is_empty() {
                Value::Null
            } else {
                parsed_body()?
            };
            let wanted = |field: &str| {
                let wanted = options["preconditions"][field].as_str();
                wanted.map(str::to_owned)
            };
            let condition = Condition {
                uid: wanted("uid"),
                version: wanted("resourceVersion"),
            };
            store.delete(&key, &condition)?
        }
        _ => return Err(Refused::unknown(&format!("method {}", request.method))),
    };
    Ok((200, object.to_string()))
}

/// Returns a page of a list. `continue` contains the version of the first page, and the last key.
fn list(store: &Store, request: &ApiRequest) -> Result<String, Refused> {
    let mut version = store.version();
    let mut after = None;
    if let Some(token) = &request.from {
        let parts: Vec<_> = token.splitn(3, '/').collect();
        let [first, namespace, name] = parts[..] else {
            return Err(Refused::new(400, "BadRequest", "continue key is not valid"));
        };
        version = first.parse().unwrap_or_default();
        // Fails if that version is no longer in the history.
        let _ = store.since(version)?.next();
        after = Some(Key::new(request.kind.kind, namespace, name));
    }
    let limit = request.limit.unwrap_or(usize::MAX);
    let mut chosen = store
        .texts(request.kind, request.namespace.as_deref(), after.as_ref())
        .filter(|(_, text)| is_chosen(request, text));
    let page: Vec<_> = chosen.by_ref().take(limit).collect();
    let mut meta = json!({"resourceVersion": version.to_string()});
    if let (Some((last, _)), Some(_)) = (page.last(), chosen.next()) {
        meta["continue"] = format!("{version}/{}/{}", last.namespace, last.name).into();
    }
    // Items of built-in kinds do not repeat apiVersion and kind.
    let (api, kind) = (request.kind.api_version(), request.kind.kind);
    let head = format!("{{\"apiVersion\":{api:?},\"kind\":{kind:?},");
    let mut text =
        format!("{{\"apiVersion\":{api:?},\"kind\":\"{kind}List\",\"metadata\":{meta},\"items\":[");
    for (number, (_, item)) in page.iter().enumerate() {
        if number > 0 {
            text.push(',');
        }
        match item.strip_prefix(&head) {
            Some(rest) if !request.kind.custom => {
                text.push('{');
                text.push_str(rest);
            }
            _ => text.push_str(item),
        }
    }
    text.push_str("]}");
    Ok(text)
}
