//! Lists of many objects, read a page at a time.

use kube::{Api, api::ListParams};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Number of objects that a command reads at a time.
pub(crate) const PAGE_SIZE: u32 = 500;

/// Calls `show` with each object of a list. `page` selects the objects and the page size.
///
/// # Errors
/// When the list fails.
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
