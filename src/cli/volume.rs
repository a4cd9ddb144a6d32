//! Properties of a volume for users.

use crate::size::size;
use flexvol_storage::{
    VolumeReport,
    host::clock::Moment,
    mark::State,
    observed::Content,
    retention::Deletion,
    sdk::{Bytes, PodVolumeDir},
};
use serde_json::{Value, json};
use std::path::Path;

/// Returns the uid of the pod whose volume is mounted on a directory.
pub fn pod(path: &Path) -> Option<&str> {
    PodVolumeDir::of(path)?.uid.to_str()
}

/// Returns the pods that have the volume, in the order of its mounts.
pub fn pods(volume: &VolumeReport) -> Vec<&str> {
    let here = volume
        .mounts
        .iter()
        .map(|mount| mount.mount_point.as_path());
    let elsewhere = volume.elsewhere.iter().map(|place| place.as_path());
    let mut pods: Vec<&str> = here.chain(elsewhere).filter_map(pod).collect();
    pods.dedup();
    pods
}

/// Returns what other commands take for the volume.
pub fn reference(volume: &VolumeReport) -> String {
    let handle = volume.handle().map(|handle| handle.to_string());
    handle.unwrap_or_else(|| volume.id.to_string())
}

/// Returns the state of the volume, or that its mark is missing.
pub fn state(volume: &VolumeReport) -> &'static str {
    match volume.mark() {
        None => "unmarked",
        Some(mark) if mark.deleted.is_some() && mark.state != State::Deleting => "deleted",
        Some(mark) => mark.state.as_str(),
    }
}

/// Returns the deletion of a kept volume, counted up to now if possible.
pub fn deletion(volume: &VolumeReport) -> Option<Deletion> {
    let deletion = volume.mark()?.deleted?;
    Some(Moment::now().map_or(deletion, |now| deletion.counted(&now)))
}

/// Returns the largest size that was requested, according to the mark.
pub fn asked(volume: &VolumeReport) -> Bytes {
    let growing = volume.mark().and_then(|mark| mark.growing);
    volume.asset.size.max(growing.unwrap_or_default())
}

/// Returns the file system's type and size.
pub fn content(volume: &VolumeReport) -> String {
    let kind = match volume.mark().and_then(|mark| mark.format) {
        Some(format) => format.filesystem.as_str(),
        None if volume.is_directory => "the pool's",
        None => "file system",
    };
    match &volume.content {
        Content::NotRead => "none yet".to_owned(),
        Content::Blank => "none: it reads blank".to_owned(),
        Content::Ours { size: spans, .. } => format!("{kind}, {}", size(*spans)),
        Content::Foreign(what) => format!("not managed by flexvol: {what}"),
        Content::Truncated { size: spans } => {
            format!(
                "{kind}, {}, which is more than the device has",
                size(*spans)
            )
        }
        Content::Unreadable => "unreadable".to_owned(),
    }
}

/// Returns the volume as JSON for programs; sizes in bytes.
pub fn json(volume: &VolumeReport) -> Value {
    let mark = volume.mark();
    let format = mark.and_then(|mark| mark.format);
    let deletion = deletion(volume);
    let mounts = volume.mounts.iter().map(|mount| {
        json!({
            "path": mount.mount_point.to_string_lossy(),
            "readOnly": mount.read_only,
            "pod": pod(&mount.mount_point),
        })
    });
    let elsewhere = volume
        .elsewhere
        .iter()
        .map(|place| json!({ "path": place.to_string_lossy(), "pod": pod(place) }));
    json!({
        "name": volume.name().map(|name| name.as_str()),
        "namespace": mark.and_then(|mark| mark.namespace.as_deref()),
        "handle": volume.handle().map(|handle| handle.to_string()),
        "id": volume.id.to_string(),
        "pool": volume.pool,
        "state": state(volume),
        "deleted": deletion.map(|it| it.at.0),
        "keepSeconds": deletion.and_then(|it| it.keep).map(|keep| keep.as_secs()),
        "keptSeconds": deletion.and_then(|it| it.kept).map(|kept| kept.time.as_secs()),
        "fsType": format.map(|format| format.filesystem.as_str()),
        "uuid": format.map(|format| format.uuid.to_string()),
        "thin": volume.asset.thin,
        "directory": volume.is_directory,
        "asked": asked(volume).0,
        "storage": volume.asset.size.0,
        "device": volume.device.as_ref().map(|device| json!({
            "path": device.path.to_string_lossy(),
            "number": device.number.to_string(),
            "size": device.size.0,
        })),
        "filesystem": volume.filesystem_size().map(|size| size.0),
        "content": content(volume),
        "mounts": mounts.collect::<Vec<_>>(),
        "otherMountNamespaces": elsewhere.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_by_kubelets_directory() {
        let uid = "0b7f1c6e-0000-4000-8000-000000000001";
        let path = format!("/var/lib/kubelet/pods/{uid}/volumes/example.com~disk/pv");
        assert_eq!(pod(Path::new(&path)), Some(uid));
        for other in ["/srv/pods", "/pods/x/etc", "/mnt", "/pods"] {
            assert_eq!(pod(Path::new(other)), None, "{other}");
        }
    }
}
