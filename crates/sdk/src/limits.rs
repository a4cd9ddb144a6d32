//! Resource limits of this process: the largest file it may write, and its OOM score.

use crate::Bytes;
use nix::sys::{
    resource::{RLIM_INFINITY, Resource, getrlimit},
    signal::{SigSet, Signal},
};
use std::{fs, io, path::Path};

/// Makes a write beyond RLIMIT_FSIZE fail with EFBIG instead of killing this process with SIGXFSZ, so that the
/// driver can undo its work and answer.
///
/// The signal is blocked, because ignoring it would need `unsafe`. The kernel sends it and fails the write in
/// either case (`inode_newsize_ok`). Child processes inherit the blocked signal unless it is unblocked for them.
pub fn survive_file_size_limit() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    if let Err(error) = signals.thread_block() {
        log::warn!("cannot block SIGXFSZ: {error}");
    }
}

/// Gives up this process's protection from the OOM killer.
///
/// Kubelet runs with an `oom_score_adj` of -999, which its children inherit (`KubeletOOMScoreAdj` in Kubernetes'
/// pkg/kubelet/qos/policy.go). The kernel would spare a callout with a memory leak and kill everything else on the
/// node; a callout can be repeated. Child processes inherit the new score. An unprotected process keeps its score.
pub(crate) fn drop_oom_protection() {
    let score = Path::new("/proc/self/oom_score_adj");
    if let Err(error) = raise_to_zero(score) {
        log::warn!("cannot lay down protection from the OOM killer: {error}");
    }
}

fn raise_to_zero(score: &Path) -> io::Result<()> {
    let inherited = fs::read_to_string(score)?;
    if inherited.starts_with('-') {
        fs::write(score, "0")?;
    }
    Ok(())
}

/// Returns the limit on the size of a file; `None` if there is none.
pub(crate) fn largest_file() -> Option<Bytes> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE).ok()?;
    (limit != RLIM_INFINITY).then_some(Bytes(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_protection_is_laid_down() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (inherited, left) in [("-999\n", "0"), ("0\n", "0\n"), ("986\n", "986\n")] {
            fs::write(file.path(), inherited).unwrap();
            raise_to_zero(file.path()).unwrap();
            assert_eq!(fs::read_to_string(file.path()).unwrap(), left);
        }
    }
}
