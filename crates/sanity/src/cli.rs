//! The command line.

use crate::{
    callout::argument,
    check::{Check, Level},
    checks,
    config::{self, Config},
    discover, guard,
    journal::{self, Journal, record::Header},
    report::{self, Format, Report, print},
    run::Run,
    runner::{self, Progress},
    system::block_devices,
    volume::Source,
};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// Runs any FlexVolume driver as Kubernetes does, and says what breaks
#[derive(Debug, Parser)]
#[command(name = "flexvol-sanity", version)]
enum Sanity {
    /// Test a driver
    ///
    /// Exit status: 0 all passed, 1 something failed, 3 nothing failed but checks were left out,
    /// 2 it could not be tested.
    Run {
        #[command(flatten)]
        settings: Box<Settings>,
        #[command(flatten)]
        filter: CheckFilter,
        #[command(flatten)]
        report_args: ReportArgs,
    },
    /// List the checks, with their level and what they need
    List {
        #[command(flatten)]
        filter: CheckFilter,
    },
    /// Say what a check looks at, why, who broke it and how a driver is mended
    Explain {
        /// Its name, or part of it
        check: String,
    },
}

#[derive(Args, Debug)]
struct CheckFilter {
    /// Only checks whose name contains one of these
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    filter: Vec<String>,
    /// No check whose name contains one of these
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    skip: Vec<String>,
    /// The least level
    #[arg(long, value_enum, default_value_t = Least::All)]
    level: Least,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Least {
    Must,
    Should,
    All,
}

impl CheckFilter {
    fn checks(&self) -> Result<Vec<&'static Check>> {
        let level = match self.level {
            Least::Must => Level::Must,
            Least::Should => Level::Should,
            Least::All => Level::Warn,
        };
        let named = |check: &Check, parts: &[String]| {
            parts.iter().any(|part| check.name.contains(part.as_str()))
        };
        let chosen: Vec<_> = checks::all()
            .filter(|check| check.level <= level)
            .filter(|check| self.filter.is_empty() || named(check, &self.filter))
            .filter(|check| !named(check, &self.skip))
            .collect();
        ensure!(
            !chosen.is_empty(),
            "no check has such a name; see flexvol-sanity list"
        );
        Ok(chosen)
    }
}

#[derive(Args, Debug)]
struct Settings {
    /// The driver's executable, where it is installed
    #[arg(long, value_name = "PATH")]
    driver: Option<PathBuf>,
    /// Its name, vendor/driver; else that of its directory
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Options of an existing volume: JSON, or a file with it
    #[arg(long, value_name = "FILE|JSON")]
    options: Option<String>,
    /// What the volume's secret has: JSON, or a file with it
    #[arg(long, value_name = "FILE|JSON")]
    secrets: Option<String>,
    /// The size of new volumes
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Settings, and commands that make and remove volumes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keep what checks leave, for a look, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Where it is written down what was made, so that an interrupted run can be undone; else
    /// /var/lib/flexvol-sanity, or a directory in /tmp for who is not root
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Stay among the machine's mounts, for drivers whose daemon mounts
    #[arg(long)]
    share_mounts: bool,
}

/// How checks are run, and what is told of them.
#[derive(Args, Clone, Debug)]
struct ReportArgs {
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    /// Also write a report in plain language, to be pasted into an issue
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How many checks at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
}

impl ReportArgs {
    /// Prints the report, and writes the one in plain language.
    fn write(&self, report: &Report) -> Result<ExitCode> {
        print(&report.text(self.format))?;
        if let Some(path) = &self.report {
            fs::write(path, report.markdown())
                .with_context(|| format!("write {}", path.display()))?;
        }
        Ok(ExitCode::from(report.exit()))
    }
}

