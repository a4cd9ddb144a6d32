//! A whole driver over a backend: every callout, for volumes that live on this node.

use crate::{
    backend::Backend,
    converge::{Reached, World, converge},
    observed::{Asker, Goal},
    settings::{Growth, Names, Namespaces, Policy, Role, Settings},
};
use flexvol_host::{
    lock::{self, Guard},
    mount::Target,
    random,
};
use flexvol_sdk::{
    Answer, Bytes, Driver, Error, ErrorKind, Filesystem, Handle, MountRequest, Options,
    Provisioned, Resize, Result, Volume, VolumeName, not_supported,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The identity that stands in for a device node in attach mode. Numbers of devices are used
/// again, and kubelet opens later what it recorded; this path names one volume for ever.
const IDENTITY_DIR: &str = "/run/flexvol/volumes";

/// One place volumes are carved from: a name in the configuration, a policy, and how to open it.
pub struct Pool<B> {
    name: String,
    policy: Policy,
    open: Box<dyn Fn() -> Result<B>>,
}

impl<B> Pool<B> {
    /// A pool; `open` is called when a callout needs it and not before.
    pub fn new(
        name: impl Into<String>,
        policy: Policy,
        open: impl Fn() -> Result<B> + 'static,
    ) -> Self {
        Pool {
            name: name.into(),
            policy,
            open: Box::new(open),
        }
    }

    /// Its name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn open(&self) -> Result<B> {
        (self.open)()
    }
}

impl<B> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// How long a callout waits for another one of the same volume before it answers Failure. The
/// caller repeats the call, and its own patience with one is about two minutes.
pub(crate) const LOCK_DEADLINE: Duration = Duration::from_secs(60);

/// What the steps of a callout need to know besides its goal.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The directory the callout is about.
    pub(crate) dir: Option<PathBuf>,
    /// The persistent volume that a new volume is made for.
    pub(crate) name: Option<VolumeName>,
    /// The namespace of its claim.
    pub(crate) namespace: Option<String>,
    /// The group that the pod's processes share.
    pub(crate) fs_group: Option<u32>,
}

impl Details {
    fn on(dir: Option<&Path>) -> Details {
        Details {
            dir: dir.map(Path::to_owned),
            ..Details::default()
        }
    }
}

/// What kind of thing a volume is, which decides how it is found on a directory and how the
/// steps are done: [`Block`](crate::Block) or [`Directory`](crate::Directory).
pub trait Kind {
    /// The pools of such volumes.
    type Backend: Backend;

    /// A volume gets a file system of its own; otherwise the caller's `fsType` means nothing.
    const HAS_FILESYSTEM: bool;

    /// The volume that is mounted on a directory, as far as it is one of this technology.
    ///
    /// # Errors
    /// When it cannot be known.
    fn owner(target: &Target, pools: &[Pool<Self::Backend>]) -> Result<Option<Handle>>;

    /// The volume under its lock. There is no backend while its pool is missing: then the volume
    /// can be unmounted and nothing else.
    ///
    /// # Errors
    /// When the lock was not to be had in time.
    fn lock<'a>(
        backend: Option<&'a Self::Backend>,
        volume: Handle,
        details: Details,
    ) -> Result<Box<dyn World + 'a>>;

    /// The smallest volume that can hold this file system and be grown from there.
    fn smallest(filesystem: Filesystem) -> Bytes;
}

/// A driver for volumes of this node: gives a backend every callout, crash-safe.
pub struct VolumeDriver<K: Kind> {
    pools: Vec<Pool<K::Backend>>,
    settings: Settings,
}

impl<K: Kind> fmt::Debug for VolumeDriver<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeDriver")
            .field("pools", &self.pools)
            .field("settings", &self.settings)
            .finish()
    }
}

/// The options that a persistent volume of this driver carries.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VolumeOptions {
    handle: Option<String>,
    pool: Option<String>,
}

/// The parameters of a StorageClass, as `provision` and `capacity` get them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Parameters {
    pool: Option<String>,
    #[serde(rename = "fsType")]
    filesystem: Option<String>,
}

/// A volume that was identified, and the pool it is in.
pub(crate) struct Found<B> {
    handle: Handle,
    backend: B,
    policy: Policy,
    pool: String,
}

