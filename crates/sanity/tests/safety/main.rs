//! Runs the tester as root beside foreign data. Whatever the tester makes must be removed, however it is
//! ended, and everything else must stay unchanged.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod devices;
mod existing;
mod interrupted;
mod reports;
mod stages;
mod vendor;

use flexvol_testing::{Case, Need, run_cases};
use std::process::ExitCode;

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("losetup", "mount"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("nsenter", "util-linux"),
];

type Verdict = Result<(), String>;

fn case(name: &str, run: fn() -> Verdict) -> Case {
    Case {
        name: name.to_owned(),
        needs: NEEDS,
        run: Box::new(move |_| run()),
    }
}

fn main() -> ExitCode {
    let cases = vec![
        case(
            "a run that is interrupted undoes what it made",
            interrupted::by_a_signal,
        ),
        case(
            "a run that is interrupted reports what it found so far",
            interrupted::reported,
        ),
        case(
            "what a run made that was killed with its guard is undone by the next",
            interrupted::killed,
        ),
        case(
            "what is kept can be looked at, until it is undone",
            interrupted::kept,
        ),
        case(
            "what a driver leaves is removed and reported",
            interrupted::left_behind,
        ),
        case(
            "in an existing volume no link is followed and nothing is overwritten",
            existing::untouched,
        ),
        case(
            "what was written into an existing volume goes, or is not forgotten",
            existing::interrupted,
        ),
        case(
            "what one check could not remove from it the next one does not forget",
            existing::not_forgotten,
        ),
        case(
            "the temporary directory may be a link, or relative",
            existing::temporary,
        ),
        case(
            "what a driver of three stages does wrong for the node is found",
            stages::of_the_node,
        ),
        case(
            "an option of the driver's does not lead the tester to other files",
            existing::content,
        ),
        case(
            "somebody's device that a driver names by mistake is not formatted",
            devices::wrongly_named,
        ),
        case(
            "somebody's loop device on a file that options name stays",
            devices::named_by_options,
        ),
        case(
            "a driver that is led out of its place finds a machine that can only be read",
            existing::shielded,
        ),
        case(
            "what every init leaves in a temporary place is seen",
            existing::first_init,
        ),
        case("a secret is in no report", existing::secrets),
        case(
            "every failure has its command, answer, seconds and what changed, in every format",
            reports::evidence,
        ),
    ];
    run_cases("safety", cases, 3)
}
