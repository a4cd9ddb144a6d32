//! `flexvol explain`: why a volume did not grow or is not mounted.

use super::{driver_options::DriverOptions, output::Output, print, show, table::table, volume};
use crate::{
    config::Keep,
    installed::Installed,
    size::{requested, size},
};
use anyhow::{Context, Result};
use clap::Args;
use flexvol_storage::{
    Ending, Explanation, Forecast, Subject,
    decide::Step,
    host::{kernel, lock::Holder},
    mark::State,
    observed::TargetState,
    sdk::{Bytes, Error, ErrorKind, Filesystem},
};
use serde_json::{Value, json};

/// Explain why a volume does not mount or grow
///
/// Looks at the volume without waiting for it and without changing anything, and tells what the
/// driver would do if it were asked now to mount it and to grow it. Only a thin pool with overcommit
/// that is not active is activated for a moment, to ask how full it is.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol explain data",
    "flexvol explain data --size 20Gi",
))]
pub struct Explain {
    /// A handle, the name of a persistent volume, or a directory the volume is, or should be,
    /// mounted on
    #[arg(value_name = "HANDLE|NAME|DIR")]
    volume: String,
    /// The size it should grow to, such as 10Gi [default: the size that was asked for last]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = requested)]
    size: Option<Bytes>,
    /// table, wide, json, yaml (sizes in bytes) or name
    #[arg(
        long,
        short,
        value_enum,
        default_value = "table",
        hide_possible_values = true
    )]
    output: Output,
    #[command(flatten)]
    driver_options: DriverOptions,
}

impl Explain {
    pub fn run(self, here: &Installed) -> Result<()> {
        let driver = self.driver_options.choose(here)?.maintenance();
        let subject = Subject::parse(&self.volume)?;
        let explanation = driver
            .explain(&subject, self.size)
            .with_context(|| format!("look at volume {:?}", self.volume))?;
        let advice = advice(&explanation);
        if self.output.structured(&as_json(&explanation, &advice))? {
            return Ok(());
        }
        match self.output {
            Output::Name => print(format_args!("{}", volume::reference(&explanation.volume))),
            _ => print_text(&explanation, &advice),
        }
    }
}

fn print_text(explanation: &Explanation, advice: &[String]) -> Result<()> {
    let mut facts = show::facts(&explanation.volume);
    let mut fact = |name: &str, value: String| facts.push(vec![format!("{name}:"), value]);
    fact(
        "Lock",
        match explanation.locked_by {
            None => "free".to_owned(),
            Some(Holder::Process(pid)) => format!("taken by process {pid}"),
            Some(Holder::Unknown) => "taken by an unknown process".to_owned(),
        },
    );
    fact(
        "Pool has",
        match &explanation.available {
            Ok(bytes) => format!("{} to give", size(*bytes)),
            Err(error) => error.report(),
        },
    );
    if let Some(target) = explanation.target {
        fact("Directory", target_text(target).to_owned());
    }
    table(&[], &facts)?;
    let is_directory = explanation.volume.is_directory;
    print_forecast("To mount it", &explanation.mount, is_directory)?;
    let to = size(explanation.grow_to);
    print_forecast(
        &format!("To grow it to {to}"),
        &explanation.grow,
        is_directory,
    )?;
    if !advice.is_empty() {
        print(format_args!("\nAdvice:"))?;
    }
    for line in advice {
        print(format_args!("  - {line}"))?;
    }
    Ok(())
}

fn print_forecast(heading: &str, forecast: &Forecast, is_directory: bool) -> Result<()> {
    print(format_args!("\n{heading}:"))?;
    for (number, step) in (1..).zip(&forecast.steps) {
        print(format_args!(
            "  {number}. {}",
            step_text(step, is_directory)
        ))?;
    }
    match (&forecast.end, forecast.steps.is_empty()) {
        (Ending::Reached, true) => print(format_args!("  nothing is left to do")),
        (Ending::Reached, false) => Ok(()),
        (Ending::Refused(_, why), true) => print(format_args!("  refused: {why}")),
        (Ending::Refused(_, why), false) => print(format_args!("  then refused: {why}")),
        (Ending::Open, _) => print(format_args!(
            "  what comes then depends on what the device holds"
        )),
    }
}

fn step_text(step: &Step, is_directory: bool) -> String {
    match step {
        Step::GrowStorage { to } if is_directory => format!("raise its limit to {}", size(*to)),
        Step::GrowFilesystem if is_directory => "record that it has grown".to_owned(),
        Step::Create { size: bytes } => format!("allocate {}", size(*bytes)),
        Step::Mark(mark) => match mark.growing {
            Some(to) => format!("record that it grows to {}", size(to)),
            None => "record its state".to_owned(),
        },
        Step::Map => "attach its storage as a block device, all of it".to_owned(),
        Step::Unmap => "let its block device go".to_owned(),
        Step::Format(filesystem) => format!("make {filesystem} on it, if it proves blank"),
        Step::GrowStorage { to } => format!("grow its storage to {}", size(*to)),
        Step::GrowFilesystem => "grow its file system to its device".to_owned(),
        Step::Mount { read_only: true } => "mount it read-only".to_owned(),
        Step::Mount { read_only: false } => "mount it".to_owned(),
        Step::SetReadOnly(true) => "make the mount read-only".to_owned(),
        Step::SetReadOnly(false) => "make the mount writable".to_owned(),
        Step::Unmount => "unmount it".to_owned(),
        Step::Destroy => "remove its storage".to_owned(),
    }
}

