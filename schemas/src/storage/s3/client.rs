//! The HTTP client of a bucket: counts requests, and keeps the reasons of a server's errors.

use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Result};
use serde::Deserialize;

use crate::error::root_cause;
use crate::storage::health::Health;

/// Greatest length of a server's code and message in an error, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// Makes HTTP clients for `object_store` whose requests are counted and checked.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: Arc<dyn HttpConnector>,
    health: Arc<Health>,
}

#[derive(Debug)]
struct Client {
    inner: HttpClient,
    health: Arc<Health>,
}

/// Body of a server's error.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Reason {
    code: String,
    message: String,
}

impl Connector {
    /// Wraps another connector.
    pub(super) fn over(inner: impl HttpConnector, health: &Arc<Health>) -> Self {
        Self {
            inner: Arc::new(inner),
            health: Arc::clone(health),
        }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(Client {
            inner: self.inner.connect(options)?,
            health: Arc::clone(&self.health),
        }))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let refused = |problem: String| {
            // A request with an error of this kind is not repeated.
            HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(problem))
        };
        if self.health.is_spent() {
            return Err(refused(self.health.problem()));
        }
        // The inner client panics on an invalid URL.
        if url::Url::parse(&request.uri().to_string()).is_err() {
            return Err(refused("the server's name gives no valid URL".to_owned()));
        }
        let answer = async { with_reason(self.inner.execute(request).await?).await };
        self.health.watch(answer, fault).await
    }
}

/// Returns the fault of an answer; none if another attempt would get the same answer.
fn fault(answer: &Result<HttpResponse, HttpError>) -> Option<String> {
    match answer {
        Ok(response) => {
            let status = response.status();
            let may_pass = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            may_pass.then(|| format!("the server answered {status}"))
        }
        Err(error) => {
            let cause = root_cause(error);
            Some(cause.map_or_else(|| error.to_string(), ToString::to_string))
        }
    }
}

/// Replaces the body of an error by its code and message on one line: errors of `object_store` end
/// with the body. The rest of the body is left out, since it may show a signature.
async fn with_reason(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return Ok(response);
    }
    let (mut parts, body) = response.into_parts();
    let reason = reason(&body.bytes().await?);
    parts.headers.remove(CONTENT_LENGTH);
    Ok(HttpResponse::from_parts(
        parts,
        HttpResponseBody::from(reason),
    ))
}

fn reason(body: &[u8]) -> String {
    let Reason { code, message } = quick_xml::de::from_reader(body).unwrap_or_default();
    let words = [code, message].join(": ");
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut line = words.join(" ");
    line = line.trim_matches([':', ' ']).to_owned();
    line.truncate(line.floor_char_boundary(REASON_BYTES_MAX));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_code_and_message_alone() {
        let check = |body: &str, expected: &str| assert_eq!(reason(body.as_bytes()), expected);
        check(
            "<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>They \
             differ.\nCheck</Message><StringToSign>AWS4-HMAC</StringToSign></Error>",
            "SignatureDoesNotMatch: They differ. Check",
        );
        check("<Error><Code>NoSuchBucket</Code></Error>", "NoSuchBucket");
        check("<html><body>a proxy</body></html>", "");
        check("", "");
        let long = format!(
            "<Error><Code>A</Code><Message>{}</Message></Error>",
            "é".repeat(999)
        );
        assert!(reason(long.as_bytes()).len() <= REASON_BYTES_MAX);
    }
}
