//! Invalid settings, and servers that break the protocol.

mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStoreExt as _};

use super::client::Connector;
use super::settings::Surroundings;
use super::*;
use crate::dataset::{Opened, Output};
use crate::error::{ErrorKind, SchemaError};
use crate::storage::fault::plain;
use crate::storage::runtime::{Pending, guarded, start, wait};
use crate::storage::store::{Store, authority_problem};
use crate::storage::{entries, is_dir, read, size, write_whole};
pub(crate) use server::Server;

const KEYS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "id"),
    ("AWS_SECRET_ACCESS_KEY", "secret"),
];

fn around(vars: &[(&str, &str)]) -> Surroundings {
    let vars = vars
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Surroundings::new(vars, None)
}

/// Registers a test server for paths of `s3://BUCKET`.
pub(crate) fn register(bucket: &str, server: &Server, vars: &[(&str, &str)]) -> PathBuf {
    let mut options = StorageOptions::default();
    options.s3.endpoint = Some(server.url.clone());
    let settings = Settings::of(&options, &around(vars)).unwrap();
    let health = Arc::new(Health::new(settings.endpoint(), options.faults_max));
    let opened = Bucket::open(bucket, settings, &options, &health).unwrap();
    let root = format!("s3://{bucket}");
    Store::of_bucket(opened, health, Duration::from_secs(5)).register(&root);
    PathBuf::from(root)
}

pub(crate) fn register_with_keys(bucket: &str, server: &Server) -> PathBuf {
    register(bucket, server, &KEYS)
}

fn xml(code: &str) -> Vec<u8> {
    let text = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code></Error>");
    text.into_bytes()
}

/// Checks the endpoint of some settings, or their error.
fn check(vars: &[(&str, &str)], endpoint: Option<&str>, expected: &str) {
    let mut options = StorageOptions::default();
    options.s3.endpoint = endpoint.map(str::to_owned);
    let found = match Settings::of(&options, &around(vars)) {
        Ok(settings) => settings.endpoint(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Usage);
            error.to_string()
        }
    };
    assert_eq!(found, expected, "{vars:?} {endpoint:?}");
}

#[test]
fn settings_that_are_none_are_named() {
    let allowed = "allowed is a URL with its scheme, such as http://127.0.0.1:9000";
    let of_job = |url: &str| {
        check(
            &[],
            Some(url),
            &format!("`storage.s3.endpoint`: is {url:?}; {allowed}"),
        )
    };
    for url in [
        "127.0.0.1:9000",
        "",
        "http://",
        "ftp://host",
        "http://a b",
        "http://[::1",
    ] {
        of_job(url);
    }
    check(
        &[("AWS_ENDPOINT_URL", "minio:9000")],
        None,
        &format!("`AWS_ENDPOINT_URL`: is \"minio:9000\"; {allowed}"),
    );
    check(
        &[("AWS_REGION", "eu west")],
        None,
        "`AWS_REGION`: is \"eu west\"; allowed are letters, digits and `-`",
    );
    check(
        &[("AWS_SESSION_TOKEN", "one\ntwo")],
        None,
        "`AWS_SESSION_TOKEN`: holds a blank, a line break or a letter that is not ASCII",
    );
    check(
        &[],
        Some("http://me:secret@host"),
        "`storage.s3.endpoint`: holds a user name or password; keys belong into the environment",
    );
}

#[test]
fn blank_variables_count_as_not_set() {
    let amazon = "https://s3.us-east-1.amazonaws.com";
    check(&[("AWS_ENDPOINT_URL", "")], None, amazon);
    check(&[("AWS_ENDPOINT_URL", "  ")], None, amazon);
    check(
        &[("AWS_REGION", " "), ("AWS_DEFAULT_REGION", "eu-1")],
        None,
        "https://s3.eu-1.amazonaws.com",
    );
    // A secret of Kubernetes often ends with a line break.
    check(
        &[
            ("AWS_ACCESS_KEY_ID", "id\n"),
            ("AWS_SECRET_ACCESS_KEY", "key\n"),
        ],
        None,
        amazon,
    );
}

