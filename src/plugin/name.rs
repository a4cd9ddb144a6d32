//! The name of a driver.

use anyhow::{Error, Result, bail};
use std::{fmt, str::FromStr};

/// The name by which persistent volumes and pods refer to a driver: `vendor/driver`.
///
/// Must be valid for Kubernetes (`validation.IsQualifiedName`, called in `pkg/volume/plugins.go`), and always has a
/// vendor: without one the controller manager cannot parse the name after its restart (`SplitUniqueName` needs
/// three parts) and detaches nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverName {
    vendor: String,
    driver: String,
}

impl DriverName {
    /// Returns the second part, which is the executable's name.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Returns the first part, a domain.
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// Returns the name of the driver's directory in the plugin directory.
    pub fn directory(&self) -> String {
        format!("{}~{}", self.vendor, self.driver)
    }
}

impl FromStr for DriverName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let [vendor, driver] = parts[..] else {
            bail!("a driver's name is vendor/driver, with one slash");
        };
        if !is_subdomain(vendor) {
            bail!(
                "the vendor must be a lower-case DNS subdomain: at most 253 of a-z, 0-9, '-' and '.', each part beginning and ending with a letter or digit"
            );
        }
        if !is_driver(driver) {
            bail!(
                "the driver must be 1 to 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
            );
        }
        Ok(DriverName {
            vendor: vendor.to_owned(),
            driver: driver.to_owned(),
        })
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.driver)
    }
}

fn is_subdomain(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        is_bounded_by(label, alphanumeric) && label.bytes().all(|c| alphanumeric(c) || c == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn is_driver(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_alphanumeric();
    text.len() <= 63
        && is_bounded_by(text, alphanumeric)
        && text.bytes().all(|c| alphanumeric(c) || b"-_.".contains(&c))
}

fn is_bounded_by(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    let ends = [text.as_bytes().first(), text.as_bytes().last()];
    ends.into_iter().all(|c| c.is_some_and(|&c| allowed(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_kubernetes_accepts() {
        let long = format!("a/{}", "d".repeat(63));
        for name in ["example.com/flexvol", "a/B_c.d-9", "0-0.x/0", &long] {
            let parsed: DriverName = name.parse().unwrap();
            assert_eq!(parsed.to_string(), name);
            assert_eq!(parsed.directory(), name.replace('/', "~"));
        }
    }

    #[test]
    fn other_names_are_refused() {
        let long = format!("a/{}", "d".repeat(64));
        for name in [
            "", "flexvol", "/flexvol", "a/", "a/b/c", "A/b", "a_b/c", "a..b/c", ".a/b", "a-/b",
            "a/.b", "a/b-", "a/..", "a/b~c", "a~b/c", "a/b c", "a/b\n", "../b", &long,
        ] {
            assert!(name.parse::<DriverName>().is_err(), "{name:?}");
        }
    }
}
