//! `flexvol list`: shows the volumes of a driver.

use super::{
    driver_options::DriverOptions,
    manifest::{self, Cluster, Described},
    output::Output,
    print,
    table::table,
    volume,
};
use crate::{installed::Installed, size::size};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use flexvol_storage::{
    Inventory, VolumeId, VolumeReport,
    mark::State,
    sdk::{self, Handle},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// List the volumes of a driver
///
/// REQUESTED is the requested size (a pending expansion included), STORAGE what the volume has, DEVICE
/// what the kernel sees of it and FILESYSTEM what its file system spans; PODS counts the pods that
/// have it.
#[derive(Debug, Args)]
#[command(after_long_help = examples!(
    "flexvol list --pool default",
    "flexvol list -o pv > volumes.yaml",
))]
pub struct List {
    /// Only these volumes
    #[arg(value_name = "HANDLE", value_parser = Handle::parse)]
    handles: Vec<Handle>,
    /// Only the volumes of this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// table, wide, json, yaml (sizes in bytes), name, or pv: PersistentVolumes for a cluster that lost
    /// them
    #[arg(
        long,
        short,
        value_enum,
        default_value = "table",
        hide_possible_values = true
    )]
    output: ListOutput,
    #[command(flatten)]
    driver_options: DriverOptions,
    #[command(flatten, next_help_heading = "With --output pv")]
    cluster: Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListOutput {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    Pv,
}

/// The answer of one pool: its volumes, or why it has none to show.
type Pools = Vec<(String, sdk::Result<Volumes>)>;
type Volumes = Vec<Found>;
type Found = Result<VolumeReport, (VolumeId, sdk::Error)>;

impl List {
    pub fn run(self, here: &Installed) -> Result<()> {
        let chosen = self.driver_options.choose(here)?;
        let driver = chosen.maintenance();
        let names: Vec<String> = match &self.pool {
            Some(pool) if chosen.pools().all(|known| known != pool) => {
                let known: Vec<&str> = chosen.pools().collect();
                bail!("no pool {pool:?}; pools: {}", known.join(", "))
            }
            Some(pool) => vec![pool.clone()],
            None => chosen.pools().map(str::to_owned).collect(),
        };
        let wanted: BTreeMap<VolumeId, Handle> = self
            .handles
            .iter()
            .map(|handle| (VolumeId::of(handle), *handle))
            .collect();
        let mut missing = wanted.clone();
        let pools: Pools = names
            .into_iter()
            .map(|name| {
                let volumes = driver.volumes(&name).map(|mut volumes| {
                    volumes.retain(|found| wanted.is_empty() || wanted.contains_key(id_of(found)));
                    for found in &volumes {
                        missing.remove(id_of(found));
                    }
                    volumes
                });
                (name, volumes)
            })
            .collect();
        match self.output {
            ListOutput::Table => print_table(&pools, false)?,
            ListOutput::Wide => print_table(&pools, true)?,
            ListOutput::Json => Output::Json
                .structured(&as_json(driver.as_ref(), &pools))
                .map(drop)?,
            ListOutput::Yaml => Output::Yaml
                .structured(&as_json(driver.as_ref(), &pools))
                .map(drop)?,
            ListOutput::Name => {
                for found in pools
                    .iter()
                    .flat_map(|(_, volumes)| volumes.iter().flatten())
                {
                    let name = found
                        .as_ref()
                        .map_or_else(|(id, _)| id.to_string(), volume::reference);
                    print(format_args!("{name}"))?;
                }
            }
            ListOutput::Pv => print_persistent_volumes(&self.cluster.target(&chosen)?, &pools)?,
        }
        let failed = pools.iter().filter_map(|(name, volumes)| {
            let error = volumes.as_ref().err()?;
            Some(format!("pool {name}: {}", error.report()))
        });
        let missing = missing
            .values()
            .map(|handle| format!("no volume {handle} was found"));
        let failed: Vec<_> = failed.chain(missing).collect();
        if failed.is_empty() {
            Ok(())
        } else {
            bail!("cannot list everything: {}", failed.join("; "))
        }
    }
}

fn id_of(found: &Found) -> &VolumeId {
    match found {
        Ok(report) => &report.id,
        Err((id, _)) => id,
    }
}