impl<K: Kind> VolumeDriver<K> {
    /// A driver over these pools.
    #[must_use]
    pub fn new(pools: Vec<Pool<K::Backend>>, settings: Settings) -> Self {
        VolumeDriver { pools, settings }
    }

    /// A driver over one pool, with the usual settings; `open` is called when a callout needs the
    /// pool and not before.
    #[must_use]
    pub fn with_pool(open: impl Fn() -> Result<K::Backend> + 'static) -> Self {
        let pool = Pool::new("default", Policy::default(), open);
        VolumeDriver::new(vec![pool], Settings::default())
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn all_pools(&self) -> &[Pool<K::Backend>] {
        &self.pools
    }

    pub(crate) fn pool(&self, name: Option<&str>) -> Result<&Pool<K::Backend>> {
        match (name, self.pools.as_slice()) {
            (Some(name), pools) => pools.iter().find(|pool| pool.name == name).ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "pool {name:?} is not one of this driver's: {}",
                        self.pool_names()
                    ),
                )
            }),
            (None, [only]) => Ok(only),
            (None, pools) => pools
                .iter()
                .find(|pool| pool.name == "default")
                .ok_or_else(|| {
                    Error::new(
                        ErrorKind::Invalid,
                        format!("name a pool, one of: {}", self.pool_names()),
                    )
                }),
        }
    }

    fn pool_names(&self) -> String {
        let names: Vec<_> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        names.join(", ")
    }

    fn open(&self, pool: &Pool<K::Backend>, handle: Handle) -> Result<Found<K::Backend>> {
        Ok(self.at(pool, pool.open()?, handle))
    }

    pub(crate) fn at(
        &self,
        pool: &Pool<K::Backend>,
        backend: K::Backend,
        handle: Handle,
    ) -> Found<K::Backend> {
        Found {
            handle,
            backend,
            policy: pool.policy.clone(),
            pool: pool.name.clone(),
        }
    }

    /// Finds the pool of a volume of which only the handle is known, as after a kubelet restart.
    fn search(&self, handle: Handle) -> Result<Option<Found<K::Backend>>> {
        let mut unavailable = None;
        for pool in &self.pools {
            match self.open(pool, handle) {
                Ok(found) => {
                    if found.backend.find(&handle)?.is_some() {
                        return Ok(Some(found));
                    }
                }
                Err(error) => unavailable = Some(error),
            }
        }
        unavailable.map_or(Ok(None), Err)
    }

    /// The volume that the options, or a name where that is allowed, or the directory tells.
    fn identify(&self, volume: &Volume, dir: Option<&Path>) -> Result<Found<K::Backend>> {
        let options: VolumeOptions = volume.options.parse()?;
        let told = match &options.handle {
            Some(handle) => {
                let handle = Handle::parse(handle)?;
                match &options.pool {
                    Some(pool) => Some(self.open(self.pool(Some(pool))?, handle)?),
                    None => self.search(handle)?,
                }
            }
            None => match &volume.name {
                Some(name) if self.allows(name) => self.by_name(name, options.pool.as_deref())?,
                _ => None,
            },
        };
        let there = dir.map(|dir| self.owner(dir)).transpose()?.flatten();
        match (told, there) {
            (Some(told), Some(there)) if told.handle != there => Err(Error::new(
                ErrorKind::Conflict,
                "another volume of this driver is mounted on the directory",
            )),
            (Some(told), _) => Ok(told),
            (None, Some(there)) if options.handle.is_none() => {
                self.search(there)?.ok_or_else(not_here)
            }
            (None, _) if options.handle.is_some() => Err(not_here()),
            (None, _) => Err(Error::new(
                ErrorKind::Denied,
                "the volume's options have no handle, and its name alone does not identify it; use a volume that was provisioned or made with `flexvol create`",
            )),
        }
    }

    /// The volume of this driver that is mounted on a directory.
    pub(crate) fn owner(&self, dir: &Path) -> Result<Option<Handle>> {
        match Target::open(dir)? {
            Some(target) => K::owner(&target, &self.pools),
            None => Ok(None),
        }
    }

    fn allows(&self, name: &VolumeName) -> bool {
        self.settings.names == Names::Dotted && name.is_beyond_pods()
    }

    fn by_name(&self, name: &VolumeName, pool: Option<&str>) -> Result<Option<Found<K::Backend>>> {
        let pool = self.pool(pool)?;
        let backend = pool.open()?;
        backend
            .catalog()
            .lookup(name)?
            .map(|handle| self.open(pool, handle))
            .transpose()
    }

    pub(crate) fn reach(
        &self,
        found: &Found<K::Backend>,
        details: Details,
        goal: &Goal,
    ) -> Result<Reached> {
        let mut world = K::lock(Some(&found.backend), found.handle, details)?;
        converge(world.as_mut(), goal)
    }

    fn mount_on(
        &self,
        details: Details,
        volume: &Volume,
        asker: impl FnOnce(&Policy) -> Asker,
        read_only: bool,
    ) -> Result<()> {
        let found = self.identify(volume, None)?;
        let goal = Goal::Mounted {
            filesystem: volume.filesystem,
            default: found.policy.filesystem,
            read_only,
            asker: asker(&found.policy),
        };
        self.reach(&found, details, &goal)?;
        Ok(())
    }

    fn unmount_from(&self, dir: &Path) -> Result<()> {
        match self.owner(dir)? {
            Some(handle) => {
                let mut world = K::lock(None, handle, Details::on(Some(dir)))?;
                converge(world.as_mut(), &Goal::Unmounted)?;
                Ok(())
            }
            None => match Target::open(dir)?
                .map(|target| target.mounted())
                .transpose()?
                .flatten()
            {
                None => Ok(()),
                Some(_) => Err(Error::new(
                    ErrorKind::Conflict,
                    "something else than a volume of this driver is mounted there; unmount it by hand",
                )),
            },
        }
    }

    /// What attach and its companions answer; they run where nothing of the node can be seen.
    fn identity(&self, volume: &Volume) -> Result<String> {
        let options: VolumeOptions = volume.options.parse()?;
        match (&options.handle, &volume.name) {
            (Some(handle), _) => Ok(format!("{IDENTITY_DIR}/{}", Handle::parse(handle)?)),
            (None, Some(name)) if self.allows(name) => Ok(format!("{IDENTITY_DIR}/{name}")),
            _ => Err(Error::new(
                ErrorKind::Denied,
                "the volume's options have no handle; use a volume that was provisioned or made with `flexvol create`",
            )),
        }
    }

    fn attachable(&self) -> Answer<()> {
        if self.settings.attach {
            Ok(())
        } else {
            not_supported()
        }
    }
}

