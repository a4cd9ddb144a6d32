//! All callouts, for volumes that live on this node.

use crate::{
    any_pool::AnyPool,
    decide::with_least,
    identify::{Found, MountedThing, VolumeOptions, not_here},
    kind::{CallContext, LOCK_DEADLINE},
    observed::{Goal, Requester},
    provision::{Request, retire_unused},
    reconcile::{Reached, reconcile},
    settings::{self, Growth, Namespaces, Policy, Role},
    volume_driver::VolumeDriver,
};
use flexvol_host::{VolumeId, lock};
use flexvol_sdk::{
    Answer, Bytes, Capacity, Driver, Error, ErrorKind, MountRequest, Options, PoolSpace,
    Provisioned, Resize, Result, Volume, VolumeName,
};
use serde::Deserialize;
use std::path::Path;

/// The parameters of a StorageClass that `provision` and `capacity` read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Parameters {
    pool: Option<String>,
    #[serde(rename = "fsType")]
    filesystem: Option<String>,
}

impl VolumeDriver {
    pub(crate) fn reach(
        &self,
        found: Found,
        context: CallContext,
        goal: impl FnOnce(&Found) -> Result<Goal>,
    ) -> Result<Reached> {
        let (found, lock) = self.hold(found)?;
        let reached = goal(&found).and_then(|goal| found.reach(&lock, context, &goal));
        // If the named pool lacked the volume, `hold` has searched all pools for it.
        reached.inspect_err(|error| retire_unused(lock, error, found.backend(), &found.id))
    }

    fn mount_on(
        &self,
        context: CallContext,
        volume: &Volume,
        requester: impl FnOnce(&Policy) -> Requester,
        read_only: bool,
    ) -> Result<()> {
        let filesystem = volume.known_filesystem()?;
        let goal = |found: &Found| {
            Ok(Goal::Mounted {
                filesystem,
                default: found.policy.filesystem,
                offline: self.settings.growth == Growth::Offline,
                read_only,
                requester: requester(&found.policy),
            })
        };
        self.reach(self.identify(volume, None)?, context, goal)?;
        Ok(())
    }

    fn unmount_from(&self, dir: &Path) -> Result<()> {
        let unmount = |id, moved| {
            let lock = lock::to_unmount(&id, LOCK_DEADLINE)?;
            let context = CallContext {
                moved,
                ..CallContext::on(Some(dir))
            };
            let mut world = (self.kind.world)(id, &lock, context);
            reconcile(world.as_mut(), &Goal::Unmounted)?;
            self.tell_unmounted(&id, &lock);
            Ok(())
        };
        match self.mounted_on(dir)? {
            MountedThing::Volume(id) => unmount(id, None),
            MountedThing::Moved(id, uuid) => unmount(id, Some(uuid)),
            MountedThing::Nothing => Ok(()),
            MountedThing::SomethingElse => {
                for other in &self.others {
                    if let MountedThing::Volume(_) = other.mounted_on(dir)? {
                        return other.unmount_from(dir);
                    }
                }
                Err(Error::new(
                    ErrorKind::Conflict,
                    "something else than a volume of this driver is mounted there; unmount it by hand",
                ))
            }
        }
    }

    fn tell_unmounted(&self, volume: &VolumeId, lock: &lock::Guard) {
        if !self.kind.wants_unmounted {
            return;
        }
        for pool in &self.pools {
            match pool.open() {
                Ok(opened) => opened.unmounted(volume, lock),
                Err(error) => log::warn!(
                    "pool {} does not hear that a volume was unmounted: {}",
                    pool.name(),
                    error.report()
                ),
            }
        }
    }

    /// Returns the pool in which volumes of a class are made. While the configuration is lost there is none: the
    /// name would lead to the default pool, where the claim's volume would be made a second time.
    fn pool_of_class(&self, parameters: &Parameters) -> Result<&AnyPool> {
        self.expect_known_pools()?;
        self.pool(parameters.pool.as_deref())
    }

    /// Fails if the driver is not configured to attach. Only callers that got another answer from `init` make
    /// these callouts. They would remember "Not supported", and format and mount devices themselves until they
    /// are restarted. Detaching is still allowed.
    fn expect_attaching(&self) -> Result<()> {
        if self.settings.attach {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Configuration,
            "the configuration says attach = false, and kubelet was told otherwise when the driver was installed; say attach = true again, or end its pods and install it anew",
        ))
    }
}

/// Checks the requested size, and the size that the storage gets for it, against the pool's `largest`. A volume
/// that already has that size passes, even if the limit was lowered since.
fn admit_growth(found: &Found, asked: Bytes) -> Result<Bytes> {
    let size = settings::in_mebibytes(asked)?;
    if found.policy.largest.is_none() {
        return Ok(size);
    }
    let asset = found.backend().find(&found.id)?;
    if asset.as_ref().is_some_and(|asset| asset.size >= size) {
        return Ok(size);
    }
    found.policy.expect_allowed(size)?;
    let mark = asset.as_ref().and_then(|asset| asset.mark.as_ref());
    if let (Some(asset), Some(mark)) = (&asset, mark) {
        let least = with_least(asset, mark, size);
        found.policy.expect_allowed(least).map_err(|refused| {
            refused.context(format_args!("its file system grows to {least} at least"))
        })?;
    }
    Ok(size)
}

impl Driver for VolumeDriver {
    fn attach(&self, volume: &Volume, _node: &str) -> Answer<String> {
        self.expect_attaching()?;
        Ok(self.identity(volume)?)
    }

