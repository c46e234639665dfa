//! Finds and aborts unfinished uploads.

use std::time::Duration;

use object_store::client::HttpRequestBody;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{Error, Result};
use serde::Deserialize;

use super::Bucket;
use super::listing::Pages;
use crate::storage::fault::generic;

/// Seconds for which a signed URL is valid.
const SIGNED_SECONDS: u64 = 300;

/// An unfinished upload.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
struct Unfinished {
    key: String,
    upload_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct UploadList {
    #[serde(rename = "Upload")]
    uploads: Vec<Unfinished>,
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
}

impl Bucket {
    /// Aborts the unfinished uploads of an object, or of all objects below a directory.
    pub(in super::super) async fn abort_unfinished(&self, key: &Key, is_dir: bool) -> Result<()> {
        let prefix = if is_dir {
            format!("{key}/")
        } else {
            key.to_string()
        };
        for upload in self.unfinished(&prefix).await? {
            if !is_dir && upload.key != prefix {
                continue;
            }
            let found = Key::parse(upload.key)?;
            match self.store.abort_multipart(&found, &upload.upload_id).await {
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lists unfinished uploads of objects whose keys start with `prefix`.
    ///
    /// `object_store` has no such request. MinIO accepts only whole keys.
    async fn unfinished(&self, prefix: &str) -> Result<Vec<Unfinished>> {
        let mut found = Vec::new();
        let mut markers = Vec::new();
        let mut pages = Pages::default();
        loop {
            let mut query = vec![
                ("uploads".to_owned(), String::new()),
                ("prefix".to_owned(), prefix.to_owned()),
            ];
            query.append(&mut markers);
            let page = self.unfinished_page(query).await?;
            found.extend(page.uploads);
            if !page.is_truncated || page.next_key_marker.is_empty() {
                return Ok(found);
            }
            pages.add(&format!(
                "{}\n{}",
                page.next_key_marker, page.next_upload_id_marker
            ))?;
            markers = vec![
                ("key-marker".to_owned(), page.next_key_marker),
                ("upload-id-marker".to_owned(), page.next_upload_id_marker),
            ];
        }
    }

    async fn unfinished_page(&self, query: Vec<(String, String)>) -> Result<UploadList> {
        let options = SignedUrlOptions::new().with_query(query);
        let valid = Duration::from_secs(SIGNED_SECONDS);
        let bucket = Key::default();
        let url = self
            .store
            .signed_url_opts(http::Method::GET, &bucket, valid, &options)
            .await?;
        // The URL holds a signature, so no error may show it.
        let request = http::Request::get(url.as_str())
            .body(HttpRequestBody::empty())
            .map_err(|_error| generic("the request to list uploads cannot be built".to_owned()))?;
        let unreadable = |error: &dyn std::error::Error| {
            generic(format!("the list of uploads cannot be read: {error}"))
        };
        let response = self.http.execute(request).await;
        let response = response.map_err(|error| unreadable(&error))?;
        let status = response.status();
        if status == http::StatusCode::NOT_IMPLEMENTED {
            // Such a server removes them on its own.
            return Ok(UploadList::default());
        }
        let body = response.into_body().bytes().await;
        let body = body.map_err(|error| unreadable(&error))?;
        if !status.is_success() {
            let reason = String::from_utf8_lossy(&body);
            return Err(generic(format!(
                "uploads cannot be listed: {status}: {reason}"
            )));
        }
        quick_xml::de::from_reader(body.as_ref()).map_err(|error| unreadable(&error))
    }
}
