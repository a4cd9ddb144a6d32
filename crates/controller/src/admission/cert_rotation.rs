//! Rotation of the webhooks' certificate. The leader creates it and configures the API servers' trust, and every
//! replica serves the secret's certificate.

use super::{certificate::Certificate, server::ServingCertificate};
use crate::{
    client::{error_message, is_conflict},
    runtime::backoff::Backoff,
    support::{log, metrics::Metrics},
};
use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
        },
        core::v1::Secret,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{
    error::Error,
    fmt::{self, Debug, Display, Formatter},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

/// Interval of checks of secret and configurations. They may have been recreated, and until a check repairs them the
/// API server cannot call the webhooks.
const PERIOD: Duration = Duration::from_secs(5);

/// Interval while there is no certificate, or its renewal is due.
const SOON: Duration = Duration::from_secs(1);

/// Maximum pause while there is no secret. An upgrade that recreates the secret waits for replicas to be ready.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The secret is missing. The controller may not create it: permission to create secrets gives every account's token.
#[derive(Debug)]
struct NoSecret(String);

impl Display for NoSecret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no secret {} to keep it in; install the chart again, or apply deploy/cluster/controller.yaml",
            self.0
        )
    }
}

impl Error for NoSecret {}

/// Returns the pause after consecutive failures, with the last error.
fn pause(error: &anyhow::Error, failures: u32) -> Duration {
    let longest = match error.is::<NoSecret>() {
        true => LONGEST_PAUSE,
        false => PERIOD,
    };
    let first = SOON;
    Backoff { first, longest }.after(failures)
}

pub struct CertificateRotator {
    pub client: Client,
    pub namespace: String,
    /// Name of both webhook configurations, and beginning of the names of their service and secret.
    pub instance: String,
    pub lifetime: Duration,
    /// Whether this process is the leader. Only the leader writes.
    pub leads: Arc<AtomicBool>,
    pub serving: Arc<ServingCertificate>,
    pub metrics: Metrics,
}

impl CertificateRotator {
    pub async fn run(self) {
        let mut failures = 0_u32;
        loop {
            let pause = match self.renew_if_due().await {
                Ok(remaining) => {
                    failures = 0;
                    remaining.clamp(SOON, PERIOD)
                }
                Err(error) if is_conflict(&error) => SOON,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let why = error_message(&error);
                    log::warn("cannot keep the webhooks' certificate", &[("error", &why)]);
                    pause(&error, failures)
                }
            };
            sleep(pause).await;
        }
    }

    /// Does one check. Returns how long nothing has to be done.
    async fn renew_if_due(&self) -> Result<Duration> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = format!("{}-webhook", self.instance);
        let secret = secrets.get_opt(&name).await.context("read the secret")?;
        let secret = secret.ok_or_else(|| NoSecret(name.clone()))?;
        let found = Certificate::read(&secret);
        match &found {
            Some(found) => self.serve(found)?,
            None => self.serving.set_awaited(),
        }
        let now = Timestamp::now();
        let remaining = found
            .as_ref()
            .map(|found| found.time_to_renewal(self.lifetime, now));
        let remaining = remaining.unwrap_or_default();
        if !self.leads.load(Ordering::Relaxed) {
            return Ok(remaining);
        }
        if let Some(found) = found.as_ref().filter(|_| !remaining.is_zero()) {
            self.trust(&found.trusted()).await?;
            return Ok(remaining);
        }
        // If the secret is lost, other replicas still serve the previous certificate.
        let former = found.or_else(|| self.serving.certificate());
        let service = format!("{name}.{}.svc", self.namespace);
        let made = Certificate::make(&service, self.lifetime, now, former.as_ref())?;
        // Trusted before it is written, because replicas serve the secret's certificate at once.
        self.trust(&made.trusted()).await?;
        let write = PostParams::default();
        secrets
            .replace(&name, &write, &made.put_into(secret))
            .await
            .context("write the secret")?;
        log::info("made a certificate for webhooks", &[]);
        self.serve(&made)?;
        Ok(made.time_to_renewal(self.lifetime, now))
    }

    fn serve(&self, certificate: &Certificate) -> Result<()> {
        self.serving.set(certificate)?;
        let renewal = certificate.renewal().as_second();
        self.metrics.certificate_renewal(renewal);
        Ok(())
    }

    async fn trust(&self, authorities: &str) -> Result<()> {
        let bundle = ByteString(authorities.as_bytes().to_vec());
        let validating = |found: &ValidatingWebhookConfiguration| {
            let all = found.webhooks.iter().flatten();
            untrusting(all.map(|hook| (&hook.name, &hook.client_config)), &bundle)
        };
        let mutating = |found: &MutatingWebhookConfiguration| {
            let all = found.webhooks.iter().flatten();
            untrusting(all.map(|hook| (&hook.name, &hook.client_config)), &bundle)
        };
        self.configure(&bundle, validating).await?;
        self.configure(&bundle, mutating).await
    }

    /// Sets the CA bundle of a configuration's webhooks that have another one. A missing configuration is not wanted.
    async fn configure<K>(
        &self,
        bundle: &ByteString,
        untrusting: impl Fn(&K) -> Vec<String>,
    ) -> Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let all: Api<K> = Api::all(self.client.clone());
        let found = all.get_opt(&self.instance).await;
        let Some(found) = found.context("read the webhook configuration")? else {
            return Ok(());
        };
        let hooks: Vec<_> = untrusting(&found)
            .into_iter()
            .map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        if hooks.is_empty() {
            return Ok(());
        }
        // A strategic merge matches webhooks by name, and keeps their other fields.
        let patch = json!({
            "metadata": {"resourceVersion": found.meta().resource_version},
            "webhooks": hooks,
        });
        all.patch(
            &self.instance,
            &PatchParams::default(),
            &Patch::Strategic(&patch),
        )
        .await
        .context("tell API servers whom to trust")?;
        Ok(())
    }
}

