//! Settings of the model.

/// Constants of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// Whether the scheduler selects the node.
    pub late_binding: bool,
    /// Whether the reclaim policy is Delete, and not Retain.
    pub deletes: bool,
    /// Whether the driver has a file system to grow.
    pub node_expansion_required: bool,
    /// Whether Kubernetes' own expander runs.
    pub expander: bool,
    /// Whether a user may lower an impossible request. The only other accidents are full nodes and a stale cache, and
    /// removals by force in one setting, to limit the number of states.
    pub lowers: bool,
    /// Whether the API server drops allocated sizes, and so lets nobody lower a request. Only few accidents happen.
    pub drops_allocated: bool,
    /// Whether the claim's author writes arbitrary values. The only other accidents are those of leaders and
    /// administrators.
    pub tenant: Option<Tenant>,
    /// Whether the driver reports no sizes. The only other accidents are a lowered request and a stale cache.
    pub sizeless: bool,
    /// Whether a node reports arbitrary sizes. The other accidents are those of `lowers`.
    pub implausible_sizes: bool,
}

/// Values that the author of a claim writes, besides allowed sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tenant {
    /// Fields about the binding.
    Binds,
    /// Fields about provisioner and node.
    Chooses,
    /// A size beyond the class's limit, without a webhook.
    Outgrows,
}

impl Setting {
    /// All settings.
    pub fn all() -> impl Iterator<Item = Setting> {
        let bits = |number: u8| {
            let bit = move |place: u8| number >> place & 1 == 1;
            Setting {
                late_binding: bit(0),
                deletes: bit(1),
                node_expansion_required: bit(2),
                expander: bit(3),
                lowers: bit(4),
                drops_allocated: false,
                tenant: None,
                sizeless: false,
                implausible_sizes: false,
            }
        };
        let of_tenants = [Tenant::Binds, Tenant::Chooses]
            .into_iter()
            .flat_map(move |tenant| {
                (0..4).map(move |number| Setting {
                    tenant: Some(tenant),
                    ..bits(number)
                })
            });
        let outgrown = (0..4).map(move |number| Setting {
            tenant: Some(Tenant::Outgrows),
            ..bits(0b00010 | number << 2)
        });
        let sizeless = (0..4).map(move |number| Setting {
            sizeless: true,
            // With a file system that grows, or without any growth.
            ..bits(0b10100 | number << 2 & 0b01000 | number & 1)
        });
        let implausible_sizes = (0..4).map(move |number| Setting {
            implausible_sizes: true,
            ..bits(0b10010 | number << 2)
        });
        let dropped = (0..4).map(move |number| Setting {
            drops_allocated: true,
            ..bits(0b00010 | number << 2)
        });
        of_tenants
            .chain(dropped)
            .chain(outgrown)
            .chain(sizeless)
            .chain(implausible_sizes)
            .chain((0..32).map(bits))
    }

    /// Whether it is known if the node has answered for the ordered size. It is left out to limit the number of states
    /// where nothing less is ordered than before.
    pub(super) fn measures_again(&self) -> bool {
        (self.lowers || !self.deletes) && !self.implausible_sizes
    }

    /// Whether an administrator may remove an object by force.
    pub(super) fn has_force(&self) -> bool {
        let is_plain = !self.late_binding && !self.node_expansion_required && !self.expander;
        let lowers = is_plain && self.deletes && !self.implausible_sizes;
        !self.sizeless && (!self.lowers || lowers)
    }

    /// Whether only few accidents happen, to limit the number of states.
    pub(super) fn is_calm(&self) -> bool {
        self.lowers
            || self.implausible_sizes
            || self.drops_allocated
            || self.tenant.is_some()
            || self.sizeless
    }
}