#[test]
fn the_job_file_comes_before_the_environment() {
    let vars = [
        ("AWS_ENDPOINT_URL", "http://one"),
        ("AWS_ENDPOINT_URL_S3", "http://two/"),
    ];
    check(&vars, None, "http://two");
    check(&vars, Some("https://three"), "https://three");
}

/// Builds each request as the real client does, then refuses it.
#[derive(Clone, Debug)]
struct Refusing;

impl HttpConnector for Refusing {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Refusing {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let _url: url::Url = request.uri().to_string().parse().unwrap();
        let problem = std::io::Error::other("refused");
        Err(HttpError::new(HttpErrorKind::Unknown, problem))
    }
}

/// Draws texts from pieces that are valid in URLs and pieces that are not.
struct Draw(u64);

impl Draw {
    fn next(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn text(&mut self) -> String {
        const PIECES: [&str; 40] = [
            "http://",
            "https://",
            "s3://",
            "://",
            ":",
            "/",
            "//",
            "?",
            "#",
            "@",
            "[",
            "]",
            "[::1]",
            "%",
            "%zz",
            "%00",
            " ",
            "\n",
            "\t",
            "\u{7f}",
            "\0",
            "é",
            "\u{202e}",
            ".",
            "..",
            "-",
            "_",
            "a",
            "bucket",
            "host",
            "127.0.0.1",
            "9000",
            "99999",
            "xn--",
            "&",
            "=",
            "\\",
            "|",
            "{",
            "\"",
        ];
        let num = self.next(7);
        (0..num).map(|_| PIECES[self.next(PIECES.len())]).collect()
    }
}

/// Variables of the environment that may hold anything.
const NAMES: [&str; 19] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_SESSION_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ENDPOINT_URL_STS",
    "AWS_METADATA_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_CONDITIONAL_PUT",
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_S3_EXPRESS",
    "AWS_REQUEST_PAYER",
    "AWS_COPY_IF_NOT_EXISTS",
];

/// A bucket with settings that are drawn; none if they are refused.
fn drawn_bucket(draw: &mut Draw) -> Option<Bucket> {
    let mut vars: Vec<(&str, String)> = KEYS.map(|(name, key)| (name, key.to_owned())).into();
    for _ in 0..draw.next(3) {
        vars.push((NAMES[draw.next(NAMES.len())], draw.text()));
    }
    let texts = vars.iter().map(|(name, text)| (*name, text.as_str()));
    let around = around(&texts.collect::<Vec<_>>());
    let mut options = StorageOptions {
        retries: 0,
        ..StorageOptions::default()
    };
    options.s3.endpoint = (draw.next(2) == 0).then(|| draw.text());
    options.s3.region = (draw.next(4) == 0).then(|| draw.text());
    options.s3.path_style = (draw.next(2) == 0).then_some(false);
    options.check().ok();
    let name = match draw.next(2) {
        0 => draw.text(),
        _ => "bucket".to_owned(),
    };
    let settings = Settings::of(&options, &around).ok()?;
    let health = Arc::new(Health::new(settings.endpoint(), 0));
    if authority_problem("s3", &name).is_some() {
        return None;
    }
    let connector = Connector::over(Refusing, &health);
    Bucket::open_with(&name, settings, &options, connector).ok()
}

/// The key of a path that is drawn; none if it is refused.
fn drawn_key(draw: &mut Draw) -> Option<Key> {
    let text = format!("s3://{}/{}", draw.text(), draw.text());
    let path = crate::path::resolve("key", Path::new("/base"), Path::new(&text)).ok()?;
    let (_, key) = path.to_str()?["s3://".len()..].split_once('/')?;
    Key::parse(key).ok()
}

