//! The webhooks' certificate, which is generated here and stored in a secret.
//!
//! Each certificate is signed by a certificate authority of its own, whose key is dropped at once, so it can sign
//! nothing else. API servers have to trust the current authority, and for a while the former one, because replicas
//! serve the old certificate until they have read the new one.

use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use std::{sync::Arc, time::Duration};
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

/// The common name of certificates.
const NAME: &str = "flexvol-webhook";

/// Annotation of the secret: when the certificate is renewed, RFC 3339.
const RENEW: &str = "flexvol.dev/renew";

/// Keys in the secret.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
const FORMER: &str = "former-ca.crt";

/// Maximum difference of hosts' clocks: certificates are valid this long before their creation.
const SKEW: Duration = Duration::from_secs(300);

/// A certificate with its key and authorities, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    authority: String,
    former: Option<String>,
    chain: String,
    key: String,
    renew: Timestamp,
}

/// Returns how long a certificate is served.
fn term(lifetime: Duration) -> Duration {
    lifetime * 2 / 3
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate")
            .field("renew", &self.renew)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// Generates a certificate for the DNS name of a service. It is renewed after two thirds of its lifetime.
    ///
    /// # Errors
    /// When there is no randomness, or the name is invalid.
    pub fn make(
        service: &str,
        lifetime: Duration,
        now: Timestamp,
        former: Option<&Certificate>,
    ) -> Result<Self> {
        let begins = date_time_ymd(1970, 1, 1)
            + Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0))
            - SKEW;
        let lasting = |mut of: CertificateParams, name: &str| {
            of.not_before = begins;
            of.not_after = begins + SKEW + lifetime;
            of.distinguished_name = DistinguishedName::new();
            of.distinguished_name.push(DnType::CommonName, name);
            of
        };
        // Unique names, so that authorities cannot be confused.
        let name = format!("{NAME} authority of {now}");
        let mut authority = lasting(CertificateParams::default(), &name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let mut leaf = lasting(CertificateParams::new(vec![service.to_owned()])?, NAME);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let chain = leaf.signed_by(&key, &authority)?.pem();
        Ok(Certificate {
            authority: authority.pem(),
            former: former.map(|former| former.authority.clone()),
            chain,
            key: key.serialize_pem(),
            renew: now
                .saturating_add(SignedDuration::try_from(term(lifetime))?)
                .context("say when to renew the certificate")?,
        })
    }

    /// When it is to be renewed.
    #[must_use]
    pub fn renewal(&self) -> Timestamp {
        self.renew
    }

    /// Returns the time until renewal. It is zero if it exceeds that of a new certificate: then the certificate was
    /// made for another lifetime, or by a clock that was ahead, and may not be valid yet.
    #[must_use]
    pub fn time_to_renewal(&self, lifetime: Duration, now: Timestamp) -> Duration {
        let rest = Duration::try_from(now.duration_until(self.renew)).unwrap_or_default();
        if rest > term(lifetime) + SKEW {
            Duration::ZERO
        } else {
            rest
        }
    }

    /// The authorities to trust, as a CA bundle.
    #[must_use]
    pub fn trusted(&self) -> String {
        format!(
            "{}{}",
            self.authority,
            self.former.as_deref().unwrap_or_default()
        )
    }

    /// Reads a secret. Returns `None` if it is incomplete or invalid.
    #[must_use]
    pub fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let renew = secret.metadata.annotations.as_ref()?.get(RENEW)?;
        let found = Certificate {
            authority: text(AUTHORITY)?,
            former: text(FORMER),
            chain: text(CHAIN)?,
            key: text(KEY)?,
            renew: renew.parse().ok()?,
        };
        found.certified_key().is_ok().then_some(found)
    }

    /// Stores the certificate in a secret, whose other metadata is kept.
    #[must_use]
    pub fn put_into(&self, mut secret: Secret) -> Secret {
        let pairs = [
            (AUTHORITY, Some(&self.authority)),
            (FORMER, self.former.as_ref()),
            (CHAIN, Some(&self.chain)),
            (KEY, Some(&self.key)),
        ];
        let data = pairs.into_iter().filter_map(|(key, text)| {
            Some((key.to_owned(), ByteString(text?.clone().into_bytes())))
        });
        secret.data = Some(data.collect());
        let annotations = secret.metadata.annotations.get_or_insert_default();
        annotations.insert(RENEW.to_owned(), self.renew.to_string());
        secret
    }

    /// Converts the certificate for a TLS server.
    ///
    /// # Errors
    /// When chain or key are invalid, or do not match.
    pub fn certified_key(&self) -> Result<Arc<CertifiedKey>> {
        CertificateDer::pem_slice_iter(self.authority.as_bytes())
            .next()
            .context("the secret has no authority")??;
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .context("read the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .context("read the certificate's key")?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .context("use the certificate")?;
        Ok(Arc::new(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_rustls::rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::{ServerName, UnixTime},
    };

    const DAY: Duration = Duration::from_secs(86400);

    fn now() -> Timestamp {
        "2026-11-21T20:00:00Z".parse().unwrap()
    }

    fn make(now: Timestamp, former: Option<&Certificate>) -> Certificate {
        Certificate::make("flexvol-webhook.flexvol.svc", DAY * 9, now, former).unwrap()
    }

    /// Whether a client that trusts `trusted` accepts the certificate at this time after the first one.
    fn accepted(trusted: &str, certificate: &Certificate, name: &str, after: Duration) -> bool {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
            roots.add(root.unwrap()).unwrap();
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        let key = certificate.certified_key().unwrap();
        let at = Duration::from_secs(now().as_second().unsigned_abs()) + after;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier
            .verify_server_cert(
                &key.cert[0],
                &key.cert[1..],
                &name,
                &[],
                UnixTime::since_unix_epoch(at),
            )
            .is_ok()
    }

    #[test]
    fn a_certificate_is_good_for_its_service_and_its_lifetime_only() {
        let made = make(now(), None);
        let service = "flexvol-webhook.flexvol.svc";
        assert!(accepted(&made.trusted(), &made, service, Duration::ZERO));
        assert!(accepted(&made.trusted(), &made, service, DAY * 8));
        assert!(!accepted(&made.trusted(), &made, service, DAY * 10));
        let other = "flexvol-webhook.other.svc";
        assert!(!accepted(&made.trusted(), &made, other, Duration::ZERO));
        let stranger = make(now(), None);
        let trusted = stranger.trusted();
        assert!(!accepted(&trusted, &made, service, Duration::ZERO));
    }

    #[test]
    fn a_certificate_and_the_one_before_it_are_trusted_together_and_no_older_one() {
        let service = "flexvol-webhook.flexvol.svc";
        let first = make(now(), None);
        let second = make(now(), Some(&first));
        let third = make(now(), Some(&second));
        let trusted = third.trusted();
        assert!(accepted(&trusted, &third, service, Duration::ZERO));
        assert!(accepted(&trusted, &second, service, Duration::ZERO));
        assert!(!accepted(&trusted, &first, service, Duration::ZERO));
    }

    #[test]
    fn a_certificate_for_ten_years_can_be_made() {
        let made =
            Certificate::make("flexvol-webhook.flexvol.svc", DAY * 3650, now(), None).unwrap();
        let service = "flexvol-webhook.flexvol.svc";
        assert!(accepted(&made.trusted(), &made, service, DAY * 3649));
    }

    #[test]
    fn a_certificate_is_renewed_before_it_ends() {
        let made = make(now(), None);
        let after = |days: i64| {
            made.time_to_renewal(DAY * 9, now() + SignedDuration::from_hours(24 * days))
        };
        assert_eq!([after(0), after(5)], [DAY * 6, DAY]);
        assert_eq!([after(6), after(7)], [Duration::ZERO; 2]);
    }

    #[test]
    fn a_certificate_that_a_clock_far_ahead_made_or_for_longer_is_renewed_at_once() {
        let ahead = |by: Duration| {
            let then = now() + SignedDuration::try_from(by).unwrap();
            make(then, None).time_to_renewal(DAY * 9, now())
        };
        assert_eq!(ahead(DAY * 365), Duration::ZERO);
        assert_eq!(ahead(SKEW + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(ahead(SKEW), DAY * 6 + SKEW, "clocks of hosts differ");
        let made = make(now(), None);
        assert_eq!(made.time_to_renewal(DAY, now()), Duration::ZERO);
        assert_eq!(made.time_to_renewal(DAY * 90, now()), DAY * 6);
    }

    #[test]
    fn what_another_replica_made_is_read_and_what_is_damaged_is_not() {
        let made = make(now(), Some(&make(now(), None)));
        let whole = secret(&made);
        assert_eq!(Certificate::read(&whole), Some(made.clone()));
        for key in [AUTHORITY, CHAIN, KEY] {
            let mut damaged = whole.clone();
            let data = damaged.data.as_mut().unwrap();
            data.insert(key.to_owned(), ByteString(b"nonsense".to_vec()));
            assert_eq!(Certificate::read(&damaged), None, "{key}");
            data_of(&mut damaged).remove(key);
            assert_eq!(Certificate::read(&damaged), None, "{key}");
        }
        let mut others = whole.clone();
        let key = data_of(&mut secret(&make(now(), None)))[KEY].clone();
        data_of(&mut others).insert(KEY.to_owned(), key);
        assert_eq!(Certificate::read(&others), None, "another's key");
        let mut timeless = whole;
        timeless.metadata.annotations = None;
        assert_eq!(Certificate::read(&timeless), None);
    }

    #[test]
    fn a_certificate_leaves_what_others_say_of_the_secret() {
        let shipped: Secret = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": NAME, "resourceVersion": "7", "uid": "u-1",
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {"meta.helm.sh/release-name": "flexvol"},
            },
            "type": "Opaque",
        }))
        .unwrap();
        let first = make(now(), None);
        let filled = make(now(), Some(&first)).put_into(first.put_into(shipped.clone()));
        let mut emptied = filled.clone();
        emptied.data = None;
        let annotations = emptied.metadata.annotations.as_mut().unwrap();
        assert!(annotations.remove(RENEW).is_some());
        assert_eq!(emptied, shipped);
        // An applied chart empties the secret, which counts as no certificate.
        assert_eq!(Certificate::read(&emptied), None);
        assert!(Certificate::read(&filled).is_some());
    }

    fn secret(of: &Certificate) -> Secret {
        of.put_into(Secret::default())
    }

    fn data_of(secret: &mut Secret) -> &mut std::collections::BTreeMap<String, ByteString> {
        secret.data.as_mut().unwrap()
    }
}
