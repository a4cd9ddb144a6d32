//! Client of the API server, with rate limit, timeouts and metrics.

mod dns;
mod errors;
mod failpoint;
pub(crate) mod fence;
pub(crate) mod fields;
mod maybe_partial;
mod middleware;
pub(crate) mod paginate;
pub(crate) mod prune;
mod rate_limit;
mod read;
mod request_info;
mod resource_as;
pub(crate) mod timeouts;

pub(crate) use errors::is_quota;
pub use errors::{Refusal, error_message, is_conflict, is_forbidden, is_refused, refusal};
pub use fence::Fence;
pub(crate) use maybe_partial::{MaybePartial, PartialObject};
pub use rate_limit::Budget;
pub(crate) use rate_limit::RateLimit;
pub(crate) use read::Read;
pub(crate) use resource_as::resource_as;

use crate::support::metrics::Metrics;
use anyhow::{Context as _, Error, Result, anyhow};
use dns::Getent;
use http::Request;
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use middleware::{Counted, Shared};
use std::{path::Path, sync::Arc, time::Duration};
use timeouts::TIMEOUT;
use tower::{BoxError, ServiceBuilder};

/// Connects by a kubeconfig, or, without one, by the service account of a pod.
///
/// # Errors
/// When neither is usable, or the API server's name cannot be resolved here.
pub async fn connect(
    kubeconfig: Option<&Path>,
    budget: Budget,
    fence: Fence,
    metrics: Metrics,
) -> Result<Client> {
    open(kubeconfig, Shared::new(budget, fence, metrics)).await
}

/// Connects for an interactive command, which shows or changes objects and so reads them whole.
///
/// # Errors
/// Like [`connect`].
pub async fn connect_person(kubeconfig: Option<&Path>) -> Result<Client> {
    let mut shared = Shared::new(Budget::of(None), Fence::default(), Metrics::default());
    shared.reads_whole = true;
    open(kubeconfig, shared).await
}

/// Returns a client that makes the requests of another, within a further limit.
pub(crate) fn limited(client: &Client, limit: Arc<RateLimit>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let within = move |request: Request<Body>| {
        let (client, limit) = (client.clone(), Arc::clone(&limit));
        async move {
            limit.wait().await;
            client.send(request).await
        }
    };
    Client::new(tower::service_fn(within), namespace)
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
        None => Config::incluster().map_err(|error| match error {
            // The names of variables that only pods have help nobody.
            kube::config::InClusterError::ReadEnvironmentVariable(_) => anyhow!(
                "find the API server: this is no pod of a cluster; give --kubeconfig FILE, or set KUBECONFIG"
            ),
            error => Error::from(error).context("find the API server"),
        })?,
    };
    dns::check(&config.cluster_url).await?;
    let mut connector = HttpConnector::new_with_resolver(Getent);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(TIMEOUT));
    // A watch may be idle for minutes. Keepalives detect a peer that is gone.
    connector.set_keepalive(Some(Duration::from_secs(20)));
    connector.set_keepalive_interval(Some(Duration::from_secs(5)));
    connector.set_keepalive_retries(Some(3));
    let https = config
        .rustls_https_connector_with_connector(connector)
        .context("prepare TLS")?;
    let service = ServiceBuilder::new()
        // Before the server's base path is prepended.
        .layer(Counted(Arc::new(shared)))
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().context("use the credentials")?)
        .map_err(BoxError::from)
        .service(Http::builder(TokioExecutor::new()).build::<_, Body>(https));
    Ok(Client::new(service, config.default_namespace))
}