#[test]
fn no_setting_and_no_path_panics() {
    let mut draw = Draw(1);
    let mut num_asked = 0;
    for _ in 0..20_000 {
        let key = drawn_key(&mut draw).unwrap_or_else(|| Key::from("key"));
        let Some(bucket) = drawn_bucket(&mut draw) else {
            continue;
        };
        num_asked += 1;
        let asked: Pending<(), object_store::Error> = start(async move {
            assert!(bucket.store.head(&key).await.is_err());
            assert!(bucket.store.put(&key, "body".into()).await.is_err());
            assert!(bucket.list(&key, true, 1).await.is_err());
            assert!(bucket.abort_unfinished(&key, true).await.is_err());
            Ok(())
        });
        wait(asked).unwrap();
    }
    assert!(num_asked > 1000, "{num_asked}");
}

#[test]
fn a_panic_of_the_client_becomes_an_error() {
    let zero = std::hint::black_box(0);
    let asked = start(guarded(async move {
        assert!(zero == 1, "no URL");
        Ok(())
    }));
    let error = plain(wait(asked).unwrap_err());
    assert_eq!(
        error.to_string(),
        "the client of the store panicked: no URL"
    );
}

#[test]
fn the_code_of_the_server_is_told() {
    let server = Server::start(|_request| (403, Vec::new(), xml("SignatureDoesNotMatch")));
    let path = register_with_keys("denied", &server).join("file");
    // The answer to the first request of each call has no body.
    for error in [
        size(&path).unwrap_err(),
        read(&path).unwrap_err(),
        is_dir(&path).unwrap_err(),
    ] {
        let SchemaError::Io { source, .. } = &error else {
            panic!("{error}")
        };
        let expected = "the server answered 403 Forbidden: SignatureDoesNotMatch";
        assert_eq!(source.to_string(), expected, "{error}");
    }
    let absent = Server::start(|_request| (404, Vec::new(), xml("NoSuchBucket")));
    let dir = register_with_keys("absent", &absent).join("dir");
    for error in [
        is_dir(&dir).unwrap_err(),
        write_whole(&dir, b"a").unwrap_err(),
    ] {
        let SchemaError::Io { source, .. } = &error else {
            panic!("{error}")
        };
        assert!(
            source.to_string().ends_with("404 Not Found: NoSuchBucket"),
            "{source}"
        );
    }
}

