//! HTTP endpoints of this process: `/healthz`, `/readyz`, `/metrics`.

use crate::{
    server::listener::accept,
    support::metrics::{CONTENT_TYPE, Metrics},
};
use anyhow::{Context, Result};
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible, future::pending, net::SocketAddr, sync::Arc, thread, time::Duration,
};
use tokio::{runtime::Builder, sync::oneshot};

/// Maximum number of connections.
const PLACES: usize = 128;

/// Returns whether the process is ready.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves for ever, in a thread of its own, so that other work never delays kubelet's probes.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(address: SocketAddr, metrics: Metrics, ready: Ready) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (listens, bound) = oneshot::channel();
    thread::spawn(move || {
        runtime.block_on(async {
            // The receiver may be gone. Then the process is about to exit.
            let _ = listens.send(listen(address, metrics, ready));
            pending::<()>().await;
        });
    });
    bound.await.context("listen for probes")?
}

fn listen(address: SocketAddr, metrics: Metrics, ready: Ready) -> Result<()> {
    accept(address, PLACES, move |stream, place| {
        let (metrics, ready) = (metrics.clone(), Arc::clone(&ready));
        let service = service_fn(move |request: Request<Incoming>| {
            let _answering = place.answers();
            let answer = answer(request.uri().path(), &metrics, &ready);
            async move { Ok::<_, Infallible>(answer) }
        });
        async move {
            // Closes connections that send no request.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(5))
                .max_buf_size(8 << 10)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
}

fn answer(path: &str, metrics: &Metrics, ready: &Ready) -> Response<String> {
    let (status, text) = match path {
        "/healthz" => match metrics.watches.lost() {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(of) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{of} is watched no more\n"),
            ),
        },
        "/readyz" if ready() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not all was seen yet\n".to_owned(),
        ),
        "/metrics" => (StatusCode::OK, metrics.text()),
        _ => (
            StatusCode::NOT_FOUND,
            "ask for /healthz, /readyz or /metrics\n".to_owned(),
        ),
    };
    let mut answer = Response::new(text);
    *answer.status_mut() = status;
    let kind = match path {
        "/metrics" => CONTENT_TYPE,
        _ => "text/plain",
    };
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_sdk::Bytes;
    use std::collections::BTreeSet;

    #[test]
    fn a_process_is_ready_once_it_has_seen_everything() {
        let metrics = Metrics::default();
        let ask = |path: &str, ready: bool| {
            let ready: Ready = Arc::new(move || ready);
            answer(path, &metrics, &ready).status()
        };
        assert_eq!(ask("/healthz", false), StatusCode::OK);
        assert_eq!(ask("/readyz", false), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask("/readyz", true), StatusCode::OK);
        assert_eq!(ask("/", true), StatusCode::NOT_FOUND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_watches_no_more_is_not_healthy() {
        let metrics = Metrics::default();
        let ready: Ready = Arc::new(|| true);
        metrics.watches.began("/api/v1/persistentvolumeclaims");
        tokio::time::advance(Duration::from_secs(3600)).await;
        metrics.watches.answered();
        let said = answer("/healthz", &metrics, &ready);
        assert_eq!(said.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(said.body().contains("persistentvolumeclaims"));
    }

    #[test]
    fn metrics_are_in_a_format_that_prometheus_3_reads() {
        let ready: Ready = Arc::new(|| true);
        let said = answer("/metrics", &Metrics::default(), &ready);
        let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(said.headers()[header::CONTENT_TYPE], format);
        assert!(said.body().ends_with("\n# EOF\n"), "{}", said.body());
    }

    #[test]
    fn what_is_counted_is_printed() {
        let metrics = Metrics::default();
        metrics.operated("provision", "done");
        let text = metrics.text();
        let line = r#"flexvol_operations_total{operation="provision",result="done"} 1"#;
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn what_volumes_lack_is_printed_while_it_is_known() {
        let metrics = Metrics::default();
        let lack = |all: &[(&str, u64)]| {
            let named = all.iter().map(|(class, bytes)| {
                let labels = ("a/b".to_owned(), (*class).to_owned());
                (labels, Bytes(*bytes))
            });
            metrics.lack(&named.collect());
            let text = metrics.text();
            let said = text.lines().filter_map(|line| {
                line.strip_prefix(r#"flexvol_missing_bytes{driver="a/b",class=""#)
            });
            said.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let lines = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(lack(&[]), lines(&[]));
        let both = lack(&[("fast", 0), ("slow", 4096)]);
        assert_eq!(both, lines(&[r#"fast"} 0"#, r#"slow"} 4096"#]));
        assert_eq!(lack(&[("fast", 8192)]), lines(&[r#"fast"} 8192"#]));
        let most = lack(&[("fast", u64::MAX)]);
        assert_eq!(most, lines(&[r#"fast"} 9223372036854775807"#]));
    }
}
