//! TLS server for API servers.

#[cfg(test)]
mod tests;

use super::{
    certificate::Certificate,
    claims,
    review::{self, Verdict},
    shares::Shares,
    stateful_set_annotations, stateful_set_templates,
    turns::{Asker, Turns},
};
use crate::{
    client::error_message,
    drivers::ServedDrivers,
    server::listener::{ConnectionSlot, accept, host},
    support::{log, metrics::Metrics},
};
use anyhow::{Context, Result};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use serde::de::DeserializeOwned;
use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{Instant, timeout_at},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        server::{ClientHello, ResolvesServerCert},
        sign::CertifiedKey,
    },
};

/// Timeout of a request, including its wait for a turn. The API server waits for three seconds
/// (`deploy/cluster/webhooks.yaml`).
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of connections.
const PLACES: usize = 64;

/// Timeout from the connection to the begin of its first request.
const FIRST: Duration = Duration::from_secs(5);

/// Timeout of an idle connection, which an API server keeps for its next request.
const IDLE: Duration = Duration::from_secs(120);

/// Size of the read buffer.
const BUFFER: usize = 32 << 10;

/// Number of concurrent reviews, because each takes many times the request's size in memory.
const TURNS: usize = 4;

/// The response to a request that had no turn in time.
const BUSY: &str = "too many questions are judged already";

/// The certificate that new connections get.
#[derive(Debug, Default)]
pub struct ServingCertificate {
    current: RwLock<Option<(Certificate, Arc<CertifiedKey>)>>,
    /// Whether a check found no certificate.
    is_awaited: AtomicBool,
}

impl ServingCertificate {
    /// Serves this certificate from now on.
    ///
    /// # Errors
    /// When it is invalid.
    pub fn set(&self, certificate: &Certificate) -> Result<()> {
        let before = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*before, Some((current, _)) if current == certificate) {
            return Ok(());
        }
        drop(before);
        let next = Some((certificate.clone(), certificate.certified_key()?));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// The current certificate.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(certificate, _)| certificate.clone())
    }

    /// Notes that there is no certificate.
    pub fn set_awaited(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Whether the replica is ready. Only the leader generates the first certificate. When a rollout enables
    /// webhooks, the old leader has none, and is replaced only after new replicas are ready. So replicas are ready
    /// without a certificate, once they have checked.
    #[must_use]
    pub fn is_ready(&self, leads: bool) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.is_some() || !leads && self.is_awaited.load(Ordering::Relaxed)
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(_, key)| Arc::clone(key))
    }
}

/// Reviews requests.
#[derive(Clone)]
pub struct Judge {
    pub client: Client,
    pub ours: ServedDrivers,
    /// The time without heartbeats after which an agent is silent.
    pub silence: Duration,
    pub metrics: Metrics,
    pub(super) shares: Shares,
}

/// Serves for ever, in tasks of its own.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve(address: SocketAddr, serving: Arc<ServingCertificate>, judge: Judge) -> Result<()> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("prepare TLS")?
        .with_no_client_auth()
        .with_cert_resolver(serving);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let turns = Turns::new(TURNS);
    accept(address, PLACES, move |stream, slot| {
        connected(acceptor.clone(), stream, judge.clone(), turns.clone(), slot)
    })
}

