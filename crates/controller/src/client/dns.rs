//! Resolver for the API server's name.
//!
//! Pods get the API server's address, but a kubeconfig may contain a name. The C library's resolver would load shared
//! libraries into this static executable, and crash if they are of another version. So the system's `getent` resolves
//! names. Our image lacks it, and needs an address.

use anyhow::{Result, bail};
use http::Uri;
use hyper_util::client::legacy::connect::dns::Name;
use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    process::Stdio,
    task::{Context, Poll},
    vec,
};
use tokio::process::Command;

/// Resolver that runs `getent`, which is part of every system with the GNU C library.
#[derive(Clone, Copy, Debug)]
pub struct Getent;

impl tower::Service<Name> for Getent {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move { Ok(addresses(name.as_str()).await?.into_iter()) })
    }
}

/// Checks whether the API server's host can be resolved here at all, because otherwise retries are useless.
///
/// # Errors
/// When the host is a name and names cannot be resolved.
pub(crate) async fn check(url: &Uri) -> Result<()> {
    let host = url.host().unwrap_or_default();
    if is_address(host) {
        return Ok(());
    }
    let nothing = || Stdio::null();
    let mut getent = Command::new("getent");
    getent.arg("--version");
    let started = getent
        .stdin(nothing())
        .stdout(nothing())
        .stderr(nothing())
        .status();
    if let Err(error) = started.await {
        bail!(
            "the API server is told by its name, {host}, which cannot be looked up here, as getent does not start: {error}; say its address instead: in KUBERNETES_SERVICE_HOST (the chart's value apiServer), or in the kubeconfig, with the name as tls-server-name"
        );
    }
    Ok(())
}

/// Whether a host is an IP address. IPv6 addresses in URLs are in brackets.
fn is_address(host: &str) -> bool {
    let inside = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inside.unwrap_or(host).parse::<IpAddr>().is_ok()
}

async fn addresses(name: &str) -> io::Result<Vec<SocketAddr>> {
    // `--`: a name that begins with a dash would be taken for an option.
    let output = Command::new("getent")
        .args(["ahosts", "--", name])
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| {
            let what = format!(
                "cannot look up {name} because getent does not start: {error}; give the API server's address"
            );
            io::Error::new(error.kind(), what)
        })?;
    let found = parse(&String::from_utf8_lossy(&output.stdout));
    if found.is_empty() {
        let what = format!("{name} has no address");
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    Ok(found)
}

/// Parses the output: each line begins with an address, and there is one line for each socket type.
fn parse(text: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let address = line.split_whitespace().next().map(str::parse::<IpAddr>);
        if let Some(Ok(address)) = address {
            // The caller sets the port.
            let address = SocketAddr::new(address, 0);
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_once_in_the_order_of_the_system() {
        let text =
            "::1             STREAM localhost\n::1             DGRAM\n127.0.0.1       STREAM\n";
        let found: Vec<_> = parse(text)
            .iter()
            .map(|found| found.ip().to_string())
            .collect();
        assert_eq!(found, ["::1", "127.0.0.1"]);
    }

    #[test]
    fn an_address_needs_no_looking_up() {
        for (url, address) in [
            ("https://10.96.0.1/", true),
            ("https://10.96.0.1:6443", true),
            ("https://[fd00::1]:443/", true),
            ("https://kubernetes.default.svc/", false),
            ("https://10.96.0.1.example.com", false),
        ] {
            let url: Uri = url.parse().unwrap();
            assert_eq!(is_address(url.host().unwrap()), address, "{url}");
        }
    }

    #[tokio::test]
    async fn this_machine_has_an_address() {
        assert!(!addresses("localhost").await.unwrap().is_empty());
    }
}
