//! A whole FlexVolume driver: a volume is a directory, limited only by the file system that all volumes share.
//!
//! `.pool` beside this executable is, or leads to, their directory, which was made a pool with `flexvol pool init`.
#![forbid(unsafe_code)]

use flexvol_storage::host::{Allocation, Reserve, pool::Pool};
use flexvol_storage::sdk::{Bytes, Error, ErrorKind, Options, Result, path_beside_executable};
use flexvol_storage::{Asset, Backend, Catalog, Mark, VolumeId, run};
use flexvol_storage::{DirectoryBackend, DirectoryDriver};
use std::{os::fd::OwnedFd, process::ExitCode};

struct Directories(Pool);

const RESERVE: Reserve = Reserve::Percent(15);

impl Backend for Directories {
    fn catalog(&self) -> &dyn Catalog {
        &self.0
    }
    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
        match self.0.find_directory(volume)? {
            Some(found) => Asset::marked(self.0.unlimited()?, found.mark()?).map(Some),
            None => Ok(None),
        }
    }
    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        self.0.create_directory(volume, size, mark, RESERVE)
    }
    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        self.0.directory(volume)?.set_mark(mark)
    }
    fn grow(&self, _: &VolumeId, _: Bytes) -> Result<()> {
        let why = "it has its whole file system already; make that larger";
        Err(Error::new(ErrorKind::Exhausted, why))
    }
    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        self.0.remove_directory(volume)
    }
    fn capacity(&self, _: &Options) -> Result<Bytes> {
        self.0.available(RESERVE, Allocation::Thin)
    }
}

impl DirectoryBackend for Directories {
    fn open(&self, volume: &VolumeId) -> Result<OwnedFd> {
        Ok(self.0.directory(volume)?.into())
    }
    fn outermost(&self, volume: &VolumeId) -> Result<OwnedFd> {
        Ok(self.0.directory(volume)?.outermost())
    }
}

fn main() -> ExitCode {
    run(DirectoryDriver::<Directories>::capabilities(), &|| {
        let open = || Ok(Directories(Pool::open(&path_beside_executable(".pool")?)?));
        Ok(Box::new(DirectoryDriver::with_pool(open)))
    })
}