async fn connected(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    judge: Judge,
    turns: Turns,
    slot: ConnectionSlot,
) {
    let until = Instant::now() + FIRST;
    let Ok(peer) = stream.peer_addr() else {
        return;
    };
    let host = host(peer.ip());
    let Ok(Ok(stream)) = timeout_at(until, acceptor.accept(stream)).await else {
        return;
    };
    let first = Arc::new(Notify::new());
    let begun = Arc::clone(&first);
    let service = service_fn(move |request: Request<Incoming>| {
        begun.notify_one();
        slot.asks();
        let (judge, turns, slot) = (judge.clone(), turns.clone(), slot.clone());
        async move { Ok::<_, Infallible>(judge.respond(request, host, &turns, &slot).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        begun = timeout_at(until, first.notified()) => if begun.is_err() { return },
    }
    // Ends when the peer closes it, or when another connection needs its slot.
    let _ = connection.await;
}

impl Judge {
    async fn respond(
        &self,
        request: Request<Incoming>,
        host: IpAddr,
        turns: &Turns,
        slot: &ConnectionSlot,
    ) -> Response<String> {
        let until = Instant::now() + TIMEOUT;
        let path = request.uri().path().to_owned();
        let needed = match path.as_str() {
            "/claims" => &review::CLAIM,
            _ => &review::SET,
        };
        let question = review::arrive(needed, request.into_body());
        let question = timeout_at(until, question).await;
        match question.unwrap_or_else(|_| Err(anyhow::anyhow!("the question did not arrive"))) {
            Ok(question) => {
                let namespace = review::namespace(&question);
                let _answering = slot.answers_about(&namespace);
                let asker = Asker { host, namespace };
                self.answer_in_turn(turns, &asker, &path, &question, until)
                    .await
            }
            Err(error) => plain(StatusCode::BAD_REQUEST, &format!("{error:#}\n")),
        }
    }

    async fn answer_in_turn(
        &self,
        turns: &Turns,
        asker: &Asker,
        path: &str,
        question: &[u8],
        until: Instant,
    ) -> Response<String> {
        let Ok(_turn) = timeout_at(until, turns.acquire(asker)).await else {
            log::warn("cannot judge", &[("path", path), ("error", BUSY)]);
            if let Some(what) = reviewed(path) {
                self.metrics.operated(&format!("judge-{what}"), "failed");
            }
            // An error, which allows the update: a response would need the request's UID, which was not parsed.
            return plain(StatusCode::BAD_REQUEST, BUSY);
        };
        let judge = Judge {
            client: self.shares.client(&self.client, asker),
            ..self.clone()
        };
        judge.answer(path, question, until).await
    }

    async fn answer(&self, path: &str, question: &[u8], until: Instant) -> Response<String> {
        let Judge {
            client,
            ours,
            silence,
            ..
        } = self;
        let Some(what) = reviewed(path) else {
            return plain(StatusCode::NOT_FOUND, "ask /claims, /sets or /templates\n");
        };
        let answer = match what {
            "claim" => {
                let judge =
                    |update| async move { claims::judge(client, ours, *silence, &update).await };
                self.review(what, question, until, judge).await
            }
            "set" => {
                let judge =
                    |update| async move { stateful_set_annotations::judge(client, &update).await };
                self.review(what, question, until, judge).await
            }
            _ => {
                let judge = |update| async move {
                    stateful_set_templates::edit(client, ours, &update).await
                };
                self.review(what, question, until, judge).await
            }
        };
        match answer {
            Ok(answer) => {
                let mut answer = Response::new(answer);
                let json = http::HeaderValue::from_static("application/json");
                answer
                    .headers_mut()
                    .insert(http::header::CONTENT_TYPE, json);
                answer
            }
            Err(error) => plain(StatusCode::BAD_REQUEST, &format!("{error:#}\n")),
        }
    }

    /// Returns the response to a request. An update that cannot be reviewed is allowed.
    async fn review<K, F>(
        &self,
        what: &str,
        question: &[u8],
        until: Instant,
        judge: impl FnOnce(review::Update<K>) -> F,
    ) -> Result<String>
    where
        K: DeserializeOwned,
        F: Future<Output = Result<Verdict>>,
    {
        let update = review::read::<K>(question)?;
        let uid = update.uid.clone();
        let judged = timeout_at(until, judge(update)).await;
        let judged = judged.unwrap_or_else(|_| Err(anyhow::anyhow!("it took too long")));
        let (verdict, word) = match judged {
            Ok(verdict) if verdict.refusal.is_some() => (verdict, "refused"),
            Ok(verdict) => (verdict, "allowed"),
            Err(error) => {
                let error = error_message(&error);
                log::warn("cannot judge", &[("what", what), ("error", &error)]);
                (Verdict::allowed(), "failed")
            }
        };
        self.metrics.operated(&format!("judge-{what}"), word);
        Ok(verdict.answer(&uid))
    }
}

/// What the requests to a path review.
fn reviewed(path: &str) -> Option<&'static str> {
    match path {
        "/claims" => Some("claim"),
        "/sets" => Some("set"),
        "/templates" => Some("template"),
        _ => None,
    }
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    let mut answer = Response::new(text.to_owned());
    *answer.status_mut() = status;
    answer
}
