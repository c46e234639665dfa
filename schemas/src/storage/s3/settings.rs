//! Settings of S3 from the job file, the environment and the user's profile, checked.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use ini::Ini;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use url::Url;

use crate::error::{Result, SchemaError};
use crate::storage::StorageOptions;

/// Server of a container's credentials; `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` is a path on it.
const CONTAINER: &str = "http://169.254.170.2";

/// All settings of S3 but the bucket.
#[derive(Debug)]
pub(in super::super) struct Settings {
    pub(super) builder: AmazonS3Builder,
    /// Whether the user sets if the signature includes a hash of the body.
    pub(super) chooses_hashing: bool,
}

/// Settings outside the job file.
pub(super) struct Surroundings {
    /// Variables of the environment, sorted by name.
    vars: Vec<(String, String)>,
    home: Option<PathBuf>,
}

/// A user's profile: the pairs of its sections in `credentials` and `config`.
struct Profile {
    name: String,
    pairs: Vec<(String, String)>,
}

impl Surroundings {
    /// Takes variables of the environment; a blank one counts as not set, as in Amazon's own tools.
    pub(super) fn new(
        vars: impl IntoIterator<Item = (String, String)>,
        home: Option<PathBuf>,
    ) -> Self {
        let trimmed = vars
            .into_iter()
            .map(|(name, value)| (name, value.trim().to_owned()));
        let mut set: Vec<_> = trimmed.filter(|(_, value)| !value.is_empty()).collect();
        set.sort();
        Self { vars: set, home }
    }