    fn wait_for_attach(&self, _device: &str, volume: &Volume) -> Answer<String> {
        self.expect_attaching()?;
        let found = self.identify(volume, None)?;
        if found.backend().find(&found.id)?.is_none() {
            self.search(found.id)?.ok_or_else(not_here)?;
        }
        Ok(self.identity(volume)?)
    }

    fn detach(&self, _name: &VolumeName, _node: &str) -> Answer<()> {
        Ok(())
    }

    fn mount_device(&self, dir: &Path, _device: &str, volume: &Volume) -> Answer<()> {
        self.expect_attaching()?;
        // The pod is not known yet; `mount` checks the namespace before a pod sees the volume.
        let requester = |policy: &Policy| match policy.namespaces {
            Namespaces::Any => Requester::Anybody,
            Namespaces::Claim => Requester::Node,
        };
        Ok(self.mount_on(CallContext::on(Some(dir)), volume, requester, false)?)
    }

    fn unmount_device(&self, dir: &Path) -> Answer<()> {
        Ok(self.unmount_from(dir)?)
    }

    fn mount(&self, request: &MountRequest) -> Answer<()> {
        let requester = |policy: &Policy| match (policy.namespaces, &request.pod) {
            (Namespaces::Any, _) => Requester::Anybody,
            (Namespaces::Claim, Some(pod)) => Requester::Namespace(pod.namespace.clone()),
            (Namespaces::Claim, None) => Requester::Unnamed,
        };
        let context = CallContext {
            fs_group: request.fs_group,
            ..CallContext::on(Some(&request.dir))
        };
        Ok(self.mount_on(
            context,
            &request.volume,
            requester,
            request.volume.read_only,
        )?)
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
        let goal = |found: &Found| {
            Ok(Goal::StorageGrown {
                to: admit_growth(found, size.new)?,
            })
        };
        let reached = self.reach(self.identify(volume, dir)?, CallContext::on(dir), goal)?;
        Ok(Some(reached.size()))
    }

    fn expand_fs(
        &self,
        volume: &Volume,
        _device: &str,
        dir: Option<&Path>,
        size: Resize,
    ) -> Answer<Bytes> {
        let goal = |found: &Found| {
            Ok(Goal::Grown {
                to: admit_growth(found, size.new)?,
                offline: self.settings.growth == Growth::Offline,
                read_only: volume.read_only,
            })
        };
        let reached = self.reach(self.identify(volume, dir)?, CallContext::on(dir), goal)?;
        Ok(reached.size())
    }

    fn provision(&self, volume: &Volume, size: Bytes) -> Answer<Provisioned> {
        let parameters: Parameters = volume.options.parse()?;
        let name = volume
            .name
            .clone()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "the volume to provision has no name"))?;
        let pool = self.pool_of_class(&parameters)?;
        let filesystem = match &parameters.filesystem {
            Some(text) => Some(text.parse()?),
            None => volume.known_filesystem()?,
        };
        let request = Request {
            name,
            namespace: volume.claim_namespace.clone(),
            size,
            filesystem,
        };
        Ok(self.make(pool, &request)?)
    }

    fn delete(&self, volume: &Volume) -> Answer<()> {
        let options = match &volume.claim_namespace {
            None => volume.options.parse()?,
            // The answer of `provision` was lost, so these are the parameters of the class. `provision` makes
            // no volume for parameters that it refuses, nor in an unknown pool.
            Some(_) => VolumeOptions {
                handle: None,
                pool: volume
                    .options
                    .get("pool")
                    .filter(|pool| self.pool(Some(pool)).is_ok())
                    .map(str::to_owned),
            },
        };
        let found = match (options.volume()?, &options.pool, &volume.name) {
            (Some(id), Some(pool), _) => Some(self.open(self.pool(Some(pool))?, id)?),
            (Some(id), None, _) => {
                let found = self.search(id)?;
                if found.is_none() {
                    self.expect_no_traces(&id)?;
                }
                found
            }
            (None, Some(pool), Some(name)) => {
                let found = self.by_name(name, Some(pool))?;
                if found.is_none() {
                    self.expect_nowhere(name, pool)?;
                }
                found
            }
            (None, None, Some(name)) => self.search_name(name)?,
            (None, _, None) => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "the volume to delete has no handle and no name",
                )
                .into());
            }
        };
        let Some(found) = found else {
            return Ok(self.expect_known_pools()?);
        };
        if let Some(namespace) = &volume.claim_namespace {
            let mark = found
                .backend()
                .find(&found.id)?
                .and_then(|asset| asset.mark);
            // `provision` refused this name, so it made nothing to delete.
            if mark.is_some_and(|mark| mark.namespace.as_ref() != Some(namespace)) {
                return Ok(self.expect_known_pools()?);
            }
        }
        Ok(self.delete_volume(found, volume.name.as_ref())?)
    }

    fn capacity(&self, parameters: &Options) -> Answer<Capacity> {
        let named: Parameters = parameters.parse()?;
        let pool = self.pool_of_class(&named)?;
        let found = pool.open()?.backend().space(parameters)?;
        let most = pool.policy().largest.unwrap_or(found.largest);
        let mut capacity = Capacity::from(found.largest.min(most));
        capacity.shortfall = found.shortfall;
        capacity.pool = Some(PoolSpace {
            pool: pool.name().to_owned(),
            size: found.size,
            free: found.free,
            promised: found.promised,
        });
        Ok(capacity)
    }
}