fn target_text(target: TargetState) -> &'static str {
    match target {
        TargetState::Absent => "is not there",
        TargetState::Free | TargetState::Duplicate => "is empty, and nothing is mounted on it",
        TargetState::NotEmpty => "is not empty, and nothing is mounted on it",
        TargetState::Ours { read_only: true } => "has this volume, read-only",
        TargetState::Ours { read_only: false } => "has this volume",
        TargetState::HalfMade => "has this volume in a mount that was cut short",
        TargetState::Other => "has something else mounted on it",
    }
}

/// Suggests what to do about the findings.
fn advice(explanation: &Explanation) -> Vec<String> {
    let volume = &explanation.volume;
    let mark = volume.mark();
    let mut advice = Vec::new();
    if let Some(holder) = explanation.locked_by {
        let holder = match holder {
            Holder::Process(pid) => format!("process {pid}"),
            Holder::Unknown => "an unknown process".to_owned(),
        };
        advice.push(format!(
            "{holder}, or a program it left behind, is at work on the volume; callouts wait for it, see the node's log"
        ));
    }
    if mark.is_some_and(|mark| mark.state == State::Deleting) {
        advice.push("its removal was begun; deleting it again completes that".to_owned());
    } else if let Some(deletion) = volume::deletion(volume) {
        let keep = deletion
            .keep
            .map_or("a time".to_owned(), |keep| Keep::from(keep).to_string());
        let counted = deletion.kept.map(|kept| kept.time).unwrap_or_default();
        advice.push(format!(
            "it was deleted and is kept for {keep}, or longer if its pool's keep_deleted says so, of which {} are counted: `flexvol undelete {}` takes that back, and `flexvol gc` removes it after that time",
            Keep::from(counted),
            volume.handle().map_or("HANDLE".to_owned(), |it| it.to_string())
        ));
    }
    if let Some(namespace) = mark.and_then(|mark| mark.namespace.as_deref()) {
        advice.push(format!(
            "only pods in namespace {namespace} can mount it, unless its pool says namespaces = \"any\""
        ));
    }
    let is_ext = mark
        .and_then(|mark| mark.format)
        .is_some_and(|format| matches!(format.filesystem, Filesystem::Ext3 | Filesystem::Ext4));
    let is_mounted = !volume.mounts.is_empty() || !volume.elsewhere.is_empty();
    let grows = explanation.grow.steps.contains(&Step::GrowFilesystem);
    if is_ext && is_mounted && grows && !kernel::has(kernel::SYS_RESOURCE).unwrap_or(true) {
        advice.push(
            "the kernel grows a mounted ext file system only for CAP_SYS_RESOURCE, which this process lacks; if kubelet lacks it too, delete the pods that use the volume: it grows when it is mounted next"
                .to_owned(),
        );
    }
    match &explanation.grow.end {
        Ending::Refused(ErrorKind::Exhausted, _) => advice.push(
            "make room in the pool (delete volumes; enlarge its file system, its group by vgextend, or its thin pool by lvextend), or lower its `reserve`"
                .to_owned(),
        ),
        Ending::Reached if explanation.grow.steps.is_empty() => advice.push(
            "the volume has all that was asked of this driver; if its claim asks for more, that did not get here: the claim's events tell why, and its storage class must allow expansion"
                .to_owned(),
        ),
        Ending::Reached if explanation.mount.steps.contains(&Step::GrowFilesystem) => advice.push(
            "nothing stands in the way of the growth: the next mount or expandfs does it"
                .to_owned(),
        ),
        Ending::Reached => advice.push(format!(
            "nothing stands in the way of the growth: an expandfs to {} does it",
            size(explanation.grow_to)
        )),
        _ => {}
    }
    advice
}

fn as_json(explanation: &Explanation, advice: &[String]) -> Value {
    let forecast = |forecast: &Forecast| {
        let (end, why) = match &forecast.end {
            Ending::Reached => ("reached", None),
            Ending::Refused(_, why) => ("refused", Some(why)),
            Ending::Open => ("open", None),
        };
        let steps: Vec<_> = forecast.steps.iter().map(Step::name).collect();
        json!({ "steps": steps, "end": end, "why": why })
    };
    json!({
        "volume": volume::json(&explanation.volume),
        "lockedBy": explanation.locked_by.map(|holder| match holder {
            Holder::Process(pid) => json!(pid),
            Holder::Unknown => json!("unknown"),
        }),
        "available": explanation.available.as_ref().ok().map(|bytes| bytes.0),
        "availableError": explanation.available.as_ref().err().map(Error::report),
        "directory": explanation.target.map(target_text),
        "mount": forecast(&explanation.mount),
        "growTo": explanation.grow_to.0,
        "grow": forecast(&explanation.grow),
        "advice": advice,
    })
}
