//! What the nodes' agents report.

use super::Row;
use crate::{
    api::v1alpha1::{StorageNode, StorageNodeStatus},
    client::{MaybePartial, paginate},
};
use anyhow::{Context, Result};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::collections::BTreeMap;

/// The reports by node.
pub(super) struct Agents {
    /// A report that is not understood has no value.
    reports: BTreeMap<String, Option<StorageNodeStatus>>,
    /// The report of an agent that was never heard of.
    none: StorageNodeStatus,
}

impl Agents {
    pub(super) async fn list(client: &Client) -> Result<Self> {
        let nodes: Api<MaybePartial<StorageNode>> = Api::all(client.clone());
        let pages = ListParams::default().limit(paginate::PAGE_SIZE);
        let mut reports = BTreeMap::new();
        let listed = paginate::each(&nodes, pages, |node| {
            let report = node.object().map(|node| node.status.clone());
            reports.insert(node.name_any(), report);
        });
        listed.await.context("list the nodes' agents")?;
        Ok(Agents {
            reports,
            none: StorageNodeStatus::default(),
        })
    }

    /// The report of a node's agent, unless it is not understood.
    pub(super) fn report(&self, node: &str) -> Option<&StorageNodeStatus> {
        match self.reports.get(node) {
            Some(report) => report.as_ref(),
            None => Some(&self.none),
        }
    }

    /// All reports that are understood.
    pub(super) fn reports(&self) -> impl Iterator<Item = &StorageNodeStatus> + Clone {
        self.reports.values().flatten()
    }

    /// The rows of those that are not.
    pub(super) fn unread(&self) -> impl Iterator<Item = Row> {
        let unread = self.reports.iter().filter(|(_, report)| report.is_none());
        unread.map(|(node, _)| Row {
            node: node.clone(),
            ..Row::not_understood("storagenode", node)
        })
    }
}
