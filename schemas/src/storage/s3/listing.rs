//! Lists objects, page by page.

use std::collections::BTreeSet;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path as Key;
use object_store::{Extensions, ListResult, Result};

use super::Bucket;
use crate::storage::fault::lasting;

impl Bucket {
    /// Lists a directory: all objects below it or, if `is_shallow`, the objects and directories in
    /// it. Ends early once it has found `num_max` objects.
    pub(in super::super) async fn list(
        &self,
        dir: &Key,
        is_shallow: bool,
        num_max: usize,
    ) -> Result<ListResult> {
        let prefix = (!dir.as_ref().is_empty()).then(|| format!("{dir}/"));
        let mut found = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: Extensions::default(),
        };
        let mut pages = Pages::default();
        let mut token = None;
        loop {
            let options = PaginatedListOptions {
                delimiter: is_shallow.then(|| "/".into()),
                max_keys: (num_max < 1000).then_some(num_max),
                page_token: token,
                ..PaginatedListOptions::default()
            };
            let page = self
                .store
                .list_paginated(prefix.as_deref(), options)
                .await?;
            found.common_prefixes.extend(page.result.common_prefixes);
            found.objects.extend(page.result.objects);
            token = page.page_token.filter(|next| !next.is_empty());
            match &token {
                Some(token) if found.objects.len() < num_max => pages.add(token)?,
                _ => break,
            }
        }
        found.common_prefixes.sort();
        found.common_prefixes.dedup();
        Ok(found)
    }
}

/// Detects a server that sends a page again.
#[derive(Debug, Default)]
pub(super) struct Pages {
    tokens: BTreeSet<String>,
}

impl Pages {
    /// Records the token of the next page.
    ///
    /// # Errors
    ///
    /// If an earlier page had the same token.
    pub(super) fn add(&mut self, token: &str) -> Result<()> {
        if self.tokens.insert(token.to_owned()) {
            return Ok(());
        }
        let problem = "the server lists its objects without end: it repeats the token of a page";
        Err(lasting(problem.to_owned()))
    }
}
