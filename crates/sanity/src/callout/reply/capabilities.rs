//! The capabilities in the reply to `init`.

use super::{boolean, folded, text::Text};

/// Capabilities of a driver, with kubelet's defaults for missing members.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities {
    pub attach: bool,
    pub selinux_relabel: bool,
    pub supports_metrics: bool,
    pub fs_group: bool,
    pub requires_fs_resize: bool,
    /// Unknown to Kubernetes, used by flexvol's agent: two callers may call `expandfs` at once.
    pub concurrent_fs_resize: bool,
}

/// The values of `defaultCapabilities` in `driver-call.go`.
impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            attach: true,
            selinux_relabel: true,
            supports_metrics: false,
            fs_group: true,
            requires_fs_resize: true,
            concurrent_fs_resize: false,
        }
    }
}

/// The member `capabilities` as the driver wrote it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DeclaredCapabilities {
    #[default]
    Nothing,
    /// `null`: kubelet and the controller manager dereference the nil pointer and crash.
    Null,
    /// How many of the five were named, and the resulting capabilities.
    Some(usize, Capabilities),
}

/// All false. An object after a `null` gets these instead of the defaults, because Go allocates a zero value.
const NONE: Capabilities = Capabilities {
    attach: false,
    selinux_relabel: false,
    supports_metrics: false,
    fs_group: false,
    requires_fs_resize: false,
    concurrent_fs_resize: false,
};

pub(super) fn decode(
    value: Text,
    before: DeclaredCapabilities,
) -> Result<DeclaredCapabilities, String> {
    let members = match value {
        Text::Null => return Ok(DeclaredCapabilities::Null),
        Text::Object(members) => members,
        other => return Err(format!("capabilities is {}, not an object", other.kind())),
    };
    let (mut named, mut known) = match before {
        DeclaredCapabilities::Some(named, known) => (named, known),
        DeclaredCapabilities::Nothing => (0, Capabilities::default()),
        DeclaredCapabilities::Null => (0, NONE),
    };
    for (name, value) in members {
        let capability = match folded(&name).as_str() {
            "attach" => &mut known.attach,
            "selinuxrelabel" => &mut known.selinux_relabel,
            "supportsmetrics" => &mut known.supports_metrics,
            "fsgroup" => &mut known.fs_group,
            "requiresfsresize" => &mut known.requires_fs_resize,
            "concurrentfsresize" => {
                known.concurrent_fs_resize = boolean(&name, value) == Ok(Some(true));
                continue;
            }
            _ => continue,
        };
        named += 1;
        if let Some(has) = boolean(&name, value)? {
            *capability = has;
        }
    }
    Ok(DeclaredCapabilities::Some(named, known))
}
