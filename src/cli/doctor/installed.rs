//! Checks of installed drivers.

use super::Subject;
use crate::{
    check::Check,
    config::{Config, Mistake, is_lost, is_lost_of},
    installed::Installed,
    plugin::{DriverName, init_of},
    processes::{Component, processes},
};
use flexvol_storage::sdk::DriverStatus;
use std::{fs, io, path::Path};

/// Reports that no driver is installed.
pub fn none(name: Option<&DriverName>) -> Check {
    let (about, wanted) = match name {
        Some(name) => (format!("driver {name}"), name.to_string()),
        None => ("driver".to_owned(), "VENDOR/DRIVER".to_owned()),
    };
    Check::fail(
        about,
        "flexvol has not installed it here",
        format!("flexvol install --driver {wanted}"),
    )
}

pub fn checks(subject: &Subject) -> Vec<Check> {
    let Some(name) = &subject.name else {
        return Vec::new();
    };
    let mut checks = vec![
        answers(name, &subject.installed),
        configuration(name, &subject.installed),
    ];
    if let Some(config) = &subject.config {
        checks.extend(controller(name, &subject.installed, config));
    }
    checks
}

/// Checks that `init` still answers what was recorded at installation.
fn answers(name: &DriverName, installed: &Installed) -> Check {
    let about = format!("driver {name}");
    let again = format!("flexvol install --driver {name}");
    let path = installed.executable();
    let line = fs::read_to_string(installed.init_line()).unwrap_or_default();
    match init_of(&path) {
        Err(error) => Check::fail(about, crate::cli::report(&error), again),
        Ok(answer) if answer != line => Check::fail(
            about,
            format!(
                "init answers {}, and {} was installed",
                answer.trim_end(),
                line.trim_end()
            ),
            again,
        ),
        Ok(_) => match is_this_executable(&path) {
            Ok(true) => Check::ok(about, path.display().to_string()),
            Ok(false) => Check::warn(
                about,
                format!("{} is another version than this one", path.display()),
                again,
            ),
            Err(error) => Check::warn(about, format!("compare {}: {error}", path.display()), again),
        },
    }
}

fn is_this_executable(path: &Path) -> io::Result<bool> {
    let this = Path::new("/proc/self/exe");
    let same_length = fs::metadata(path)?.len() == fs::metadata(this)?.len();
    Ok(same_length && fs::read(path)? == fs::read(this)?)
}

/// Checks that the configuration is valid and matches what kubelet was told.
fn configuration(name: &DriverName, installed: &Installed) -> Check {
    let about = format!("configuration of {name}");
    let path = installed.configuration();
    let shown = path.display();
    let text = match fs::read_to_string(&path) {
        Ok(text) if is_lost(&text) => {
            return no_configuration(name, installed, &format!("{shown} says nothing"));
        }
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return no_configuration(name, installed, &format!("there is no {shown}"));
        }
        Err(error) => {
            return Check::fail(
                about,
                format!("read {shown}: {error}"),
                format!("see to {shown}"),
            );
        }
    };
    let line = fs::read_to_string(installed.init_line()).unwrap_or_default();
    match init_line(&text, name) {
        Err(mistake) => Check::fail(
            about,
            format!("{shown}: {mistake}"),
            format!("mend it; flexvol config --name {name} tells whether it is right"),
        ),
        Ok(says) if says != line => Check::warn(
            about,
            format!("{shown} says something else than kubelet was told"),
            format!(
                "flexvol install --driver {name}; flexvol config --name {name} tells the difference"
            ),
        ),
        Ok(_) => Check::ok(about, shown.to_string()),
    }
}

/// Checks a missing configuration. That is fine, unless the driver was installed with one, which is lost then.
fn no_configuration(name: &DriverName, installed: &Installed, found: &str) -> Check {
    let about = format!("configuration of {name}");
    let line = fs::read_to_string(installed.init_line()).unwrap_or_default();
    let lost = |why: &str| {
        Check::fail(
            about.clone(),
            format!("{found}, and {why}"),
            format!("flexvol install --driver {name} --config FILE, with the configuration it had"),
        )
    };
    match init_line("", name) {
        Err(mistake) => lost(&mistake.what),
        Ok(says) if says != line && !line.is_empty() => {
            lost("the defaults say something else than kubelet was told")
        }
        Ok(_) if is_lost_of(installed) => lost(
            "so nobody knows how long deleted volumes are kept, and none is deleted; otherwise the defaults are in force",
        ),
        Ok(_) => Check::ok(about, "none: the defaults are in force"),
    }
}

fn init_line(text: &str, name: &DriverName) -> Result<String, Mistake> {
    let config = Config::parse(text, name.driver())?;
    Ok(DriverStatus::initialized((config.backend.capabilities)(config.attach)).to_line())
}

/// Checks the controller manager. If it does not find a driver with attach, pods wait for ever.
fn controller(name: &DriverName, installed: &Installed, config: &Config) -> Vec<Check> {
    if !config.attach {
        return Vec::new();
    }
    let line = fs::read_to_string(installed.init_line()).unwrap_or_default();
    processes()
        .into_iter()
        .filter(|process| process.component == Component::ControllerManager)
        .map(|process| {
            let about = format!("{name} for kube-controller-manager");
            let theirs = process.plugin_dir.join(name.directory()).join(name.driver());
            let copy = Installed::at(&theirs);
            let remedy = format!(
                "mount {} into its container, and install the driver there on every control plane host",
                process.plugin_dir.display()
            );
            match process.read(&copy.init_line()) {
                Ok(told) if told == line.as_bytes() => Check::ok(about, theirs.display().to_string()),
                Ok(_) => Check::fail(
                    about,
                    format!("{} answers init in another way than the one here", theirs.display()),
                    remedy,
                ),
                Err(error) => Check::fail(
                    about,
                    format!("not found as {}: {error}", theirs.display()),
                    remedy,
                ),
            }
        })
        .collect()
}
