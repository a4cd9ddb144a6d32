//! Capabilities of a driver that a check requires.

use super::Bench;
use crate::{
    callout::call::Call,
    config::Kind,
    verdict::{Stop, Verdict, not_applicable},
};

impl Bench<'_> {
    /// Stops the check unless `init` says that volumes are attached.
    pub fn needs_attach(&self) -> Verdict {
        if self.run.capabilities.attach {
            Ok(())
        } else {
            Err(not_applicable("init says attach: false"))
        }
    }

    /// Stops the check if the driver does not support this callout.
    pub fn needs_callout(&self, callout: &str) -> Verdict {
        let run = self.run;
        if !run.is_called(callout) {
            return Err(not_applicable("init says attach: false"));
        }
        if run.unsupported.contains(callout) {
            return Err(not_applicable(format!("{callout} is Not supported")));
        }
        if run.inconclusive.contains(callout) {
            let why = format!("a volume: {callout} is Not supported of one that does not exist");
            return Err(Stop::Skipped(why));
        }
        Ok(())
    }

    /// Stops the check if kubelet unmounts the driver's volumes itself.
    pub fn needs_unmounting(&self) -> Verdict {
        if self.run.supports("unmount") || self.run.supports("unmountdevice") {
            return Ok(());
        }
        // Which of the two it is depends on the stages that the driver has.
        let last = if self.run.supports("mount") || !self.run.capabilities.attach {
            "unmount"
        } else {
            "unmountdevice"
        };
        self.needs_callout(last)
    }

    /// Stops the check if kubelet mounts the driver's volumes itself.
    pub fn needs_mounting(&self) -> Verdict {
        if !self.run.mounts_nothing() {
            return Ok(());
        }
        if self.run.inconclusive.contains("mount") {
            return self.needs_callout("mount");
        }
        let why = "mountdevice and mount are Not supported: kubelet mounts the device";
        Err(not_applicable(why))
    }

    /// Stops the check if the driver does not have the callout that was just made.
    pub fn needs_support(&self, call: &Call) -> Verdict {
        let callout = call.callout();
        if call.not_supported() {
            return Err(not_applicable(format!("{callout} is Not supported")));
        }
        // A driver may fail every callout that it does not know, which is another check's.
        if call.failed() && self.call(&["sanity-unknown", "{}"])?.failed() {
            return Err(not_applicable(format!(
                "the driver fails every callout that it does not know, and {callout}"
            )));
        }
        Ok(())
    }

    /// Whether files can be written, and outlive the unmount.
    pub fn keeps_files(&self) -> bool {
        !self.run.config.volume.read_only && self.keeps_content()
    }

    /// Whether what is written outlives the unmount.
    pub fn keeps_content(&self) -> bool {
        self.run.config.volume.kind != Kind::Ephemeral
    }

    /// Stops the check unless what is written outlives the unmount.
    pub fn needs_kept_content(&self) -> Verdict {
        if self.keeps_content() {
            return Ok(());
        }
        let why = "the configuration says kind = \"ephemeral\": nothing outlives the unmount";
        Err(not_applicable(why))
    }

    /// Stops the check if volumes are not block devices, or the driver does not format them.
    pub fn needs_device(&self) -> Verdict {
        let kind = self.run.config.volume.kind;
        if kind != Kind::Block {
            let why = format!("the configuration says kind = \"{kind}\": nothing is formatted");
            return Err(not_applicable(why));
        }
        self.needs_mounting()?;
        // If neither callout returns a device, kubelet has none to format (`MountDevice` in
        // pkg/volume/flexvolume/attacher.go), and the driver formats in `mount`.
        let is_named = self.run.supports("attach") || self.run.supports("waitforattach");
        if self.run.capabilities.attach && is_named && self.run.unsupported.contains("mountdevice")
        {
            let why = "mountdevice is Not supported: kubelet formats the device";
            return Err(not_applicable(why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{callout::argument::Options, journal::record::header, run::Run};

    #[test]
    fn what_kubelet_formats_the_driver_does_not() {
        let place = tempfile::tempdir().unwrap();
        let mut run = Run::new(&header(place.path()), Options::new(), None);
        let needs = |run: &Run| Bench::new(run, "fmt").unwrap().needs_device();
        run.unsupported = ["mountdevice".to_owned()].into();
        run.capabilities.attach = false;
        assert!(needs(&run).is_ok(), "it is not called at all");
        run.capabilities.attach = true;
        assert!(matches!(needs(&run), Err(Stop::NotApplicable(_))));
        run.unsupported.clear();
        assert!(needs(&run).is_ok());
        let silent = ["attach", "waitforattach", "mountdevice"];
        run.unsupported = silent.map(str::to_owned).into();
        assert!(needs(&run).is_ok(), "kubelet has no device to format");
    }
}
