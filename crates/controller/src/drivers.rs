//! The drivers that are served, and the provisioner names of their storage classes.
//!
//! A provisioner has its driver's name, `vendor/driver`, and optionally a second name without a slash. The scheduler
//! considers capacity only for provisioners with a `CSIDriver` object of that name
//! (`pkg/scheduler/framework/plugins/volumebinding/binder.go`), and names of objects contain no slash.

use crate::api::well_known::is_object_name;
use std::{collections::HashSet, fmt, str::FromStr};

/// Maximum length of a `CSIDriver`'s name (`ValidateCSIDriverName` in `pkg/apis/core/validation`).
const MAX_LENGTH: usize = 63;

/// A served driver, written as `vendor/driver` or `vendor/driver=provisioner`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    name: String,
    /// The second name of its provisioner, if it has one.
    scheduled: Option<String>,
}

/// All served drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedDrivers(Vec<Driver>);

impl ServedDrivers {
    /// Collects the drivers, whose names and provisioner names must differ.
    ///
    /// # Errors
    /// When a name occurs twice.
    pub fn of(drivers: &[Driver]) -> Result<Self, Repeated> {
        let mut names = HashSet::new();
        for known in drivers {
            for name in [Some(&known.name), known.scheduled.as_ref()]
                .into_iter()
                .flatten()
            {
                if !names.insert(name) {
                    return Err(Repeated(name.clone()));
                }
            }
        }
        Ok(drivers.iter().cloned().collect())
    }

    /// Whether a driver is served.
    #[must_use]
    pub fn has(&self, driver: &str) -> bool {
        self.names().any(|known| known == driver)
    }

    /// Returns the drivers' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|known| known.name.as_str())
    }

    /// Returns the driver of a provisioner.
    #[must_use]
    pub fn driver_of(&self, provisioner: &str) -> Option<&str> {
        let meant = |known: &&Driver| {
            known.name == provisioner || known.scheduled.as_deref() == Some(provisioner)
        };
        self.0.iter().find(meant).map(|known| known.name.as_str())
    }

    /// Returns the driver of a provisioner for which the scheduler considers capacity.
    #[must_use]
    pub fn scheduled(&self, provisioner: &str) -> Option<&str> {
        let meant = |known: &&Driver| known.scheduled.as_deref() == Some(provisioner);
        self.0.iter().find(meant).map(|known| known.name.as_str())
    }

    /// Whether the scheduler considers capacity for any of the drivers.
    #[must_use]
    pub fn any_scheduled(&self) -> bool {
        self.0.iter().any(|known| known.scheduled.is_some())
    }

    /// Returns the given driver alone.
    #[must_use]
    pub fn only(&self, driver: &str) -> ServedDrivers {
        let found = self.0.iter().filter(|known| known.name == driver);
        found.cloned().collect()
    }
}

impl FromIterator<Driver> for ServedDrivers {
    fn from_iter<I: IntoIterator<Item = Driver>>(drivers: I) -> Self {
        ServedDrivers(drivers.into_iter().collect())
    }
}

impl Driver {
    /// Creates a driver whose provisioner has only the driver's name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Driver {
            name: name.to_owned(),
            scheduled: None,
        }
    }
}

impl<const N: usize> From<[&str; N]> for ServedDrivers {
    fn from(names: [&str; N]) -> Self {
        names.into_iter().map(Driver::named).collect()
    }
}

impl FromStr for Driver {
    type Err = NoProvisioner;

    fn from_str(text: &str) -> Result<Self, NoProvisioner> {
        let Some((name, provisioner)) = text.split_once('=') else {
            return Ok(Driver::named(text));
        };
        if provisioner.len() > MAX_LENGTH || !is_object_name(provisioner) {
            return Err(NoProvisioner(provisioner.to_owned()));
        }
        Ok(Driver {
            name: name.to_owned(),
            scheduled: Some(provisioner.to_owned()),
        })
    }
}

/// A driver or provisioner that was given twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated(String);

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is named twice; say each driver, and each provisioner, once",
            self.0
        )
    }
}

impl std::error::Error for Repeated {}

/// A name that no `CSIDriver` can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoProvisioner(String);

impl fmt::Display for NoProvisioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} cannot be the name of a CSIDriver; say up to {MAX_LENGTH} lower-case letters, digits, dots and dashes",
            self.0
        )
    }
}

impl std::error::Error for NoProvisioner {}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(text: &str) -> Result<Driver, NoProvisioner> {
        text.parse()
    }

    #[test]
    fn a_provisioner_has_its_drivers_name_and_perhaps_one_that_a_csidriver_can_have() {
        let ours: ServedDrivers = ["example.com/disk=disk.example.com", "example.com/net"]
            .map(|text| driver(text).unwrap())
            .into_iter()
            .collect();
        for (provisioner, meant) in [
            ("example.com/disk", Some("example.com/disk")),
            ("disk.example.com", Some("example.com/disk")),
            ("example.com/net", Some("example.com/net")),
            ("net.example.com", None),
            ("", None),
        ] {
            assert_eq!(ours.driver_of(provisioner), meant, "{provisioner}");
            let scheduled = meant.filter(|_| !provisioner.contains('/'));
            assert_eq!(ours.scheduled(provisioner), scheduled, "{provisioner}");
        }
        assert!(ours.has("example.com/disk") && !ours.has("disk.example.com"));
        assert!(ours.any_scheduled() && ours.only("example.com/disk").any_scheduled());
        let plain = ours.only("example.com/net");
        assert_eq!(plain, ServedDrivers::from(["example.com/net"]));
        assert!(!plain.any_scheduled());
    }

    #[test]
    fn a_name_that_means_two_drivers_is_refused() {
        let of = |all: &[&str]| {
            let all: Vec<_> = all.iter().map(|text| driver(text).unwrap()).collect();
            ServedDrivers::of(&all).map_err(|error| error.to_string())
        };
        assert!(of(&["a/b=x", "c/d=y", "e/f"]).is_ok());
        for twice in [&["a/b=x", "c/d=x"], &["a/b", "a/b=x"]] {
            let refused = of(twice).unwrap_err();
            assert!(refused.contains("is named twice"), "{refused}");
        }
    }

    #[test]
    fn a_name_that_no_csidriver_can_have_is_refused() {
        let long = "n".repeat(MAX_LENGTH + 1);
        for name in ["", "a/b", "Disk", "-disk", &long] {
            let refused = driver(&format!("a/b={name}")).unwrap_err().to_string();
            assert!(refused.contains(&format!("{name:?}")), "{refused}");
        }
    }
}