    fn of_process() -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let vars = env::vars_os().filter_map(text);
        let vars = vars.filter(|(name, _)| name.starts_with("AWS_"));
        Self::new(vars, env::home_dir())
    }

    fn var(&self, name: &str) -> Option<&str> {
        let found = self.vars.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the profile to use; none if keys of the environment take precedence.
    fn profile(&self, options: &StorageOptions) -> Result<Option<Profile>> {
        let in_job = options.s3.profile.as_deref();
        let named = in_job.or_else(|| self.var("AWS_PROFILE"));
        let has_keys = self.var("AWS_ACCESS_KEY_ID").is_some();
        let has_token = self.var("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && named.is_none();
        if in_job.is_none() && (has_keys || has_token) {
            return Ok(None);
        }
        let name = named.unwrap_or("default").to_owned();
        let mut pairs = self.section("AWS_SHARED_CREDENTIALS_FILE", "credentials", &name)?;
        let in_config = match name.as_str() {
            "default" => name.clone(),
            _ => format!("profile {name}"),
        };
        pairs.extend(self.section("AWS_CONFIG_FILE", "config", &in_config)?);
        if named.is_some() && pairs.is_empty() {
            let key = in_job.map_or("AWS_PROFILE", |_| "storage.s3.profile");
            let problem = format!("no profile `{name}` in ~/.aws/credentials or ~/.aws/config");
            return Err(refused(key, problem));
        }
        let profile = Profile { name, pairs };
        let elsewhere = ["role_arn", "sso_session", "credential_process"];
        if elsewhere.iter().any(|key| profile.value(key).is_some())
            && profile.value("aws_access_key_id").is_none()
        {
            let problem = "has no keys of its own; roles, single sign-on and programs are not \
                           supported: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and \
                           AWS_SESSION_TOKEN";
            return Err(refused(&format!("profile {}", profile.name), problem));
        }
        Ok(Some(profile))
    }

    /// Reads a section of one of Amazon's files; empty if it does not exist.
    fn section(&self, variable: &str, file: &str, section: &str) -> Result<Vec<(String, String)>> {
        let path = match (self.var(variable), &self.home) {
            (Some(path), _) => PathBuf::from(path),
            (None, Some(home)) => home.join(".aws").join(file),
            (None, None) => return Ok(Vec::new()),
        };
        if !path.is_file() {
            return Ok(Vec::new());
        }
        // The error of the parser may show a line of the file, and with it a key.
        let unreadable = |_error| refused(&path.to_string_lossy(), "is no file of profiles");
        let ini = Ini::load_from_file(&path).map_err(unreadable)?;
        let found = ini.section(Some(section)).into_iter();
        let pairs = found.flat_map(|found| found.iter());
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Ok(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }
}

impl Profile {
    fn value(&self, key: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

impl Settings {
    /// Returns the settings of this process.
    pub(in super::super) fn of_process(options: &StorageOptions) -> Result<Self> {
        Self::of(options, &Surroundings::of_process())
    }

    /// Combines the settings of the job file, which takes precedence, the environment and the
    /// user's profile.
    ///
    /// # Errors
    ///
    /// Names the invalid setting, and shows no secret.
    pub(super) fn of(options: &StorageOptions, around: &Surroundings) -> Result<Self> {
        let mut builder = AmazonS3Builder::new();
        let mut endpoint = None;
        let mut chooses_hashing = false;
        for (name, value) in &around.vars {
            let Ok(key) = name.to_lowercase().parse() else {
                continue;
            };
            match key {
                // Variables are sorted by name, so the one for S3 alone comes last and takes
                // precedence.
                Key::Endpoint | Key::S3Endpoint => endpoint = Some((name.clone(), value.clone())),
                _ => builder = configure(builder, name, key, value)?,
            }
            chooses_hashing |= key == Key::UnsignedPayload;
        }
        if let Some(profile) = around.profile(options)? {
            builder = profile_keys(builder, &profile)?;
            endpoint = endpoint.or_else(|| {
                let url = profile.value("endpoint_url")?;
                Some((
                    format!("endpoint_url of profile {}", profile.name),
                    url.to_owned(),
                ))
            });
        }
        if let Some(url) = &options.s3.endpoint {
            endpoint = Some(("storage.s3.endpoint".to_owned(), url.clone()));
        }
        if let Some((name, url)) = endpoint {
            builder = builder.with_endpoint(check_endpoint(&name, &url)?);
        }
        if let Some(region) = &options.s3.region {
            builder = configure(builder, "storage.s3.region", Key::Region, region)?;
        }
        if let Some(path_style) = options.s3.path_style {
            builder = builder.with_virtual_hosted_style_request(!path_style);
        }
        Ok(Self {
            builder,
            chooses_hashing,
        })
    }

    /// Returns the URL of the server.
    pub(in super::super) fn endpoint(&self) -> String {
        let value = |key| self.builder.get_config_value(&key);
        value(Key::Endpoint).unwrap_or_else(|| {
            let region = value(Key::Region).unwrap_or_else(|| "us-east-1".to_owned());
            format!("https://s3.{region}.amazonaws.com")
        })
    }
}

/// Sets keys and region of a profile; the environment's region takes precedence.
fn profile_keys(mut builder: AmazonS3Builder, profile: &Profile) -> Result<AmazonS3Builder> {
    for (name, key) in [
        ("aws_access_key_id", Key::AccessKeyId),
        ("aws_secret_access_key", Key::SecretAccessKey),
        ("aws_session_token", Key::Token),
        ("region", Key::Region),
    ] {
        let is_known = key == Key::Region && builder.get_config_value(&key).is_some();
        if let Some(value) = profile.value(name).filter(|_| !is_known) {
            let name = format!("{name} of profile {}", profile.name);
            builder = configure(builder, &name, key, value)?;
        }
    }
    Ok(builder)
}

/// Checks a value and sets it: `object_store` panics on a value with which it cannot build a
/// request.
fn configure(
    builder: AmazonS3Builder,
    name: &str,
    key: Key,
    value: &str,
) -> Result<AmazonS3Builder> {
    match key {
        Key::AccessKeyId | Key::SecretAccessKey | Key::Token
            if !value.chars().all(|c| c.is_ascii_graphic()) =>
        {
            let problem = "holds a blank, a line break or a letter that is not ASCII";
            return Err(refused(name, problem));
        }
        Key::Region | Key::DefaultRegion if !is_region(value) => {
            let problem = format!("is {value:?}; allowed are letters, digits and `-`");
            return Err(refused(name, problem));
        }
        Key::StsEndpoint | Key::MetadataEndpoint | Key::ContainerCredentialsFullUri => {
            check_endpoint(name, value)?;
        }
        Key::ContainerCredentialsRelativeUri => {
            check_endpoint(name, &format!("{CONTAINER}{value}"))?;
        }
        _ => {}
    }
    Ok(builder.with_config(key, value))
}

/// Tells whether a text can be a region, which becomes a part of a host name. A host name's part
/// that starts with `xn--` encodes letters that are not ASCII.
fn is_region(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !text.is_empty() && !text.starts_with("xn--") && text.chars().all(is_allowed)
}

/// Returns the URL of a server in its normal form.
///
/// # Errors
///
/// Names the setting, and the allowed values.
pub(in super::super) fn check_endpoint(name: &str, url: &str) -> Result<String> {
    let text = url.trim();
    if text.contains('@') {
        let problem = "holds a user name or password; keys belong into the environment";
        return Err(refused(name, problem));
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%?=&".contains(c);
    let has_scheme = ["http://", "https://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    let parsed = Url::parse(text).ok().filter(|parsed| {
        let has_host = parsed.host_str().is_some_and(|host| !host.is_empty());
        has_host && http::Uri::try_from(parsed.as_str()).is_ok()
    });
    match parsed {
        Some(parsed) if has_scheme && text.chars().all(is_allowed) => {
            Ok(parsed.as_str().trim_end_matches('/').to_owned())
        }
        _ => {
            let problem = format!(
                "is {text:?}; allowed is a URL with its scheme, such as http://127.0.0.1:9000"
            );
            Err(refused(name, problem))
        }
    }
}

fn refused(key: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError::Key {
        key: key.to_owned(),
        problem: problem.into(),
    }
}
