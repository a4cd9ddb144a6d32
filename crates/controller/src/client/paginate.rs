//! Lists of many objects, read a page at a time.

use kube::{Api, api::ListParams};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// The objects that a command reads at a time.
pub(crate) const PAGE_SIZE: u32 = 500;

/// Shows each object of a list; `page` says of which, and how many are read at a time.
///
/// # Errors
/// When the API server does not list them.
pub(crate) async fn each<K>(
    api: &Api<K>,
    mut page: ListParams,
    mut show: impl FnMut(&K),
) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    loop {
        let list = api.list(&page).await?;
        list.items.iter().for_each(&mut show);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}