pub fn run() -> Result<ExitCode> {
    match Sanity::parse() {
        Sanity::Run {
            settings,
            filter,
            report_args,
        } => {
            let is_shown = report_args.format == Format::Pretty;
            let progress = Progress::new(filter.checks()?, is_shown);
            test(&settings, Arc::new(progress), report_args)
        }
        Sanity::List { filter } => {
            let mut lines = String::new();
            for check in filter.checks()? {
                let needs = check.needs_in_words();
                lines += &format!("{:32} {:6} needs {needs}\n", check.name, check.level);
            }
            print(&lines)?;
            Ok(ExitCode::SUCCESS)
        }
        Sanity::Explain { check } => {
            let exact = checks::all()
                .filter(|known| known.name == check)
                .collect::<Vec<_>>();
            let found = if exact.is_empty() {
                checks::all()
                    .filter(|known| known.name.contains(&check))
                    .collect()
            } else {
                exact
            };
            ensure!(
                !found.is_empty(),
                "no check is named {check:?}; see flexvol-sanity list"
            );
            for check in found {
                print(&report::explained(check))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs the checks. This happens in a second process with directories of its own; its guard undoes afterwards what
/// was made.
fn test(settings: &Settings, progress: Arc<Progress>, args: ReportArgs) -> Result<ExitCode> {
    let mut config = match &settings.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    if let Some(text) = &settings.options {
        config.options = config::options(text)?;
    }
    if let Some(text) = &settings.secrets {
        config.secrets = config::secrets(text)?;
    }
    let Some(journal) = guard::worker()? else {
        let journals = journal::directory(settings.journal.as_deref())?;
        let executable = executable(settings, &config)?;
        guard::undo_abandoned(&executable, &config, &journals)?;
        let secrets = config.secrets.clone();
        let header = header(settings, config, executable)?;
        return guard::watch(&header, &secrets, &journals, settings.keep);
    };
    let header = journal::read(&journal)?.header;
    let mut run = Run::new(&header, config.secrets, Some(Journal::open(&journal)?));
    let empty = Report::new(&run);
    let jobs = args.jobs;
    let conclude = {
        let progress = Arc::clone(&progress);
        move || match progress.report() {
            Some(finished) => args.write(&Report { finished, ..empty }),
            // The other thread reports, and ends the process.
            None => loop {
                thread::park();
            },
        }
    };
    let interrupted = conclude.clone();
    guard::when_interrupted(move || {
        if let Err(error) = interrupted() {
            guard::say(&format!("flexvol-sanity: {error:#}"));
        }
    });
    discover::discover(&mut run)?;
    runner::run(&run, &progress, jobs_of(jobs, &run.source), settings.keep);
    conclude()
}

/// How many checks run at a time: an existing volume can be used by only one.
fn jobs_of(given: usize, source: &Source) -> usize {
    match source {
        Source::Existing => 1,
        _ => given.max(1),
    }
}

/// The path of the driver. Links are not resolved, because a driver may depend on the name it is called by.
fn executable(settings: &Settings, config: &Config) -> Result<PathBuf> {
    let driver = settings.driver.as_ref().or(config.driver.as_ref());
    let driver = driver.context("which driver? give --driver PATH")?;
    std::path::absolute(driver).context("find the driver")
}

/// Validates the settings and returns the run's header.
fn header(settings: &Settings, config: Config, executable: PathBuf) -> Result<Header> {
    ensure!(
        executable.is_file(),
        "there is no driver at {}",
        executable.display()
    );
    let name = settings.name.clone().or(config.name.clone());
    let size = settings.size.as_ref().or(config.size.as_ref());
    let tag = tag();
    // The kernel shows the resolved path in the mount table.
    let temporary = fs::canonicalize(env::temp_dir()).context("find the temporary directory")?;
    Ok(Header {
        name: driver_name(name, &executable)?,
        executable,
        bytes: config::bytes(size.map_or("320Mi", String::as_str))?,
        scratch: temporary.join(format!("flexvol-sanity-{tag}")),
        tag,
        shared: settings.share_mounts,
        loops: block_devices::loops()?,
        config: Config {
            secrets: argument::Options::new(),
            ..config
        },
    })
}

/// Returns vendor and driver. Drivers are installed as `vendor~driver/driver`.
fn driver_name(given: Option<String>, executable: &Path) -> Result<(String, String)> {
    let directory = executable.parent().and_then(Path::file_name);
    let installed = directory.and_then(|name| name.to_str()?.split_once('~'));
    let file = executable
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    match given {
        Some(name) => match name.split_once('/') {
            Some((vendor, driver)) => Ok((vendor.to_owned(), driver.to_owned())),
            None => bail!("name {name:?} is not vendor/driver"),
        },
        None => Ok(match installed {
            Some((vendor, driver)) => (vendor.to_owned(), driver.to_owned()),
            None => (
                "example.com".to_owned(),
                file.context("the driver has no name")?,
            ),
        }),
    }
}

/// Eight digits that are unique to a run.
fn tag() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mixed = now.as_nanos() ^ u128::from(std::process::id()) << 40;
    format!("{:08x}", (mixed ^ mixed >> 32) & 0xffff_ffff)
}
