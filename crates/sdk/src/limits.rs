//! What this process may take: how large a file, and how long it outlives others that take memory.

use crate::Bytes;
use nix::sys::{
    resource::{RLIM_INFINITY, Resource, getrlimit},
    signal::{SigSet, Signal},
};
use std::{fs, io, path::Path};

/// Lets a write beyond RLIMIT_FSIZE fail with EFBIG, so that it is answered and what was begun is
/// undone, instead of ending this process by SIGXFSZ. Blocked the signal does as little as ignored, which
/// would take `unsafe` (the kernel's `inode_newsize_ok` sends it and fails all the same). A program that
/// is started inherits that unless it is unblocked for it.
pub fn outlive() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    if let Err(error) = signals.thread_block() {
        log::warn!("cannot block SIGXFSZ: {error}");
    }
}

/// Lays down protection from the OOM killer. Kubelet has an `oom_score_adj` of -999, which whatever it
/// starts inherits (`KubeletOOMScoreAdj` in Kubernetes' pkg/kubelet/qos/policy.go): a callout whose
/// memory grew would be spared, and everything else on the node ended for it. A callout can be repeated.
/// What it starts inherits this. A process that is not protected keeps what it has.
pub(crate) fn lay_down_protection() {
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

/// The size beyond which a file is too large; `None` where nothing limits it.
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