fn not_here() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "there is no such volume on this node; check the handle, and that the pod runs where the volume is",
    )
}

impl<K: Kind> Driver for VolumeDriver<K> {
    fn attach(&self, volume: &Volume, _node: &str) -> Answer<String> {
        self.attachable()?;
        Ok(self.identity(volume)?)
    }

    fn wait_for_attach(&self, _device: &str, volume: &Volume) -> Answer<String> {
        self.attachable()?;
        let found = self.identify(volume, None)?;
        found.backend.find(&found.handle)?.ok_or_else(not_here)?;
        Ok(self.identity(volume)?)
    }

    fn detach(&self, _name: &VolumeName, _node: &str) -> Answer<()> {
        self.attachable()
    }

    fn mount_device(&self, dir: &Path, _device: &str, volume: &Volume) -> Answer<()> {
        self.attachable()?;
        // The pod is not known yet; `mount` asks whose volume it is before a pod sees it.
        Ok(self.mount_on(Details::on(Some(dir)), volume, |_| Asker::Anybody, false)?)
    }

    fn unmount_device(&self, dir: &Path) -> Answer<()> {
        self.attachable()?;
        Ok(self.unmount_from(dir)?)
    }

    fn mount(&self, request: &MountRequest) -> Answer<()> {
        let asker = |policy: &Policy| match (policy.namespaces, &request.pod) {
            (Namespaces::Any, _) => Asker::Anybody,
            (Namespaces::Claim, Some(pod)) => Asker::Namespace(pod.namespace.clone()),
            (Namespaces::Claim, None) => Asker::Unnamed,
        };
        let details = Details {
            fs_group: request.fs_group,
            ..Details::on(Some(&request.dir))
        };
        Ok(self.mount_on(details, &request.volume, asker, request.volume.read_only)?)
    }