#[test]
fn a_job_without_credentials_is_told_how_to_give_them() {
    let metadata = Server::start(|_request| (404, Vec::new(), Vec::new()));
    let server = Server::start(|_request| (200, Vec::new(), Vec::new()));
    let vars = [("AWS_METADATA_ENDPOINT", metadata.url.as_str())];
    let path = register("keyless", &server, &vars).join("file");
    let SchemaError::Io { source, .. } = size(&path).unwrap_err() else {
        panic!()
    };
    let text = source.to_string();
    for part in [
        "no credentials for S3: set AWS_ACCESS_KEY_ID",
        "storage.s3.profile",
        "metadata",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(server.num_requests(""), 0);
}

#[test]
fn minutes_of_a_busy_server_are_waited_out() {
    let num_faults = StorageOptions::default().retries - 1;
    let num_asked = AtomicUsize::new(0);
    let server = Server::start(move |_request| {
        match num_asked.fetch_add(1, Ordering::Relaxed) < num_faults {
            true => (503, Vec::new(), xml("SlowDown")),
            false => (200, vec!["etag: \"1\"".to_owned()], b"all".to_vec()),
        }
    });
    let path = register_with_keys("busy", &server).join("file");
    assert_eq!(read(&path).unwrap().as_deref(), Some(&b"all"[..]));
    assert!(RETRIED_FOR >= Duration::from_secs(120));
}

#[test]
fn a_list_without_end_is_told() {
    let page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again\
                 </NextContinuationToken></ListBucketResult>";
    let server = Server::start(|_request| (200, Vec::new(), page.to_vec()));
    let path = register_with_keys("endless", &server).join("dir");
    for error in [entries(&path).unwrap_err(), is_dir(&path).unwrap_err()] {
        assert!(
            matches!(&error, SchemaError::Io { source, .. }
            if source.to_string().contains("lists its objects without end")),
            "{error}"
        );
    }
    assert_eq!(
        server.num_requests("GET"),
        4,
        "each list is ended by the second page"
    );
}

/// A store that sends no ETags, or only in answers to writes.
fn without_e_tags(tells_of_writes: bool) -> Server {
    let objects = Mutex::new(BTreeMap::new());
    Server::start(move |request| {
        let (method, rest) = request.line.split_once(' ').unwrap();
        let key = rest.split('?').next().unwrap().to_owned();
        let mut objects = objects.lock().unwrap();
        let e_tag = tells_of_writes.then(|| "etag: \"1\"".to_owned());
        let modified = "last-modified: Mon, 23 Nov 2026 00:00:00 GMT".to_owned();
        match method {
            "PUT" if request.head.iter().any(|line| line.starts_with("if-match")) => {
                (412, Vec::new(), Vec::new())
            }
            "PUT"
                if objects.contains_key(&key)
                    && request.head.contains(&"if-none-match: *".to_owned()) =>
            {
                (412, Vec::new(), Vec::new())
            }
            "PUT" => {
                objects.insert(key, request.body.clone());
                (200, e_tag.into_iter().collect(), Vec::new())
            }
            "DELETE" => {
                objects.remove(&key);
                (204, Vec::new(), Vec::new())
            }
            _ if rest.contains("?uploads") => (501, Vec::new(), Vec::new()),
            _ if rest.contains("list-type") => (200, Vec::new(), b"<ListBucketResult/>".to_vec()),
            _ => match objects.get(&key) {
                Some(bytes) => (200, vec![modified], bytes.clone()),
                None => (404, Vec::new(), xml("NoSuchKey")),
            },
        }
    })
}

fn open(dir: &Path) -> crate::Result<Opened> {
    Output::open(dir, "flatten", "f", false)
}

#[test]
fn a_store_without_e_tags_is_told_before_anything_is_written() {
    let dir = register_with_keys("untagged", &without_e_tags(false)).join("out");
    let error = open(&dir).unwrap_err();
    assert!(
        matches!(&error, SchemaError::Io { source, .. }
        if source.to_string().starts_with("the store gives no ETags")),
        "{error}"
    );
}

#[test]
fn a_lock_without_e_tag_is_held_and_not_taken_over() {
    let dir = register_with_keys("half-tagged", &without_e_tags(true)).join("out");
    let opened = open(&dir).unwrap();
    assert!(matches!(opened, Opened::Open(_)));
    drop(opened);
    let note = br#"{"token":7,"renewals":0,"host":"another","process":1,"started":null}"#;
    write_whole(&dir.join("_lock"), note).unwrap();
    let error = open(&dir).unwrap_err();
    assert!(
        matches!(&error, SchemaError::Io { source, .. }
        if source.to_string().contains("no ETags, so it cannot be taken over")),
        "{error}"
    );
}

#[test]
fn a_store_that_refuses_every_condition_is_told() {
    let server = Server::start(|request| match request.line.split(' ').next().unwrap() {
        "PUT" => (412, Vec::new(), xml("PreconditionFailed")),
        _ if request.line.contains("list-type") => {
            (200, Vec::new(), b"<ListBucketResult/>".to_vec())
        }
        _ => (404, Vec::new(), xml("NoSuchKey")),
    });
    let dir = register_with_keys("unconditional", &server).join("out");
    let error = open(&dir).unwrap_err();
    assert!(
        matches!(&error, SchemaError::Io { source, .. }
        if source.to_string().contains("keeps refusing the write")),
        "{error}"
    );
}
