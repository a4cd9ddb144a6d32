//! What may happen in a world.

/// What does not change while a world lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// The scheduler chooses the node.
    pub late_binding: bool,
    /// The class says Delete, not Retain.
    pub deletes: bool,
    /// The driver has a file system to grow.
    pub node_expansion_required: bool,
    /// Kubernetes' own expander runs.
    pub expander: bool,
    /// A user may lower what could not be had. Then nothing else goes wrong but that nodes are full and
    /// an index is behind, or there would be too many states.
    pub lowers: bool,
    /// The claim's author writes what he may, and there is nothing else that goes wrong but leaders and
    /// administrators.
    pub tenant: Option<Tenant>,
    /// The driver tells no sizes. Then nothing else goes wrong but that a request is lowered, and an index is behind.
    pub sizeless: bool,
    /// A node says of storage what it likes. Then nothing else goes wrong but what goes wrong where a user lowers.
    pub implausible_sizes: bool,
}

/// What the author of a claim writes into it, beside a size that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tenant {
    /// What says what it is bound to.
    Binds,
    /// What says who shall make its volume, and where.
    Chooses,
    /// More than its class allows, and no webhook judges it.
    Outgrows,
}

impl Setting {
    /// Each of them.
    pub fn all() -> impl Iterator<Item = Setting> {
        let bits = |number: u8| {
            let bit = move |place: u8| number >> place & 1 == 1;
            Setting {
                late_binding: bit(0),
                deletes: bit(1),
                node_expansion_required: bit(2),
                expander: bit(3),
                lowers: bit(4),
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
            // A file system grows, or nobody grows it.
            ..bits(0b10100 | number << 2 & 0b01000 | number & 1)
        });
        let implausible_sizes = (0..4).map(move |number| Setting {
            implausible_sizes: true,
            ..bits(0b10010 | number << 2)
        });
        of_tenants
            .chain(outgrown)
            .chain(sizeless)
            .chain(implausible_sizes)
            .chain((0..32).map(bits))
    }

    /// A few things go wrong, and others do not, or there would be too many states.
    pub(super) fn is_calm(&self) -> bool {
        self.lowers || self.implausible_sizes || self.tenant.is_some() || self.sizeless
    }
}