    fn unmount(&self, dir: &Path) -> Answer<()> {
        Ok(self.unmount_from(dir)?)
    }

    fn expand_volume(
        &self,
        volume: &Volume,
        dir: Option<&Path>,
        size: Resize,
    ) -> Answer<Option<Bytes>> {
        if self.settings.role == Role::Controller {
            return Ok(None);
        }
        let found = self.identify(volume, dir)?;
        let goal = Goal::StorageGrown {
            to: found.policy.admit(size.new)?,
        };
        let reached = self.reach(&found, Details::on(dir), &goal)?;
        Ok(Some(reached.size()))
    }

    fn expand_fs(
        &self,
        volume: &Volume,
        _device: &str,
        dir: Option<&Path>,
        size: Resize,
    ) -> Answer<Bytes> {
        let found = self.identify(volume, dir)?;
        let goal = Goal::Grown {
            to: found.policy.admit(size.new)?,
            offline: self.settings.growth == Growth::Offline,
            read_only: volume.read_only,
        };
        let reached = self.reach(&found, Details::on(dir), &goal)?;
        Ok(reached.size())
    }

    fn provision(&self, volume: &Volume, size: Bytes) -> Answer<Provisioned> {
        let parameters: Parameters = volume.options.parse()?;
        let name = volume
            .name
            .clone()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "the volume to provision has no name"))?;
        let pool = self.pool(parameters.pool.as_deref())?;
        let filesystem = match (&parameters.filesystem, volume.filesystem) {
            (Some(text), _) => text.parse()?,
            (None, Some(filesystem)) => filesystem,
            (None, None) => pool.policy.filesystem,
        };
        let size = pool.policy.admit(size.max(K::smallest(filesystem)))?;
        let backend = pool.open()?;
        let handle = backend.catalog().bind(&name, &random::handle()?)?;
        let found = self.open(pool, handle)?;
        let details = Details {
            name: Some(name),
            namespace: volume.claim_namespace.clone(),
            ..Details::default()
        };
        let reached = self.reach(&found, details, &Goal::Provisioned { size })?;
        Ok(Provisioned {
            options: BTreeMap::from([
                ("handle".to_owned(), handle.to_string()),
                ("pool".to_owned(), found.pool),
            ]),
            size: reached.size(),
            handle,
            filesystem: K::HAS_FILESYSTEM.then_some(filesystem),
        })
    }

    fn delete(&self, volume: &Volume) -> Answer<()> {
        let options: VolumeOptions = volume.options.parse()?;
        let found = match (&options.handle, &options.pool, &volume.name) {
            (Some(handle), Some(pool), _) => {
                Some(self.open(self.pool(Some(pool))?, Handle::parse(handle)?)?)
            }
            (Some(handle), None, _) => self.search(Handle::parse(handle)?)?,
            (None, pool, Some(name)) => self.by_name(name, pool.as_deref())?,
            (None, _, None) => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "the volume to delete has no handle and no name",
                )
                .into());
            }
        };
        let Some(found) = found else {
            return Ok(());
        };
        let mark = found
            .backend
            .find(&found.handle)?
            .and_then(|asset| asset.mark);
        self.reach(&found, Details::default(), &Goal::Gone)?;
        for name in [mark.and_then(|mark| mark.name), volume.name.clone()]
            .iter()
            .flatten()
        {
            found.backend.catalog().free(name, &found.handle)?;
        }
        // Nobody will lock it again, so that a lock file that stays costs a name in /run.
        if let Err(error) = lock::volume(&found.handle, LOCK_DEADLINE).and_then(Guard::retire) {
            log::debug!("cannot remove the lock: {}", error.report());
        }
        Ok(())
    }

    fn capacity(&self, parameters: &Options) -> Answer<Bytes> {
        let named: Parameters = parameters.parse()?;
        let pool = self.pool(named.pool.as_deref())?;
        let free = pool.open()?.capacity(parameters)?;
        Ok(pool
            .policy
            .largest
            .map_or(free, |largest| free.min(largest)))
    }
}
