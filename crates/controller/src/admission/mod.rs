//! Admission webhooks (`admissionregistration.k8s.io/v1`) for expansions of claims and edits of stateful sets.
//!
//! Every replica serves them, with a certificate that the leader generates and renews. They fail open: if a webhook
//! does not answer, or cannot read an object, the request passes. Then the controller's events, or Kubernetes' own
//! rejection of edited templates, report what is impossible. Safety depends not on webhooks but on policies inside
//! the API server (`deploy/cluster`), which fail closed and need no process of ours.
//!
//! API servers do not authenticate, so any client that reaches the port may send requests. A request causes no
//! writes, and reveals only sizes: of a set's claims, of classes, and of a node's capacity.

mod cert_rotation;
pub mod certificate;
mod claims;
mod review;
mod server;
mod shares;
mod stateful_set_annotations;
mod stateful_set_claims;
mod stateful_set_templates;
mod turns;

use crate::{client::Budget, drivers::ServedDrivers, support::metrics::Metrics};
use anyhow::Result;
use kube::Client;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The rate limit of reads for reviews.
pub const READS: Budget = Budget {
    rate: 50.0,
    burst: 100,
    yields: false,
};

/// Configuration of the webhooks.
#[derive(Debug)]
pub struct Settings {
    /// The address that the service targets.
    pub address: SocketAddr,
    /// Namespace of the service and the secret.
    pub namespace: String,
    /// Name of the webhook configurations, and beginning of the names of the service and the secret.
    pub instance: String,
    /// Lifetime of a certificate.
    pub lifetime: Duration,
    /// The drivers whose claims are reviewed.
    pub ours: ServedDrivers,
    /// The time without heartbeats after which an agent is silent.
    pub silence: Duration,
}

/// Serves webhooks for ever, in tasks of its own. Returns a check that the certificate is valid.
///
/// `writer` rotates the certificate while `leads` is set. `reader` reads objects for reviews, with a rate limit of its
/// own ([`READS`]), because the API server waits for them.
///
/// # Errors
/// When the address cannot be bound.
pub fn start(
    settings: Settings,
    writer: Client,
    reader: Client,
    leads: Arc<AtomicBool>,
    metrics: Metrics,
) -> Result<impl Fn() -> bool + Send + Sync + use<>> {
    let serving = Arc::new(server::ServingCertificate::default());
    let judge = server::Judge {
        client: reader,
        ours: settings.ours,
        silence: settings.silence,
        metrics: metrics.clone(),
        shares: shares::Shares::default(),
    };
    server::serve(settings.address, Arc::clone(&serving), judge)?;
    let keeper = cert_rotation::CertificateRotator {
        client: writer,
        namespace: settings.namespace,
        instance: settings.instance,
        lifetime: settings.lifetime,
        leads: Arc::clone(&leads),
        serving: Arc::clone(&serving),
        metrics,
    };
    tokio::spawn(keeper.run());
    Ok(move || serving.is_ready(leads.load(Ordering::Relaxed)))
}
