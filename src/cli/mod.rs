//! Verbs for users: text on standard output, errors on standard error, the usual exit codes.

/// The end of a verb's long help: examples, and exit codes.
macro_rules! examples {
    ($($line:literal),+ $(,)?) => {
        concat!("Examples:\n", $("  ", $line, "\n",)+ "\nExit status: 0 done, 1 failed, 2 wrong usage")
    };
}

mod adopt;
mod call;
mod config;
mod create;
mod doctor;
mod driver_options;
mod explain;
mod gc;
mod install;
mod installed_driver;
mod list;
mod manifest;
mod output;
mod pool;
mod show;
mod suggest;
mod table;
mod terminal;
mod undelete;
mod uninstall;
mod volume;
mod yaml;

use crate::installed::Installed;
use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use flexvol_storage::host::worker;
use std::{
    ffi::OsStr,
    fmt,
    io::{self, Write},
    process::ExitCode,
};

pub use suggest::suggest;

/// Node-local FlexVolume driver with online volume expansion
///
/// Kubelet executes it with a callout as the first word (init, mount, expandfs …) and reads one
/// line of JSON. The verbs below are for people.
#[derive(Debug, Parser)]
#[command(
    name = "flexvol",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    after_long_help = "Files: PLUGINS/VENDOR~DRIVER/.DRIVER.toml, the driver's configuration\n\nExit status: 0 done, 1 failed, 2 wrong usage"
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Install(install::Install),
    Uninstall(uninstall::Uninstall),
    Config(config::Show),
    Doctor(doctor::Doctor),
    /// Manage pools
    #[command(subcommand)]
    Pool(pool::Verb),
    Create(create::Create),
    Adopt(adopt::Adopt),
    List(list::List),
    Show(show::Show),
    Explain(explain::Explain),
    Undelete(undelete::Undelete),
    Gc(gc::Gc),
    Call(call::Call),
}

/// The words that select a verb instead of a callout: every subcommand of [`Verb`].
const VERBS: &[&str] = &[
    "adopt",
    "call",
    "config",
    "create",
    "doctor",
    "explain",
    "gc",
    "install",
    "list",
    "pool",
    "show",
    "undelete",
    "uninstall",
];

/// Whether the first argument is a verb or an option for users.
pub fn is_verb(word: &OsStr) -> bool {
    word.to_str()
        .is_some_and(|word| word.starts_with('-') || VERBS.contains(&word))
}

/// Runs a verb.
pub fn run(here: &Installed) -> ExitCode {
    flexvol_storage::sdk::survive_file_size_limit();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and version go to standard output, usage errors to standard error.
            let code = u8::try_from(usage.exit_code()).unwrap_or(2);
            return usage.print().map_or(ExitCode::FAILURE, |()| code.into());
        }
    };
    terminal::is_output();
    let code = match cli.verb.looks_into_pools() {
        true => worker::run(|| outcome(cli.verb.run(here))),
        false => Ok(outcome(cli.verb.run(here))),
    };
    ExitCode::from(code.unwrap_or_else(|stuck| outcome(Err(stuck.into()))))
}

/// Returns the exit code of a verb, after its error is printed.
fn outcome(result: Result<u8>) -> u8 {
    result.unwrap_or_else(|error| {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(
            io::stderr(),
            "flexvol: {}",
            terminal::lines(&report(&error))
        );
        1
    })
}

impl Verb {
    /// Whether the verb works at pools, one of which may get silent meanwhile.
    fn looks_into_pools(&self) -> bool {
        match self {
            Verb::Adopt(_)
            | Verb::Create(_)
            | Verb::Doctor(_)
            | Verb::Explain(_)
            | Verb::Gc(_)
            | Verb::List(_)
            | Verb::Show(_)
            | Verb::Undelete(_) => true,
            // A callout is watched as kubelet's are, and `pool init` has one pool.
            Verb::Call(_)
            | Verb::Config(_)
            | Verb::Install(_)
            | Verb::Pool(_)
            | Verb::Uninstall(_) => false,
        }
    }

    fn run(self, here: &Installed) -> Result<u8> {
        match self {
            // The exit code of `call` is the driver's.
            Verb::Call(verb) => return verb.run(here),
            Verb::Config(verb) => verb.run(here),
            Verb::Doctor(verb) => verb.run(here),
            Verb::Install(verb) => verb.run(),
            Verb::Uninstall(verb) => verb.run(),
            Verb::Adopt(verb) => verb.run(here),
            Verb::Create(verb) => verb.run(here),
            Verb::Explain(verb) => verb.run(here),
            Verb::Gc(verb) => verb.run(here),
            Verb::List(verb) => verb.run(here),
            Verb::Pool(verb) => verb.run(),
            Verb::Show(verb) => verb.run(here),
            Verb::Undelete(verb) => verb.run(here),
        }?;
        Ok(0)
    }
}

/// Formats the whole chain on one line. A cause that is already quoted is not repeated.
fn report(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

/// Fails unless run by root. Kubelet runs installed files as root, so only root may write them.
fn need_root(to: &str) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "only root can {to}; try again with sudo"
    );
    Ok(())
}

/// Writes a line, or several, to standard output.
fn print(text: fmt::Arguments<'_>) -> Result<()> {
    print_bytes(format!("{}\n", terminal::lines(&text.to_string())).as_bytes())
}

/// Writes to standard output; a closed pipe is no error.
fn print_bytes(bytes: &[u8]) -> Result<()> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};
    use clap_complete::Shell;
    use std::{collections::BTreeSet, env, fs, path::PathBuf, process::Command};

    #[test]
    fn every_verb_is_known_before_clap_is() {
        let command = Cli::command();
        let verbs: BTreeSet<_> = command
            .get_subcommands()
            .map(|verb| verb.get_name())
            .collect();
        assert_eq!(verbs, VERBS.iter().copied().collect());
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// With `FLEXVOL_PAGES=DIR` the pages are left there, for packaging.
    #[test]
    fn every_verb_has_a_page_of_the_manual_and_every_shell_completes_it() {
        let scratch = tempfile::tempdir().unwrap();
        let pages =
            env::var_os("FLEXVOL_PAGES").map_or_else(|| scratch.path().to_owned(), PathBuf::from);
        clap_mangen::generate_to(Cli::command(), &pages).unwrap();
        for shell in Shell::value_variants() {
            clap_complete::generate_to(*shell, &mut Cli::command(), "flexvol", &pages).unwrap();
        }
        let read = |name: &str| fs::read_to_string(pages.join(name)).unwrap();
        assert!(read("flexvol.1").contains(".TH flexvol 1"));
        let mut bash = Command::new("bash");
        let checked = bash.arg("-n").arg(pages.join("flexvol.bash")).status();
        assert!(checked.unwrap().success());
        let shells = ["flexvol.bash", "_flexvol", "flexvol.fish"].map(read);
        for verb in VERBS {
            let page = read(&format!("flexvol-{verb}.1"));
            assert!(page.contains(&format!(".TH flexvol-{verb} 1")), "{page}");
            assert!(shells.iter().all(|shell| shell.contains(verb)), "{verb}");
        }
    }
}
