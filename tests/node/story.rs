//! Declares a story, a function of a backend, for each backend.

/// A story on one backend.
macro_rules! story_on {
    (@ $prefix:literal $needs:expr, $backend:expr, $promise:literal $story:expr) => {
        flexvol_testing::Test {
            name: concat!($prefix, $promise),
            needs: $needs,
            run: |points| {
                let story: fn(crate::node::Backend, &flexvol_testing::Points) = $story;
                story($backend, points);
            },
        }
    };
    (loop $($rest:tt)+) => {
        crate::story::story_on!(@ "loop: " crate::node::LOOP, crate::node::Backend::Loop, $($rest)+)
    };
    (sparse_loop $($rest:tt)+) => {
        crate::story::story_on!(@ "loop, thin: " crate::node::LOOP, crate::node::Backend::SparseLoop, $($rest)+)
    };
    (xfs $($rest:tt)+) => {
        crate::story::story_on!(@ "dir on xfs: " crate::dir::XFS, crate::node::Backend::Dir("xfs"), $($rest)+)
    };
    (ext4 $($rest:tt)+) => {
        crate::story::story_on!(@ "dir on ext4: " crate::dir::EXT4, crate::node::Backend::Dir("ext4"), $($rest)+)
    };
    (btrfs $($rest:tt)+) => {
        crate::story::story_on!(@ "dir on btrfs: " crate::dir::BTRFS, crate::node::Backend::Dir("btrfs"), $($rest)+)
    };
    (lvm $($rest:tt)+) => {
        crate::story::story_on!(@ "lvm: " crate::lvm::NEEDS, crate::node::Backend::Lvm, $($rest)+)
    };
    (thin_lvm $($rest:tt)+) => {
        crate::story::story_on!(@ "lvm: thin: " crate::lvm::NEEDS, crate::node::Backend::ThinLvm, $($rest)+)
    };
    (hello_block $($rest:tt)+) => {
        crate::story::story_on!(@ "hello-block: " crate::node::LOOP, crate::node::Backend::HelloBlock, $($rest)+)
    };
    (hello_directory $($rest:tt)+) => {
        crate::story::story_on!(@ "hello-directory: " crate::node::ROOT, crate::node::Backend::HelloDirectory, $($rest)+)
    };
}
pub(crate) use story_on;

/// A list of stories, each a function of a backend, with their backends.
macro_rules! stories {
    (@each [$($backend:tt)+] $promise:literal $story:expr) => {
        &[$(crate::story::story_on!($backend $promise $story)),+]
    };
    ($list:ident: $($promise:literal, $backends:tt => $story:expr;)+) => {
        pub const $list: &[&[flexvol_testing::Test]] =
            &[$(crate::story::stories!(@each $backends $promise $story)),+];
    };
}
pub(crate) use stories;
