//! What is judged before Kubernetes stores it: growth of claims, and edits of stateful sets.
//!
//! An admission webhook (`admissionregistration.k8s.io/v1`), served by every replica with a
//! certificate that the leader makes and renews. It judges growth, and growth fails open: when it
//! does not answer, or cannot read what it needs, the request passes, and what cannot be had is told
//! by the controller's events, or by Kubernetes' own refusal to edit templates. What is for safety is
//! not judged here but by policies inside the API server (`deploy/cluster`), which fail closed and
//! need no process of ours.
//!
//! Whoever reaches the port may ask, as API servers do not say who they are. Nothing is written for
//! it, and what can be learned is sizes: of the claims of a set, of classes, and of a node's room.

mod cert_rotation;
pub mod certificate;
mod claims;
mod review;
mod server;
mod stateful_set_annotations;
mod stateful_set_claims;
mod stateful_set_templates;

use crate::{drivers::ServedDrivers, support::metrics::Metrics};
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

/// How webhooks are served.
#[derive(Debug)]
pub struct Settings {
    /// Where the API server finds them, through their service.
    pub address: SocketAddr,
    /// The namespace of the service and of the secret.
    pub namespace: String,
    /// How long a certificate lasts.
    pub lifetime: Duration,
    /// The drivers whose claims are judged.
    pub ours: ServedDrivers,
    /// After how long an agent counts as away.
    pub silence: Duration,
}

/// Serves webhooks for ever, in tasks of its own, and says whether the certificate is as it should be.
///
/// `writer` keeps the certificate while `leads` is set; `reader` looks up what is judged, with a
/// budget of its own, because the API server waits for it.
///
/// # Errors
/// When the address cannot be listened on.
pub fn start(
    settings: Settings,
    writer: Client,
    reader: Client,
    leads: Arc<AtomicBool>,
    metrics: Metrics,
) -> Result<impl Fn() -> bool + Send + Sync + use<>> {
    let shown = Arc::new(server::Shown::default());
    let judge = server::Judge {
        client: reader,
        ours: settings.ours,
        silence: settings.silence,
        metrics,
    };
    server::serve(settings.address, Arc::clone(&shown), judge)?;
    let keeper = cert_rotation::CertificateRotator {
        client: writer,
        namespace: settings.namespace,
        lifetime: settings.lifetime,
        leads: Arc::clone(&leads),
        shown: Arc::clone(&shown),
    };
    tokio::spawn(keeper.run());
    Ok(move || shown.suffices(leads.load(Ordering::Relaxed)))
}