fn print_table(pools: &Pools, wide: bool) -> Result<()> {
    let mut header = vec![
        "NAME",
        "NAMESPACE",
        "POOL",
        "STATE",
        "FS",
        "REQUESTED",
        "STORAGE",
        "DEVICE",
        "FILESYSTEM",
        "PODS",
        "HANDLE",
    ];
    if wide {
        header.extend(["STORED AS", "UUID", "DEVICE PATH"]);
    }
    let mut rows = Vec::new();
    let mut has_problem = false;
    for (pool, volumes) in pools {
        for found in volumes.iter().flatten() {
            rows.push(match found {
                Ok(found) => row(found, wide),
                Err((id, error)) => {
                    has_problem = true;
                    let mut row = vec!["-".to_owned(); header.len()];
                    row[2].clone_from(pool);
                    row[3] = "broken".to_owned();
                    row.push(format!("what is stored as {id}: {}", error.report()));
                    row
                }
            });
        }
    }
    if has_problem {
        header.push("PROBLEM");
    }
    if rows.is_empty() {
        return print(format_args!("no volumes"));
    }
    table(&header, &rows)
}

fn row(found: &VolumeReport, wide: bool) -> Vec<String> {
    let mark = found.mark();
    let dash = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let sized = |bytes: Option<sdk::Bytes>| bytes.map_or("-".to_owned(), size);
    let format = mark.and_then(|mark| mark.format);
    let mut row = vec![
        dash(found.name().map(|name| name.as_str())),
        dash(mark.and_then(|mark| mark.namespace.as_deref())),
        found.pool.clone(),
        volume::state(found).to_owned(),
        dash(format.map(|format| format.filesystem.as_str())),
        size(volume::asked(found)),
        size(found.asset.size),
        sized(found.device.as_ref().map(|device| device.size)),
        sized(found.filesystem_size()),
        volume::pods(found).len().to_string(),
        dash(found.handle().map(|handle| handle.to_string()).as_deref()),
    ];
    if wide {
        let device = found.device.as_ref();
        row.push(found.id.to_string());
        row.push(dash(
            format.map(|format| format.uuid.to_string()).as_deref(),
        ));
        row.push(dash(
            device
                .map(|device| device.path.display().to_string())
                .as_deref(),
        ));
    }
    row
}

fn as_json(driver: &dyn Inventory, pools: &Pools) -> Value {
    let reports = driver.pools();
    let about = |(name, volumes): &(String, sdk::Result<Volumes>)| {
        let report = reports.iter().find(|report| report.name == *name);
        let available = report.and_then(|report| report.available.as_ref().ok());
        json!({
            "name": name,
            "available": available.map(|bytes| bytes.0),
            "error": volumes.as_ref().err().map(sdk::Error::report),
        })
    };
    let volumes = pools.iter().flat_map(|(pool, volumes)| {
        volumes.iter().flatten().map(move |found| match found {
            Ok(found) => volume::json(found),
            Err((id, error)) => json!({
                "id": id.to_string(),
                "pool": pool,
                "error": error.report(),
            }),
        })
    });
    json!({
        "pools": pools.iter().map(about).collect::<Vec<Value>>(),
        "volumes": volumes.collect::<Vec<Value>>(),
    })
}

fn print_persistent_volumes(target: &manifest::ClusterTarget, pools: &Pools) -> Result<()> {
    let mut remarks = vec![
        "claimRef names a claim after its volume; correct it where the claim was called otherwise."
            .to_owned(),
    ];
    let mut objects = Vec::new();
    for found in pools
        .iter()
        .flat_map(|(_, volumes)| volumes.iter().flatten())
    {
        match found {
            Ok(found) => match described(found) {
                Ok(volume) => objects.push(target.persistent_volume(&volume)),
                Err(why) => remarks.push(format!("left out: volume {}, {why}", found.id)),
            },
            Err((id, error)) => {
                remarks.push(format!("left out: volume {id}, {}", error.report()));
            }
        }
    }
    manifest::print_all(manifest::Format::Yaml, &remarks, &objects)
}

fn described(found: &VolumeReport) -> Result<Described<'_>, &'static str> {
    let mark = found.mark().ok_or("which has no mark")?;
    if mark.state == State::Deleting || mark.deleted.is_some() {
        return Err("which was deleted");
    }
    let name = mark.name.as_ref().ok_or("which has no name")?;
    Ok(Described {
        name: name.as_str(),
        namespace: mark.namespace.as_deref(),
        size: found.asset.size,
        filesystem: mark.filesystem().map(Into::into),
        options: BTreeMap::from([
            ("handle".to_owned(), mark.handle.to_string()),
            ("pool".to_owned(), found.pool.clone()),
        ]),
    })
}
