//! `flexvol completions`: what a shell completes.

use super::{Cli, print_bytes};
use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a shell's completions
///
/// For bash: flexvol completions bash > /etc/bash_completion.d/flexvol
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<()> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "flexvol", &mut text);
        print_bytes(&text)
    }
}
