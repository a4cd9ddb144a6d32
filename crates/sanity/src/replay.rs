//! Calls that a real Kubernetes made, made again: one JSON object a line, with `argv` and `reply`, as
//! `flexvol call --record` writes them. Volumes are those of the run, with its options, file system and
//! secrets, and directories are the tester's; the rest is as it was recorded.

use crate::{
    bench::Bench,
    call::{Call, Outcome},
    check::Stop,
    json::{self, Options},
    volume::Volume,
    world,
};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

#[derive(Debug, Deserialize)]
struct Recorded {
    argv: Vec<String>,
    reply: Value,
    #[serde(default)]
    driver: String,
}

/// Which calls of a recording are made, and what came of it.
#[derive(Debug, Default)]
pub struct Replayed {
    pub made: usize,
    /// Calls that were answered otherwise than then.
    pub different: Vec<(Call, String)>,
}

/// What stands for a volume of the recording.
struct Own {
    volume: Volume,
    /// What the driver named last.
    device: String,
}

/// Makes the calls of a file again, but for those of other drivers than `only`.
pub fn replay(bench: &Bench, file: &Path, only: Option<&str>) -> Result<Replayed, Stop> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let calls: Vec<Recorded> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .with_context(|| format!("understand {}", file.display()))?;
    let calls: Vec<_> = calls
        .iter()
        .filter(|call| only.is_none_or(|only| call.driver == only))
        .collect();
    let mut volumes = BTreeMap::<String, Own>::new();
    let mut replayed = Replayed::default();
    for recorded in &calls {
        let callout = recorded.argv.first().map_or("", String::as_str);
        if !bench.run.supports(callout) {
            continue;
        }
        let name = named(&recorded.argv);
        if let Some(name) = name.as_ref().filter(|name| !volumes.contains_key(*name)) {
            let bytes = first_size(&calls, name).unwrap_or(bench.run.bytes);
            let (volume, device) = (bench.volume_of(bytes)?, String::new());
            volumes.insert(name.clone(), Own { volume, device });
        }
        let own = name.and_then(|name| Some((name.clone(), volumes.get_mut(&name)?)));
        let known = own.as_ref().map(|(name, own)| (name.as_str(), &**own));
        let argv = translated(bench, &recorded.argv, known)?;
        if matches!(callout, "mount" | "mountdevice") && argv.len() > 1 {
            world::make_directory(Path::new(&argv[1])).context("make kubelet's directory")?;
        }
        let call = bench.call(&argv)?;
        replayed.made += 1;
        let then = recorded.reply["status"].as_str().unwrap_or_default();
        let now = match call.outcome() {
            Outcome::Success(reply) => {
                if let (Some(device), Some((_, own))) = (reply.device, own) {
                    own.device = device;
                }
                "Success"
            }
            Outcome::NotSupported => "Not supported",
            Outcome::Failure(_) => "Failure",
            Outcome::Broken(_) => "no reply",
        };
        if matches!(callout, "unmount" | "unmountdevice") && now == "Success" && argv.len() > 1 {
            // As kubelet does; a directory that is not empty stays.
            let _ = fs::remove_dir(&argv[1]);
        }
        // Another driver may do more or less than that one did, but not break.
        if now == "no reply" || then == "Success" && now == "Failure" {
            replayed.different.push((call, then.to_owned()));
        }
    }
    Ok(replayed)
}

/// The name of the volume that a call is about.
fn named(argv: &[String]) -> Option<String> {
    match argv.iter().find_map(|word| members(word)) {
        Some(members) => members.get(json::NAME).cloned(),
        None if argv.first().is_some_and(|callout| callout == "detach") => argv.get(1).cloned(),
        None => None,
    }
}

/// The recorded arguments with our directories, and what stands for their volume.
fn translated(
    bench: &Bench,
    recorded: &[String],
    own: Option<(&str, &Own)>,
) -> Result<Vec<String>, Stop> {
    let mut argv = recorded.to_vec();
    let callout = recorded.first().map(String::as_str);
    for word in argv.iter_mut().skip(1) {
        if let (Some(mut members), Some((_, Own { volume, .. }))) = (members(word), own) {
            members
                .retain(|key, _| key.contains("kubernetes.io/") && !key.starts_with(json::SECRET));
            members.extend(volume.options.clone());
            members.insert(json::NAME.to_owned(), volume.name.clone());
            if !bench.run.config.fs_type.is_empty() {
                members.insert(json::FS_TYPE.to_owned(), bench.run.config.fs_type.clone());
            }
            if callout == Some("mount") {
                members.extend(bench.run.secrets());
            }
            *word = json::object(&members);
        } else if let Some((name, own)) = own
            && *word == name
        {
            word.clone_from(&own.volume.name);
        }
        if word.starts_with("/dev/") {
            // A device that was there is none of ours.
            *word = own.map_or_else(String::new, |(_, own)| own.device.clone());
        } else if word.starts_with('/') {
            *word = ours(bench, word)?;
        }
    }
    Ok(argv)
}

/// A path of the recording below our own root directory.
fn ours(bench: &Bench, word: &str) -> Result<String, Stop> {
    let part = ["/pods/", "/plugins/kubernetes.io/"]
        .into_iter()
        .find_map(|part| word.find(part));
    match part {
        Some(at) if !word.split('/').any(|name| name == "..") => {
            Ok(format!("{}{}", bench.root().display(), &word[at..]))
        }
        _ => {
            let why = format!("{word:?} of the recording leads out of kubelet's root directory");
            Err(Stop::Error(anyhow::anyhow!(why)))
        }
    }
}

fn members(word: &str) -> Option<Options> {
    serde_json::from_str(word).ok()
}

/// The size that a volume had before it first grew.
fn first_size(all: &[&Recorded], name: &str) -> Option<u64> {
    let is_growth = |call: &&&Recorded| {
        let told = call.argv.get(1).and_then(|word| members(word));
        let same = told.is_some_and(|told| told.get(json::NAME).is_some_and(|other| other == name));
        same && call.argv[0] == "expandfs"
    };
    let grown = all.iter().filter(is_growth);
    grown
        .filter_map(|call| call.argv.get(5)?.parse().ok())
        .min()
}
