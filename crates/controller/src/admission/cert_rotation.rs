//! Keeping the certificate: the leader makes it and tells API servers whom to trust, and every
//! replica shows what is in the secret.

use super::{
    certificate::{Certificate, NAME},
    server::Shown,
};
use crate::{
    client::{error_message, is_conflict},
    runtime::backoff::Backoff,
    support::log,
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

/// The name of both webhook configurations.
const CONFIGURATION: &str = "flexvol";

/// How often the secret and the configurations are looked at: somebody may have made them anew, and until
/// that is seen here nobody is asked.
const PERIOD: Duration = Duration::from_secs(5);

/// How often, while there is no certificate, or no new one.
const SOON: Duration = Duration::from_secs(1);

/// The longest pause while there is no secret: an upgrade that makes the secret anew waits for its replicas to be ready.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// There is no secret. It may not be made here: whoever may make secrets can have every account's token.
#[derive(Debug)]
struct NoSecret;

impl Display for NoSecret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no secret {NAME} to keep it in; install the chart again, or apply deploy/cluster/controller.yaml"
        )
    }
}

impl Error for NoSecret {}

/// How long to wait after so many failures, of which this is the last.
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
    pub lifetime: Duration,
    /// Whether this process leads: no other writes.
    pub leads: Arc<AtomicBool>,
    pub shown: Arc<Shown>,
}

impl CertificateRotator {
    pub async fn run(self) {
        let mut failures = 0_u32;
        loop {
            let pause = match self.look().await {
                Ok(lasts) => {
                    failures = 0;
                    lasts.clamp(SOON, PERIOD)
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

    /// Does what has to be done now, and says for how long nothing else has.
    async fn look(&self) -> Result<Duration> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.get_opt(NAME).await.context("read the secret")?;
        let secret = secret.ok_or(NoSecret)?;
        let found = Certificate::read(&secret);
        match &found {
            Some(found) => self.shown.show(found)?,
            None => self.shown.nothing_yet(),
        }
        let now = Timestamp::now();
        let lasts = found.as_ref().map(|found| found.lasts(self.lifetime, now));
        let lasts = lasts.unwrap_or_default();
        if !self.leads.load(Ordering::Relaxed) {
            return Ok(lasts);
        }
        if let Some(found) = found.as_ref().filter(|_| !lasts.is_zero()) {
            self.trust(&found.trusted()).await?;
            return Ok(lasts);
        }
        // If the secret is lost, others still show what was in it.
        let former = found.or_else(|| self.shown.certificate());
        let made = Certificate::make(&self.namespace, self.lifetime, now, former.as_ref())?;
        // Whoever reads the secret shows it, so that has to be trusted before.
        self.trust(&made.trusted()).await?;
        let write = PostParams::default();
        secrets
            .replace(NAME, &write, &made.put_into(secret))
            .await
            .context("write the secret")?;
        log::info("made a certificate for webhooks", &[]);
        self.shown.show(&made)?;
        Ok(made.lasts(self.lifetime, now))
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

    /// Gives the bundle to those webhooks of a configuration that have another. One that is not
    /// there is not wanted.
    async fn configure<K>(
        &self,
        bundle: &ByteString,
        untrusting: impl Fn(&K) -> Vec<String>,
    ) -> Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let all: Api<K> = Api::all(self.client.clone());
        let found = all.get_opt(CONFIGURATION).await;
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
        // Lists of webhooks are merged by their names, and whatever else they say stays.
        let patch = json!({
            "metadata": {"resourceVersion": found.meta().resource_version},
            "webhooks": hooks,
        });
        all.patch(
            CONFIGURATION,
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

    #[test]
    fn only_a_secret_that_is_not_there_is_asked_for_ever_more_rarely() {
        let pauses = |error: anyhow::Error| {
            [1, 3, 4, 6, 7, 1000].map(|failures| pause(&error, failures).as_secs())
        };
        assert_eq!(pauses(NoSecret.into()), [1, 4, 8, 32, 60, 60]);
        assert_eq!(pauses(anyhow::anyhow!("busy")), [1, 4, 5, 5, 5, 5]);
    }
}
