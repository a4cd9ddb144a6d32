//! The way of a volume to a pod and back, as kubelet and the controller go it.

use crate::{
    bench::{Bench, Place},
    callout::{
        argument,
        call::{Call, Outcome},
    },
    system::{
        self, cleanup, mount_namespace,
        mounts::{self, Mount},
    },
    verdict::{Stop, Verdict, not_applicable, wrong},
    volume::{On, Volume, format_and_mount},
};
use anyhow::Context;
use std::{fs, path::PathBuf};

impl Bench<'_> {
    /// `GetPath` in `volume.go` and `getDeviceMountPath` in `plugin.go`.
    pub fn place(&self, volume: &Volume, uid: &str, on: On) -> Place {
        let (vendor, driver) = &self.run.name;
        let dir = match on {
            On::Pod => self
                .root()
                .join("pods")
                .join(uid)
                .join("volumes")
                .join(format!("{vendor}~{driver}")),
            On::Node => self
                .root()
                .join("plugins/kubernetes.io/flexvolume")
                .join(vendor)
                .join(driver)
                .join("mounts"),
        };
        Place {
            dir: dir.join(&volume.name),
            volume: volume.clone(),
            uid: uid.to_owned(),
            on,
            device: String::new(),
        }
    }

    /// `attach`, written down before it is made.
    pub fn attach(&self, volume: &Volume, mode: &str, node: &str) -> Result<Call, Stop> {
        // In the arguments of 1.6 the volume has no name.
        self.expect_attached(&volume.name, node)?;
        self.call(&["attach", &volume.json(mode), node])
    }

    /// `attach` and `waitforattach`, where there are such: the device they end with.
    pub fn attached(&self, volume: &Volume, mode: &str) -> Result<String, Stop> {
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

    /// Everything that comes before the callout that gives a pod its mount: that is `mount`, or
    /// `mountdevice` if kubelet binds its mount to pods by itself.
    pub fn last_stage(&self, volume: &Volume, uid: &str, mode: &str) -> Result<Place, Stop> {
        let device = self.attached(volume, mode)?;
        let run = self.run;
        let node = Place {
            device: device.clone(),
            ..self.place(volume, uid, On::Node)
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
        Ok(Place {
            device,
            ..self.place(volume, uid, On::Pod)
        })
    }

    /// The node's directory that a pod's volume comes from, where the driver mounts both.
    pub fn node_place(&self, place: &Place) -> Option<Place> {
        let both = place.on == On::Pod && self.run.supports("mountdevice");
        both.then(|| Place {
            device: place.device.clone(),
            ..self.place(&place.volume, &place.uid, On::Node)
        })
    }

    /// The same up to the callout that formats a device.
    pub fn format_stage(&self, volume: &Volume, mode: &str) -> Result<Place, Stop> {
        if !self.run.supports("mountdevice") {
            return self.last_stage(volume, "sanity-pod", mode);
        }
        let device = self.attached(volume, mode)?;
        Ok(Place {
            device,
            ..self.place(volume, "sanity-pod", On::Node)
        })
    }

    /// The arguments of the callout that mounts there, with kubelet's directory made.
    pub fn mount_arguments(&self, place: &Place, mode: &str) -> Result<Vec<String>, Stop> {
        system::make_directory(&place.dir).context("make kubelet's directory")?;
        let dir = place.dir.to_string_lossy().into_owned();
        Ok(match place.on {
            On::Pod => {
                let mut members = place.volume.mount_members(mode, &place.uid);
                members.extend(self.run.secrets());
                vec!["mount".to_owned(), dir, argument::object(&members)]
            }
            On::Node => {
                let json = place.volume.json(mode);
                vec!["mountdevice".to_owned(), dir, place.device.clone(), json]
            }
        })
    }

    /// The callout, and what kubelet does by itself where it is Not supported.
    pub fn mount(&self, place: &Place, mode: &str) -> Result<Call, Stop> {
        let call = self.call(&self.mount_arguments(place, mode)?)?;
        if place.on == On::Node && call.not_supported() && mounts::at(&place.dir)?.is_empty() {
            format_and_mount::mount_device(&place.device, &place.volume, &place.dir, mode)?;
        }
        Ok(call)
    }

    /// Binds what is mounted for the node to a pod, as kubelet does for drivers without `mount`: the
    /// pod's directory. None where the driver has mounted it there.
    pub fn bound(&self, place: &Place) -> Result<Option<PathBuf>, Stop> {
        if place.on == On::Pod {
            return Ok(None);
        }
        let pod = self.place(&place.volume, &place.uid, On::Pod).dir;
        system::make_directory(&pod).context("make kubelet's directory")?;
        mount_namespace::bind(&place.dir, &pod)?;
        Ok(Some(pod))
    }

    /// Takes away what [`Bench::bound`] made.
    pub fn unbound(&self, pod: Option<PathBuf>) -> Verdict {
        if let Some(pod) = pod {
            cleanup::unmount(&pod)?;
            fs::remove_dir(&pod).context("remove kubelet's directory")?;
        }
        Ok(())
    }

    /// The arguments of the callout that ends what [`Bench::mount`] began.
    pub fn unmount_arguments(&self, place: &Place) -> Vec<String> {
        let callout = match place.on {
            On::Pod => "unmount",
            On::Node => "unmountdevice",
        };
        let dir = place.dir.to_string_lossy().into_owned();
        vec![callout.to_owned(), dir]
    }

    pub fn unmount(&self, place: &Place) -> Result<Call, Stop> {
        self.call(&self.unmount_arguments(place))
    }

    /// A mounted volume, all the way, which must succeed.
    pub fn up(&self, volume: &Volume, uid: &str, mode: &str) -> Result<Place, Stop> {
        let place = self.last_stage(volume, uid, mode)?;
        let call = self.mount(&place, mode)?;
        self.expect_mounted(&place, &call)?;
        Ok(place)
    }

    /// Success, and a mount.
    pub fn expect_mounted(&self, place: &Place, call: &Call) -> Verdict {
        let by_kubelet = place.on == On::Node && call.not_supported();
        if !call.succeeded() && !by_kubelet {
            return Err(wrong(
                call,
                format!("{} succeeds", call.callout()),
                "it did not",
            ));
        }
        if mounts::at(&place.dir)?.is_empty() && !(by_kubelet && place.device.is_empty()) {
            return Err(wrong(
                call,
                "after Success something is mounted on the directory",
                "nothing is: the pod would write to the node's own disk",
            ));
        }
        Ok(())
    }

    /// Success, and one mount, however often it was asked for.
    pub fn expect_mounted_once(&self, place: &Place, call: &Call) -> Result<Mount, Stop> {
        self.expect_mounted(place, call)?;
        let found = <[Mount; 1]>::try_from(mounts::at(&place.dir)?);
        found.map(|[mount]| mount).map_err(|found| {
            let count = found.len().to_string();
            wrong(call, "one mount on the directory", count)
        })
    }

    /// Success, and no mount.
    pub fn expect_unmounted(&self, place: &Place, call: &Call) -> Verdict {
        if !call.succeeded() && !call.not_supported() {
            return Err(wrong(
                call,
                format!("{} succeeds", call.callout()),
                "it did not",
            ));
        }
        if call.not_supported() {
            // kubelet then unmounts by itself (`mount.CleanupMountPoint`).
            for _ in mounts::at(&place.dir)? {
                cleanup::unmount(&place.dir)?;
            }
        }
        if let Some(mount) = mounts::at(&place.dir)?.last() {
            return Err(wrong(
                call,
                "after Success nothing is mounted on the directory",
                format!("{} of {} still is", mount.filesystem, mount.source),
            ));
        }
        Ok(())
    }

    /// The whole way back, as kubelet and the controller go it.
    pub fn down(&self, place: &Place) -> Verdict {
        self.unmounted(place)?;
        if self.run.capabilities.attach {
            if place.on == On::Pod {
                let node = self.place(&place.volume, &place.uid, On::Node);
                if !mounts::at(&node.dir)?.is_empty() {
                    self.unmounted(&node)?;
                }
            }
            let call = self.call(&["detach", &place.volume.name, self.run.node()])?;
            if !call.succeeded() && !call.not_supported() {
                return Err(wrong(&call, "detach succeeds", "it did not"));
            }
        }
        Ok(())
    }

    /// Unmounts one directory and removes it, as kubelet does.
    pub fn unmounted(&self, place: &Place) -> Verdict {
        let call = self.unmount(place)?;
        self.expect_unmounted(place, &call)?;
        match fs::remove_dir(&place.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(wrong(
                &call,
                "kubelet can remove the directory after unmount",
                format!("{error}: kubelet tries again for ever"),
            )),
            _ => Ok(()),
        }
    }

    /// The arguments of `expandfs` for what is mounted there.
    pub fn expand_arguments(&self, place: &Place, new: u64, old: u64) -> Vec<String> {
        vec![
            "expandfs".to_owned(),
            place.volume.json("rw"),
            place.device.clone(),
            place.dir.to_string_lossy().into_owned(),
            new.to_string(),
            old.to_string(),
        ]
    }
}