fn untrusting<'a>(
    hooks: impl Iterator<Item = (&'a String, &'a WebhookClientConfig)>,
    bundle: &ByteString,
) -> Vec<String> {
    hooks
        .filter(|(_, client)| client.ca_bundle.as_ref() != Some(bundle))
        .map(|(name, _)| name.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_told_when_the_certificate_that_is_served_is_to_be_renewed() {
        let nobody = async |_: http::Request<kube::client::Body>| {
            Err::<http::Response<kube::client::Body>, tower::BoxError>("nobody answers".into())
        };
        let rotator = CertificateRotator {
            client: Client::new(tower::service_fn(nobody), "default"),
            namespace: "flexvol".to_owned(),
            instance: "flexvol".to_owned(),
            lifetime: Duration::from_secs(3000),
            leads: Arc::default(),
            serving: Arc::default(),
            metrics: Metrics::default(),
        };
        let now = "2026-11-28T12:00:00Z".parse::<Timestamp>().unwrap();
        let made =
            Certificate::make("flexvol-webhook.flexvol.svc", rotator.lifetime, now, None).unwrap();
        rotator.serve(&made).unwrap();
        assert_eq!(rotator.serving.certificate().unwrap(), made);
        let due = now.as_second() + 2000;
        let said = format!("_renewal_timestamp_seconds{{}} {due}\n");
        let text = rotator.metrics.text();
        assert!(text.contains(&said), "{text}");
    }

    #[test]
    fn only_a_secret_that_is_not_there_is_asked_for_ever_more_rarely() {
        let pauses = |error: anyhow::Error| {
            [1, 3, 4, 6, 7, 1000].map(|failures| pause(&error, failures).as_secs())
        };
        assert_eq!(
            pauses(NoSecret("flexvol-webhook".to_owned()).into()),
            [1, 4, 8, 32, 60, 60]
        );
        assert_eq!(pauses(anyhow::anyhow!("busy")), [1, 4, 5, 5, 5, 5]);
    }
}
