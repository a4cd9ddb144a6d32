//! Brings a volume to a pod and back, with the callouts of kubelet and the controller manager.

use crate::{
    bench::{Bench, MountPoint},
    callout::{
        argument,
        call::{Call, Outcome},
    },
    system::{
        self, cleanup, mount_namespace,
        mounts::{self, Mount},
    },
    verdict::{Stop, Verdict, not_applicable, wrong},
    volume::{Stage, Volume, format_and_mount},
};
use anyhow::Context;
use std::{fs, path::PathBuf};

impl Bench<'_> {
    /// Returns kubelet's directory for the volume: `GetPath` in `volume.go` and `getDeviceMountPath` in `plugin.go`.
    pub fn mount_point(&self, volume: &Volume, uid: &str, stage: Stage) -> MountPoint {
        let (vendor, driver) = &self.run.name;
        let dir = match stage {
            Stage::Pod => self
                .root()
                .join("pods")
                .join(uid)
                .join("volumes")
                .join(format!("{vendor}~{driver}")),
            Stage::Node => self
                .root()
                .join("plugins/kubernetes.io/flexvolume")
                .join(vendor)
                .join(driver)
                .join("mounts"),
        };
        MountPoint {
            dir: dir.join(&volume.name),
            volume: volume.clone(),
            uid: uid.to_owned(),
            stage,
            device: String::new(),
        }
    }

    /// Calls `attach`, after recording it in the journal.
    pub fn attach(&self, volume: &Volume, mode: &str, node: &str) -> Result<Call, Stop> {
        // The arguments of Kubernetes 1.6 do not contain the volume's name.
        self.expect_attached(&volume.name, node)?;
        self.call(&["attach", &volume.json(mode), node])
    }

    /// Calls `attach` and `waitforattach` if the driver attaches, and returns the resulting device.
    pub fn attach_and_wait(&self, volume: &Volume, mode: &str) -> Result<String, Stop> {
        if !self.run.capabilities.attach {
            return Ok(String::new());
        }
        let call = self.attach(volume, mode, self.run.node())?;
        let device = match call.outcome() {
            Outcome::Success(reply) => reply.device.unwrap_or_default(),
            Outcome::NotSupported => String::new(),
            _ => return Err(wrong(&call, "attach succeeds", "it did not")),
        };
        let call = self.call(&["waitforattach", &device, &volume.json(mode)])?;
        match call.outcome() {
            Outcome::Success(reply) => Ok(reply.device.unwrap_or_default()),
            Outcome::NotSupported => Ok(device),
            _ => Err(wrong(&call, "waitforattach succeeds", "it did not")),
        }
    }

    /// Makes all callouts before the one that mounts for a pod. That one is `mount`, or `mountdevice` if
    /// kubelet makes the bind mount for the pod itself.
    pub fn prepare_final_mount(
        &self,
        volume: &Volume,
        uid: &str,
        mode: &str,
    ) -> Result<MountPoint, Stop> {
        let device = self.attach_and_wait(volume, mode)?;
        let run = self.run;
        let node = MountPoint {
            device: device.clone(),
            ..self.mount_point(volume, uid, Stage::Node)
        };
        if !run.supports("mount") {
            if run.capabilities.attach {
                return Ok(node);
            }
            let why = "init says attach: false, and mount is Not supported";
            return Err(not_applicable(why));
        }
        if run.capabilities.attach && mounts::at(&node.dir)?.is_empty() {
            let call = self.mount(&node, mode)?;
            self.expect_mounted(&node, &call)?;
        }
        Ok(MountPoint {
            device,
            ..self.mount_point(volume, uid, Stage::Pod)
        })
    }

    /// Returns the node's mount point behind a pod's mount point, if the driver mounts both.
    pub fn node_mount_point(&self, mount_point: &MountPoint) -> Option<MountPoint> {
        let both = mount_point.stage == Stage::Pod && self.run.supports("mountdevice");
        both.then(|| MountPoint {
            device: mount_point.device.clone(),
            ..self.mount_point(&mount_point.volume, &mount_point.uid, Stage::Node)
        })
    }

    /// Makes all callouts before the one that formats a device.
    pub fn prepare_format(&self, volume: &Volume, mode: &str) -> Result<MountPoint, Stop> {
        if !self.run.supports("mountdevice") {
            return self.prepare_final_mount(volume, "sanity-pod", mode);
        }
        let device = self.attach_and_wait(volume, mode)?;
        Ok(MountPoint {
            device,
            ..self.mount_point(volume, "sanity-pod", Stage::Node)
        })
    }

    /// Returns the arguments of the callout that mounts there, and makes kubelet's directory.
    pub fn mount_arguments(
        &self,
        mount_point: &MountPoint,
        mode: &str,
    ) -> Result<Vec<String>, Stop> {
        system::make_directory(&mount_point.dir).context("make kubelet's directory")?;
        let dir = mount_point.dir.to_string_lossy().into_owned();
        Ok(match mount_point.stage {
            Stage::Pod => {
                let mut members = mount_point.volume.mount_members(mode, &mount_point.uid);
                members.extend(self.run.secrets());
                vec!["mount".to_owned(), dir, argument::object(&members)]
            }
            Stage::Node => {
                let json = mount_point.volume.json(mode);
                vec![
                    "mountdevice".to_owned(),
                    dir,
                    mount_point.device.clone(),
                    json,
                ]
            }
        })
    }

    /// Calls `mount` or `mountdevice`. If `mountdevice` is Not supported, mounts as kubelet does.
    pub fn mount(&self, mount_point: &MountPoint, mode: &str) -> Result<Call, Stop> {
        let call = self.call(&self.mount_arguments(mount_point, mode)?)?;
        if mount_point.stage == Stage::Node
            && call.not_supported()
            && mounts::at(&mount_point.dir)?.is_empty()
        {
            format_and_mount::mount_device(
                &mount_point.device,
                &mount_point.volume,
                &mount_point.dir,
                mode,
            )?;
        }
        Ok(call)
    }

    /// Bind-mounts a node's mount point to a pod's directory, as kubelet does for drivers without `mount`,
    /// and returns that directory. None if the driver mounted for the pod.
    pub fn bind_to_pod(&self, mount_point: &MountPoint) -> Result<Option<PathBuf>, Stop> {
        if mount_point.stage == Stage::Pod {
            return Ok(None);
        }
        let pod = self
            .mount_point(&mount_point.volume, &mount_point.uid, Stage::Pod)
            .dir;
        system::make_directory(&pod).context("make kubelet's directory")?;
        mount_namespace::bind(&mount_point.dir, &pod)?;
        Ok(Some(pod))
    }

    /// Removes the bind mount of [`Bench::bind_to_pod`].
    pub fn unbind_from_pod(&self, pod: Option<PathBuf>) -> Verdict {
        if let Some(pod) = pod {
            cleanup::unmount(&pod)?;
            fs::remove_dir(&pod).context("remove kubelet's directory")?;
        }
        Ok(())
    }

    /// The arguments of the callout that undoes [`Bench::mount`].
    pub fn unmount_arguments(&self, mount_point: &MountPoint) -> Vec<String> {
        let callout = match mount_point.stage {
            Stage::Pod => "unmount",
            Stage::Node => "unmountdevice",
        };
        let dir = mount_point.dir.to_string_lossy().into_owned();
        vec![callout.to_owned(), dir]
    }

    pub fn unmount(&self, mount_point: &MountPoint) -> Result<Call, Stop> {
        self.call(&self.unmount_arguments(mount_point))
    }

    /// Fails the check unless both succeed.
    pub fn attach_and_mount(
        &self,
        volume: &Volume,
        uid: &str,
        mode: &str,
    ) -> Result<MountPoint, Stop> {
        let mount_point = self.prepare_final_mount(volume, uid, mode)?;
        let call = self.mount(&mount_point, mode)?;
        self.expect_mounted(&mount_point, &call)?;
        Ok(mount_point)
    }

    /// Checks that the call succeeded and the volume is mounted.
    pub fn expect_mounted(&self, mount_point: &MountPoint, call: &Call) -> Verdict {
        let by_kubelet = mount_point.stage == Stage::Node && call.not_supported();
        if !call.succeeded() && !by_kubelet {
            return Err(wrong(
                call,
                format!("{} succeeds", call.callout()),
                "it did not",
            ));
        }
        if mounts::at(&mount_point.dir)?.is_empty()
            && !(by_kubelet && mount_point.device.is_empty())
        {
            return Err(wrong(
                call,
                "after Success something is mounted on the directory",
                "nothing is: the pod would write to the node's own disk",
            ));
        }
        Ok(())
    }

    /// Checks that the call succeeded and there is exactly one mount, after any number of calls.
    pub fn expect_mounted_once(
        &self,
        mount_point: &MountPoint,
        call: &Call,
    ) -> Result<Mount, Stop> {
        self.expect_mounted(mount_point, call)?;
        let found = <[Mount; 1]>::try_from(mounts::at(&mount_point.dir)?);
        found.map(|[mount]| mount).map_err(|found| {
            let count = found.len().to_string();
            wrong(call, "one mount on the directory", count)
        })
    }

    /// Checks that the call succeeded and nothing is mounted any more.
    pub fn expect_unmounted(&self, mount_point: &MountPoint, call: &Call) -> Verdict {
        if !call.succeeded() && !call.not_supported() {
            return Err(wrong(
                call,
                format!("{} succeeds", call.callout()),
                "it did not",
            ));
        }
        if call.not_supported() {
            // kubelet unmounts the directory itself in this case (`mount.CleanupMountPoint`).
            for _ in mounts::at(&mount_point.dir)? {
                cleanup::unmount(&mount_point.dir)?;
            }
        }
        if let Some(mount) = mounts::at(&mount_point.dir)?.last() {
            return Err(wrong(
                call,
                "after Success nothing is mounted on the directory",
                format!("{} of {} still is", mount.filesystem, mount.source),
            ));
        }
        Ok(())
    }

    /// As kubelet and the controller manager do.
    pub fn unmount_and_detach(&self, mount_point: &MountPoint) -> Verdict {
        self.unmount_and_remove(mount_point)?;
        if self.run.capabilities.attach {
            if mount_point.stage == Stage::Pod {
                let node = self.mount_point(&mount_point.volume, &mount_point.uid, Stage::Node);
                if !mounts::at(&node.dir)?.is_empty() {
                    self.unmount_and_remove(&node)?;
                }
            }
            let call = self.call(&["detach", &mount_point.volume.name, self.run.node()])?;
            if !call.succeeded() && !call.not_supported() {
                return Err(wrong(&call, "detach succeeds", "it did not"));
            }
        }
        Ok(())
    }

    /// Unmounts one directory and removes it, as kubelet does.
    pub fn unmount_and_remove(&self, mount_point: &MountPoint) -> Verdict {
        let call = self.unmount(mount_point)?;
        self.expect_unmounted(mount_point, &call)?;
        match fs::remove_dir(&mount_point.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(wrong(
                &call,
                "kubelet can remove the directory after unmount",
                format!("{error}: kubelet tries again for ever"),
            )),
            _ => Ok(()),
        }
    }

    /// The arguments of `expandfs` for the volume that is mounted there.
    pub fn expand_arguments(&self, mount_point: &MountPoint, new: u64, old: u64) -> Vec<String> {
        vec![
            "expandfs".to_owned(),
            mount_point.volume.json("rw"),
            mount_point.device.clone(),
            mount_point.dir.to_string_lossy().into_owned(),
            new.to_string(),
            old.to_string(),
        ]
    }
}
