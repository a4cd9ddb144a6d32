//! Types that are read in place of an object, at the object's path.

/// Implements `Resource` for a type, with the kind and path of an object's type, and this metadata.
macro_rules! resource_as {
    (
        [$($generics:tt)*] $type:ty, $object:ty, $this:ident => $meta:expr, $meta_mut:expr
    ) => {
        impl<$($generics)*> kube::Resource for $type {
            type DynamicType = ();
            type Scope = <$object as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$object as kube::Resource>::kind(&())
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$object as kube::Resource>::group(&())
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$object as kube::Resource>::version(&())
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$object as kube::Resource>::plural(&())
            }
            fn meta(&self) -> &kube::api::ObjectMeta {
                let $this = self;
                $meta
            }
            fn meta_mut(&mut self) -> &mut kube::api::ObjectMeta {
                let $this = self;
                $meta_mut
            }
        }
    };
}

pub(crate) use resource_as;
