//! Answering API servers, over TLS.

#[cfg(test)]
mod tests;

use super::{
    certificate::Certificate,
    claims,
    review::{self, Verdict},
    stateful_set_annotations, stateful_set_templates,
};
use crate::{
    client::error_message,
    drivers::ServedDrivers,
    server::listener::{ConnectionSlot, accept},
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
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::{Notify, Semaphore},
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

/// How long a question may take, with its turn: the API server waits for three seconds
/// (`deploy/cluster/webhooks.yaml`).
const TIMEOUT: Duration = Duration::from_secs(2);

/// How many connections there are at most.
const PLACES: usize = 64;

/// How long whoever connects has until its first question has begun.
const FIRST: Duration = Duration::from_secs(5);

/// An API server keeps a connection for its next question, and no longer than this.
const IDLE: Duration = Duration::from_secs(120);

/// How much of what arrives waits to be looked at.
const BUFFER: usize = 32 << 10;

/// How many questions are judged at once: each is many times as large in memory.
static TURNS: Semaphore = Semaphore::const_new(4);

/// What a question is told that had no turn in time.
const BUSY: &str = "too many questions are judged already";

/// The certificate that is shown to whoever connects next.
#[derive(Debug, Default)]
pub struct Shown {
    current: RwLock<Option<(Certificate, Arc<CertifiedKey>)>>,
    /// It was looked, and nobody had made one.
    is_awaited: AtomicBool,
}

impl Shown {
    /// Shows this one from now on.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn show(&self, certificate: &Certificate) -> Result<()> {
        let before = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*before, Some((shown, _)) if shown == certificate) {
            return Ok(());
        }
        drop(before);
        let next = Some((certificate.clone(), certificate.shown()?));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// What is shown.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        let shown = self.current.read().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().map(|(certificate, _)| certificate.clone())
    }

    /// There is no certificate that could be shown.
    pub fn nothing_yet(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Whether that is as it should be. Only who leads makes the first certificate, and where a rollout turns
    /// webhooks on, whoever leads has none and goes only when others are ready; so they are without one,
    /// but not before they have looked.
    #[must_use]
    pub fn suffices(&self, leads: bool) -> bool {
        let shown = self.current.read().unwrap_or_else(PoisonError::into_inner);
        shown.is_some() || !leads && self.is_awaited.load(Ordering::Relaxed)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.current.read().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().map(|(_, key)| Arc::clone(key))
    }
}

/// What judging needs.
#[derive(Clone)]
pub struct Judge {
    pub client: Client,
    pub ours: ServedDrivers,
    /// After how long an agent counts as away.
    pub silence: Duration,
    pub metrics: Metrics,
}

/// Answers for ever, in tasks of its own.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve(address: SocketAddr, shown: Arc<Shown>, judge: Judge) -> Result<()> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("prepare TLS")?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    accept(address, PLACES, move |stream, slot| {
        connected(acceptor.clone(), stream, judge.clone(), slot)
    })
}

async fn connected(acceptor: TlsAcceptor, stream: TcpStream, judge: Judge, slot: ConnectionSlot) {
    let until = Instant::now() + FIRST;
    let Ok(Ok(stream)) = timeout_at(until, acceptor.accept(stream)).await else {
        return;
    };
    let first = Arc::new(Notify::new());
    let begun = Arc::clone(&first);
    let service = service_fn(move |request: Request<Incoming>| {
        begun.notify_one();
        slot.asks();
        let (judge, slot) = (judge.clone(), slot.clone());
        async move { Ok::<_, Infallible>(judge.asked(request, &slot).await) }
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
    // It ends when the other side goes, or when somebody else needs its place.
    let _ = connection.await;
}

impl Judge {
    async fn asked(&self, request: Request<Incoming>, slot: &ConnectionSlot) -> Response<String> {
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
                let _answering = slot.answers();
                self.answer(&path, &question, until).await
            }
            Err(error) => plain(StatusCode::BAD_REQUEST, &format!("{error:#}\n")),
        }
    }

    async fn answer(&self, path: &str, question: &[u8], until: Instant) -> Response<String> {
        let Judge {
            client,
            ours,
            silence,
            ..
        } = self;
        let answer = match path {
            "/claims" => {
                let judge =
                    |update| async move { claims::judge(client, ours, *silence, &update).await };
                self.judged("claim", question, until, judge).await
            }
            "/sets" => {
                let judge =
                    |update| async move { stateful_set_annotations::judge(client, &update).await };
                self.judged("set", question, until, judge).await
            }
            "/templates" => {
                let judge = |update| async move {
                    stateful_set_templates::edit(client, ours, &update).await
                };
                self.judged("template", question, until, judge).await
            }
            _ => return plain(StatusCode::NOT_FOUND, "ask /claims, /sets or /templates\n"),
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

    /// The answer to a question, which passes if it cannot be judged.
    async fn judged<K, F>(
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
        let operation = format!("judge-{what}");
        let Ok(_turn) = timeout_at(until, TURNS.acquire()).await else {
            log::warn("cannot judge", &[("what", what), ("error", BUSY)]);
            self.metrics.operated(&operation, "failed");
            // It passes: an answer would have to name the question, which was not read.
            anyhow::bail!(BUSY);
        };
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
        self.metrics.operated(&operation, word);
        Ok(verdict.answer(&uid))
    }
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    let mut answer = Response::new(text.to_owned());
    *answer.status_mut() = status;
    answer
}
