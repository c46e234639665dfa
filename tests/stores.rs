//! Whole jobs on stores: an S3 server in this process, a real S3 server, a real HDFS.
//!
//! The scripts in `tests/services/` start the last two, unless [`S3_SERVER`] and [`HDFS_SERVER`]
//! name running ones. Where Go or Java is missing, their tests are skipped (`needs.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use hdfs_native_object_store::HdfsObjectStoreBuilder;
use hyper::{Method, Request};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpConnector as _, HttpRequestBody, ReqwestConnector};
use object_store::path::Path as Key;
use object_store::signer::{SignedUrlOptions, Signer as _};
use object_store::{ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use tokio::runtime::Runtime;

use crate::fault_proxy::{FaultProxy, Plan};
use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes,
    f32_lists, kill, mix,
};
use crate::needs::{checkout, skip, slow, target_dir};
use crate::s3_server::S3Server;

/// Variable that is set if Amazon's variables name a real S3 server and its keys.
const S3_SERVER: &str = "GRAPHFLAT_TEST_S3";
/// Variable with the URL of a real HDFS.
const HDFS_SERVER: &str = "GRAPHFLAT_TEST_HDFS";
/// Variable with the number of runs with faults.
const FAULT_RUNS: &str = "GRAPHFLAT_TEST_FAULT_RUNS";
/// Exit code of a script that lacks a program.
const NOT_HERE: i32 = 3;
/// Bucket of the tests.
pub(crate) const BUCKET: &str = "graphflat";

/// Bytes of a part of an upload.
const UPLOAD_PART: usize = 8 << 20;
/// The outputs of the stages, in their order.
const STAGES: [&str; 4] = ["out/features", "out/model", "out/embeddings", "out/scores"];
/// The outputs of a job without `[score]`.
const OUTPUTS: &[&str] = STAGES.split_at(3).0;

/// What makes a generated job one of links: `[input.pairs]` and `[score]`. The listed pairs are a
/// table of their own.
const PAIRS: &str = "[input.pairs]\nfrom_edges = true\n\
     share = { train = 0.4, val = 0.1, test = 0.1 }\n\n";
const SCORE: &str = "[score]\noutput = \"out/scores\"\nrows_per_part = 25\ntop_k = 5\n\
     exclude_known = true\nevaluate = true\n\
     pairs = { path = \"listed.parquet\", src = \"src\", dst = \"dst\" }\n";

/// A directory of a store, for one test.
pub(crate) struct Store {
    /// URL of the directory.
    pub(crate) url: String,
    /// Environment of the program.
    pub(crate) env: Vec<(&'static str, String)>,
    client: Arc<dyn ObjectStore>,
    /// The client, if its server lists unfinished uploads.
    signer: Option<AmazonS3>,
    dir: Key,
    runtime: Runtime,
    /// The server of the store, if it runs in this process.
    _server: Option<S3Server>,
}

impl Store {
    pub(crate) fn s3_in_process(test: &str) -> Self {
        let server = S3Server::start();
        let (endpoint, keys) = (
            server.endpoint(),
            ["test".to_owned(), "secret-1234".to_owned()],
        );
        Self::s3(test, endpoint, keys, Some(server))
    }

    pub(crate) fn s3_server(test: &str) -> Option<Self> {
        static SERVER: OnceLock<Option<Lines>> = OnceLock::new();
        let lines = SERVER
            .get_or_init(|| service("minio", S3_SERVER))
            .as_ref()?;
        let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| lines[name].clone());
        Some(Self::s3(
            test,
            lines["AWS_ENDPOINT_URL"].clone(),
            keys,
            None,
        ))
    }

    fn s3(test: &str, endpoint: String, keys: [String; 2], server: Option<S3Server>) -> Self {
        let client = AmazonS3Builder::new()
            .with_endpoint(&endpoint)
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(BUCKET)
            .with_access_key_id(&keys[0])
            .with_secret_access_key(&keys[1])
            .build()
            .unwrap();
        let signer = server.is_none().then(|| client.clone());
        let [id, secret] = keys;
        let env = vec![
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", id),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ];
        let root = format!("s3://{BUCKET}");
        Self {
            signer,
            _server: server,
            ..Self::new(test, &root, env, Arc::new(client))
        }
    }

    pub(crate) fn hdfs(test: &str) -> Option<Self> {
        static SERVER: OnceLock<Option<Lines>> = OnceLock::new();
        let lines = SERVER
            .get_or_init(|| service("hdfs", HDFS_SERVER))
            .as_ref()?;
        let url = &lines[HDFS_SERVER];
        let client = HdfsObjectStoreBuilder::new().with_url(url).build().unwrap();
        Some(Self::new(test, url, Vec::new(), Arc::new(client)))
    }

    fn new(
        test: &str,
        root: &str,
        env: Vec<(&'static str, String)>,
        client: Arc<dyn ObjectStore>,
    ) -> Self {
        // Each run of the tests on one server has its own directory.
        let dir = format!("{test}-{}", std::process::id());
        Self {
            url: format!("{}/{dir}", root.trim_end_matches('/')),
            env,
            client,
            signer: None,
            dir: Key::from(dir),
            runtime: Runtime::new().unwrap(),
            _server: None,
        }
    }

    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        let key = self.key(name);
        let put = self.client.put(&key, bytes.into());
        self.runtime.block_on(put).unwrap();
    }

    /// Copies the tables of a bench into the store: a file, and a directory with Hive's partitions.
    pub(crate) fn put_tables(&self, bench: &Bench) {
        let read = |name: &str| std::fs::read(bench.path(name)).unwrap();
        self.put("graph/nodes.parquet", read("nodes.parquet"));
        self.put(
            "graph/edges/dt=2026-11-20/part-0.parquet",
            read("edges.parquet"),
        );
        self.put("graph/edges/_SUCCESS", Vec::new());
        if bench.path("listed.parquet").exists() {
            self.put("graph/listed.parquet", read("listed.parquet"));
        }
    }

    /// A job with its tables and outputs in the store.
    pub(crate) fn job(&self, job: &Job, outputs: &[&str]) -> Job {
        let url = &self.url;
        let job = outputs
            .iter()
            .fold(job.clone(), |job, output| {
                job.with(output, &format!("{url}/{output}"))
            })
            .with(
                "\"nodes.parquet\"",
                &format!("\"{url}/graph/nodes.parquet\""),
            )
            .with("\"edges.parquet\"", &format!("\"{url}/graph/edges\""));
        let listed = "\"listed.parquet\"";
        match job.0.contains(listed) {
            true => job.with(listed, &format!("\"{url}/graph/listed.parquet\"")),
            false => job,
        }
    }

    /// Returns the files below a directory by name.
    pub(crate) fn files(&self, below: &str) -> BTreeMap<String, Vec<u8>> {
        let read = async |key: &Key| self.client.get(key).await?.bytes().await;
        let with_bytes = |name: String| {
            let key = self.key(&format!("{below}/{name}"));
            match self.runtime.block_on(read(&key)) {
                // A killed run's last request renamed or removed the file meanwhile.
                Err(object_store::Error::NotFound { .. }) => None,
                bytes => Some((name, bytes.unwrap().to_vec())),
            }
        };
        let names = self.names(below).into_iter();
        names.filter_map(with_bytes).collect()
    }

    /// Lists the files below a directory; unlike [`Store::files`] also while a run writes there.
    fn names(&self, below: &str) -> BTreeSet<String> {
        let dir = self.key(below);
        let found = self.client.list(Some(&dir));
        let name = |meta: ObjectMeta| {
            let name: Key = meta.location.prefix_match(&dir).unwrap().collect();
            name.to_string()
        };
        let names = found.map_ok(name).try_collect();
        self.runtime.block_on(names).unwrap()
    }

    /// Returns the key of a path.
    fn key(&self, path: &str) -> Key {
        let parts = path.split('/');
        parts.fold(self.dir.clone(), |key, part| key.join(part))
    }

    /// Returns the data files of an output, as [`Bench::data_files`] does.
    fn data_files(&self, output: &str) -> BTreeMap<String, Vec<u8>> {
        let mut files = self.files(output);
        files.retain(|name, _| is_data(name));
        files
    }

    pub(crate) fn run(&self, bench: &Bench, job: &Job, args: &[&str]) -> Outcome {
        bench.write(job);
        Outcome::of(&self.command(bench, args).output().unwrap())
    }

    pub(crate) fn command(&self, bench: &Bench, args: &[&str]) -> Command {
        let mut command = bench.command(&[&["run", "job.toml", "--quiet"], args].concat());
        command.envs(self.env.iter().cloned());
        command
    }

    /// Counts the unfinished uploads of some files, if the server lists them.
    fn num_unfinished(&self, output: &str, files: &BTreeMap<String, Vec<u8>>) -> usize {
        let Some(signer) = &self.signer else { return 0 };
        let plain = ClientOptions::new().with_allow_http(true);
        let client = ReqwestConnector::default().connect(&plain).unwrap();
        let count = |name: &String| {
            // MinIO lists the uploads of one whole key only.
            let query = vec![
                ("uploads".to_owned(), String::new()),
                ("prefix".to_owned(), format!("{}/{output}/{name}", self.dir)),
            ];
            let options = SignedUrlOptions::new().with_query(query);
            let valid = Duration::from_secs(60);
            let (method, bucket) = (Method::GET, Key::default());
            let listed = self.runtime.block_on(async {
                let url = signer.signed_url_opts(method, &bucket, valid, &options);
                let request = Request::get(url.await.unwrap().as_str());
                let request = request.body(HttpRequestBody::empty()).unwrap();
                let response = client.execute(request).await.unwrap();
                assert!(response.status().is_success(), "{response:?}");
                response.into_body().bytes().await.unwrap()
            });
            String::from_utf8_lossy(&listed)
                .matches("<UploadId>")
                .count()
        };
        files.keys().map(count).sum()
    }

    pub(crate) fn remove(&self, below: &str) {
        for name in self.names(below) {
            let key = self.key(&format!("{below}/{name}"));
            self.runtime.block_on(self.client.delete(&key)).ok();
        }
    }
}

/// The lines that a script of `tests/services/` prints.
type Lines = BTreeMap<String, String>;

/// Starts a server that ends with this process, unless one runs; none if this machine cannot.
fn service(name: &str, variable: &str) -> Option<Lines> {
    if !slow() {
        return None;
    }
    if std::env::var_os(variable).is_some() {
        return Some(std::env::vars().collect());
    }
    let script = checkout().join(format!("tests/services/{name}.sh"));
    let services = target_dir().join("services");
    let dir = services.join(format!("test/{name}"));
    let started = Command::new(script)
        .arg("start")
        .arg(dir)
        .env("GRAPHFLAT_SERVICES", services)
        .env("GRAPHFLAT_SERVICE_OWNER", std::process::id().to_string())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    if started.status.code() == Some(NOT_HERE) {
        return skip(&format!("this machine cannot start {name}"));
    }
    assert!(
        started.status.success(),
        "{name} does not start: {started:?}"
    );
    let text = String::from_utf8(started.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('='));
    Some(
        lines
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    )
}

fn is_data(name: &str) -> bool {
    let is_hidden = |part: &str| part.starts_with(['_', '.']);
    let kinds = [
        ".parquet",
        ".safetensors",
        ".jsonl",
        "evaluation.json",
        "ranking.json",
    ];
    !name.split('/').any(is_hidden) && kinds.iter().any(|kind| name.ends_with(kind))
}

fn graph() -> Graph {
    Graph::new(150, IdKind::Utf8, FeatureKind::List).with_weights()
}

fn small_job(graph: &Graph) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN, INFER])
}

/// A job of links with all stages.
fn job_of_links(graph: &Graph) -> Job {
    let flatten = FLATTEN.replace("targets_per_part = 16", "pairs_per_part = 64");
    let train = TRAIN.replace("hidden = [8]", "hidden = [8, 8]");
    let job = Job::new(graph, &[PAIRS, &flatten, &train, INFER, SCORE]);
    job.with("label = \"label\"\nsplit = \"split\"\n", "")
}

/// The tables of a graph, and some of its edges as a list of pairs, which make two parts.
fn bench_of_links(graph: &Graph) -> Bench {
    let bench = Bench::new(graph);
    let listed = graph.edge_table().slice(0, 80);
    listed.write(&bench.path("listed.parquet"));
    bench
}

/// Runs a job on local files; returns its data files by output.
fn local_files(bench: &Bench, job: &Job, outputs: &[&str]) -> Vec<BTreeMap<String, Vec<u8>>> {
    bench.run(job, &[]).ok();
    let files = outputs.iter().map(|output| bench.data_files(output));
    let files = files.collect();
    bench.clear();
    files
}

#[track_caller]
fn assert_outputs(store: &Store, expected: &[BTreeMap<String, Vec<u8>>], what: &str) {
    for (output, wanted) in STAGES.iter().zip(expected) {
        assert_same_bytes(
            wanted,
            &store.data_files(output),
            &format!("{output}, {what}"),
        );
    }
}

/// Checks that a finished output holds exactly the files of its manifest.
#[track_caller]
pub(crate) fn assert_tidy(store: &Store, output: &str) {
    let files = store.files(output);
    let manifest: serde_json::Value = serde_json::from_slice(&files["_manifest.json"]).unwrap();
    let mut listed: BTreeSet<String> = ["_SUCCESS", "_manifest.json"].map(str::to_owned).into();
    for part in manifest["parts"].as_array().unwrap() {
        for file in part["files"].as_array().unwrap() {
            listed.insert(file["path"].as_str().unwrap().to_owned());
        }
    }
    let found: BTreeSet<String> = files.into_keys().collect();
    assert_eq!(found, listed, "{output}");
}

/// Checks that the whole job gives the bytes of local files, is not repeated, and can be inspected.
fn check_job(store: &Store) {
    let graph = graph();
    check_whole(store, &Bench::new(&graph), (&small_job(&graph), OUTPUTS));
}

/// Checks as [`check_job`] does, of a job of links, which also scores pairs.
fn check_scores(store: &Store) {
    let graph = graph();
    let (bench, local) = (bench_of_links(&graph), job_of_links(&graph));
    let expected = check_whole(store, &bench, (&local, &STAGES));
    // Several processes write the parts of the scores in turn.
    store.remove(STAGES[3]);
    let args = ["--stage", "score", "--processes", "3", "--workers", "1"];
    let job = globbed(&store.job(&local, &STAGES));
    store.run(&bench, &job, &args).ok();
    assert_outputs(store, &expected, "three processes");
    assert_tidy(store, STAGES[3]);
}

/// The job with its edge table found by a glob.
fn globbed(job: &Job) -> Job {
    job.with("graph/edges\"", "graph/*/dt=*/*.parquet\"")
}

/// Checks a job as [`check_job`] does; returns the data files of its outputs. The last run is that
/// of [`globbed`].
fn check_whole(
    store: &Store,
    bench: &Bench,
    (local, outputs): (&Job, &[&str]),
) -> Vec<BTreeMap<String, Vec<u8>>> {
    let expected = local_files(bench, local, outputs);
    store.put_tables(bench);
    let job = store.job(local, outputs);
    store.run(bench, &job, &[]).ok();
    assert_outputs(store, &expected, "first run");
    outputs.iter().for_each(|output| assert_tidy(store, output));

    // No work is repeated, even without the first run's `work_dir`.
    bench.clear();
    let before = store.files("out");
    store.run(bench, &job, &[]).ok();
    assert_eq!(before, store.files("out"));
    // A glob finds the same files; another plan is refused, and --fresh writes it.
    let globbed = globbed(&job);
    let other = globbed.with("seed = 7", "seed = 8");
    let refused = store.run(bench, &other, &[]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("holds the output of another plan"),
        "{}",
        refused.stderr
    );
    store.run(bench, &other, &["--fresh"]).ok();
    assert_ne!(before, store.files("out"));
    store.run(bench, &globbed, &["--fresh"]).ok();
    assert_outputs(store, &expected, "after --fresh");
    outputs.iter().for_each(|output| assert_tidy(store, output));

    for output in outputs {
        let mut command = bench.command(&["inspect", &format!("{}/{output}", store.url)]);
        let shown = Outcome::of(&command.envs(store.env.iter().cloned()).output().unwrap()).ok();
        assert!(shown.stdout.contains("fingerprint"), "{}", shown.stdout);
    }
    let wrong = job.with("graph/nodes.parquet", "graph/noodles.parquet");
    let outcome = store.run(bench, &wrong, &[]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let path = format!("{}/graph/noodles.parquet", store.url);
    assert!(outcome.stderr.contains(&path), "{}", outcome.stderr);
    expected
}

/// A job, its outputs, and the number of kills.
struct Killing {
    bench: Bench,
    /// The job on local files.
    job: Job,
    outputs: &'static [&'static str],
    /// Kills while an output below this directory is unfinished count.
    watched: &'static str,
    kills: usize,
}

impl Killing {
    /// The whole job, with small files.
    fn of_all(kills: usize, targets_per_part: usize) -> Self {
        let graph = Graph::new(600, IdKind::Int64, FeatureKind::List);
        let parts = format!("targets_per_part = {targets_per_part}");
        let flatten = FLATTEN.replace("targets_per_part = 16", &parts);
        Self {
            bench: Bench::new(&graph),
            job: Job::new(&graph, &[&flatten, TRAIN, INFER]),
            outputs: OUTPUTS,
            watched: "out",
            kills,
        }
    }

    /// A job of links, of which most kills come while scores are written.
    fn of_scores(kills: usize, rows_per_part: usize) -> Self {
        let graph = Graph::new(600, IdKind::Int64, FeatureKind::List);
        let rows = format!("rows_per_part = {rows_per_part}");
        let job = job_of_links(&graph).with("rows_per_part = 25", &rows);
        Self {
            bench: bench_of_links(&graph),
            job: job.with("pairs_per_part = 64", "pairs_per_part = 1000"),
            outputs: &STAGES,
            watched: "out/scores",
            kills,
        }
    }

    /// A flattening whose files are uploaded in several parts each.
    fn of_large_files(kills: usize) -> Self {
        let graph = Graph::new(600, IdKind::Int64, FeatureKind::List);
        let bench = Bench::new(&graph);
        let mut nodes = graph.nodes();
        let value = |row: u64, column| mix(row, column) as f32;
        let rows = (0..600).map(|row| (0..1024).map(|column| value(row, column)).collect());
        nodes.set("features", f32_lists(rows));
        nodes.write(&bench.path("nodes.parquet"));
        let flatten = FLATTEN
            .replace("shards", "rows")
            .replace("targets_per_part = 16", "targets_per_part = 300");
        Self {
            bench,
            job: Job::new(&graph, &[&flatten]),
            outputs: &OUTPUTS[..1],
            watched: "out",
            kills,
        }
    }
}

/// Checks that runs which are killed at random moments show no partial file, leave no other files,
/// and end with the same bytes.
fn check_kills(store: &Store, killing: &Killing) {
    let Killing { bench, outputs, .. } = killing;
    let expected = local_files(bench, &killing.job, outputs);
    let sizes = expected[0].values().map(Vec::len);
    let is_large = outputs.len() == 1;
    assert_eq!(sizes.min() > Some(UPLOAD_PART), is_large);
    store.put_tables(bench);
    let job = store.job(&killing.job, outputs);
    bench.write(&job);
    let started = Instant::now();
    store.command(bench, &[]).status().unwrap();
    let mut whole = started.elapsed();
    let start = |args: &[&str]| -> Child { store.command(bench, args).spawn().unwrap() };
    let (mut killed, mut resumed, mut unfinished) = (0, 0, 0);
    // Some kills come too early or too late, more of them on a busy machine.
    let unfinished_min = usize::from(is_large && store.signer.is_some());
    for draw in 0.. {
        if killed >= killing.kills && resumed > 0 && unfinished >= unfinished_min {
            return;
        }
        assert!(draw < 100, "no kill came while something was written");
        bench.clear();
        store.remove("out");
        // Two or three kills in a row, each of a run that continues the one before.
        for again in 0..2 + draw % 2 {
            let child = start(&[]);
            let share = mix(draw, again) % 1000;
            std::thread::sleep(whole.mul_f64(share as f64 / 1000.0));
            let is_running = !kill(child);
            killed += usize::from(is_running);
            for (output, wanted) in outputs.iter().zip(&expected) {
                for (name, bytes) in store.data_files(output) {
                    assert_eq!(
                        Some(&bytes),
                        wanted.get(&name),
                        "{output}/{name}, draw {draw}"
                    );
                }
            }
            let names = store.names(killing.watched);
            let is_begun = names.iter().any(|name| name.contains("_progress"));
            resumed += usize::from(is_begun);
            // The load of the machine changes after the first run was timed: kills that come too
            // late or too early move the next ones.
            whole = whole.mul_f64(match (is_running, is_begun) {
                (false, _) => 0.9,
                (true, false) => 1.1,
                (true, true) => 1.0,
            });
            unfinished += store.num_unfinished(outputs[0], &expected[0]);
        }
        let end = Outcome::of(&start(&[]).wait_with_output().unwrap());
        assert_eq!(end.code, 0, "{end:?}");
        assert_outputs(store, &expected, &format!("draw {draw}"));
        outputs.iter().for_each(|output| assert_tidy(store, output));
        let left = store.num_unfinished(outputs[0], &expected[0]);
        assert_eq!(left, 0, "uploads that nobody finishes, draw {draw}");
    }
}

/// Checks that several processes write one output of a store with the bytes of one process.
fn check_processes(store: &Store) {
    let graph = graph();
    let bench = Bench::new(&graph);
    let plain = Job::new(&graph, &[FLATTEN]);
    let outputs = &OUTPUTS[..1];
    let expected = local_files(&bench, &plain, outputs);
    store.put_tables(&bench);
    let job = store.job(&plain, outputs);
    store.run(&bench, &job, &["--processes", "3"]).ok();
    assert_outputs(store, &expected, "three processes");
    assert_tidy(store, outputs[0]);
}

/// Checks that the second of two runs into one output ends with a clear error.
fn check_exclusion(store: &Store) {
    let graph = graph();
    let bench = Bench::new(&graph);
    store.put_tables(&bench);
    let slow = TRAIN.replace("epochs = 4", "epochs = 100000");
    let job = store.job(&Job::new(&graph, &[FLATTEN, &slow, INFER]), OUTPUTS);
    bench.write(&job);
    let mut first = store.command(&bench, &[]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !store.names("out/model").contains("_lock") {
        assert!(Instant::now() < deadline, "the first run takes no lock");
        std::thread::sleep(Duration::from_millis(50));
    }
    let second = Outcome::of(
        &store
            .command(&bench, &["--stage", "train"])
            .output()
            .unwrap(),
    );
    assert_eq!(second.code, 1, "{second:?}");
    let said = format!("is being written by another run (process {} of", first.id());
    assert!(second.stderr.contains(&said), "{}", second.stderr);
    // The killed run leaves a lock, for which the next run on this machine does not wait.
    first.kill().unwrap();
    first.wait().unwrap();
    let short = job.with("epochs = 100000", "epochs = 1");
    let next = store.run(&bench, &short, &["--stage", "train", "--fresh"]);
    assert_eq!(next.code, 0, "{next:?}");
    assert!(!next.stderr.contains("is not renewed"), "{next:?}");
    assert_tidy(store, "out/model");
}

/// Checks that the error of wrong credentials names the problem and shows no credentials.
fn check_secrets(store: &Store) {
    let graph = graph();
    let bench = Bench::new(&graph);
    store.put_tables(&bench);
    bench.write(&store.job(&small_job(&graph), OUTPUTS));
    let mut command = bench.command(&["run", "job.toml"]);
    command.envs(store.env.iter().cloned());
    command.env("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-anyone");
    let outcome = Outcome::of(&command.output().unwrap());
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains(&store.url), "{}", outcome.stderr);
    for secret in ["not-the-secret", "Signature=", "AWS4-HMAC"] {
        assert!(!outcome.stderr.contains(secret), "{}", outcome.stderr);
        assert!(!outcome.stdout.contains(secret), "{}", outcome.stdout);
    }
}

/// Checks that faults between the job and the store change no byte.
fn check_faults(store: &Store, runs: u64) {
    let graph = graph();
    let bench = Bench::new(&graph);
    let expected = local_files(&bench, &small_job(&graph), OUTPUTS);
    store.put_tables(&bench);
    let endpoint = &store
        .env
        .iter()
        .find(|(name, _)| *name == "AWS_ENDPOINT_URL")
        .unwrap()
        .1;
    let job = store
        .job(&small_job(&graph), OUTPUTS)
        .and("[storage]\ntimeout = 5");
    let mut faults = 0;
    for seed in 0..runs {
        // A stall is longer than the job's timeout.
        let plan = Plan {
            stall: Duration::from_secs(7),
            ..Plan::new(seed)
        };
        let proxy = FaultProxy::start(endpoint, plan);
        bench.clear();
        store.remove("out");
        bench.write(&job);
        let mut command = store.command(&bench, &[]);
        command.env("AWS_ENDPOINT_URL", proxy.url());
        let outcome = Outcome::of(&command.output().unwrap());
        assert_eq!(outcome.code, 0, "seed {seed}: {outcome:?}");
        assert_outputs(store, &expected, &format!("seed {seed}"));
        OUTPUTS.iter().for_each(|output| assert_tidy(store, output));
        faults += proxy.num_faults();
    }
    assert!(faults >= runs, "{faults} faults in {runs} runs");
}

fn fault_runs(usual: u64) -> u64 {
    std::env::var(FAULT_RUNS).map_or(usual, |runs| runs.parse().unwrap())
}

#[test]
fn a_job_on_s3_in_process_is_the_local_one() {
    check_job(&Store::s3_in_process("job"));
}

#[test]
fn scores_on_s3_in_process_are_the_local_ones() {
    check_scores(&Store::s3_in_process("scores"));
}

#[test]
fn kills_while_scores_are_written_to_s3_in_process_change_nothing() {
    if !slow() {
        return;
    }
    let store = Store::s3_in_process("score-kills");
    check_kills(&store, &Killing::of_scores(4, 8));
}

#[test]
fn kills_on_s3_in_process_show_no_part_and_change_nothing() {
    if !slow() {
        return;
    }
    check_kills(&Store::s3_in_process("kills"), &Killing::of_all(4, 24));
}

#[test]
fn kills_during_uploads_to_s3_in_process_show_no_part() {
    if !slow() {
        return;
    }
    let store = Store::s3_in_process("uploads");
    check_kills(&store, &Killing::of_large_files(4));
}

#[test]
fn two_runs_on_s3_in_process_exclude_each_other() {
    check_exclusion(&Store::s3_in_process("exclusion"));
}

#[test]
fn processes_share_an_output_of_s3_in_process() {
    check_processes(&Store::s3_in_process("processes"));
}

#[test]
fn wrong_keys_of_s3_in_process_are_told_and_not_shown() {
    check_secrets(&Store::s3_in_process("secrets"));
}

#[test]
fn faults_before_s3_in_process_change_nothing() {
    if !slow() {
        return;
    }
    check_faults(&Store::s3_in_process("faults"), 1);
}

#[test]
fn a_job_on_an_s3_server_is_the_local_one() {
    Store::s3_server("job").iter().for_each(check_job);
}

#[test]
fn scores_on_an_s3_server_are_the_local_ones() {
    Store::s3_server("scores").iter().for_each(check_scores);
}

#[test]
fn kills_while_scores_are_written_to_an_s3_server_change_nothing() {
    let store = Store::s3_server("score-kills");
    let killing = Killing::of_scores(8, 8);
    store.iter().for_each(|store| check_kills(store, &killing));
}

#[test]
fn kills_on_an_s3_server_show_no_part_and_change_nothing() {
    let store = Store::s3_server("kills");
    let killing = Killing::of_all(12, 8);
    store.iter().for_each(|store| check_kills(store, &killing));
}

#[test]
fn kills_during_uploads_to_an_s3_server_leave_nothing() {
    let store = Store::s3_server("uploads");
    let killing = Killing::of_large_files(12);
    store.iter().for_each(|store| check_kills(store, &killing));
}

#[test]
fn two_runs_on_an_s3_server_exclude_each_other() {
    Store::s3_server("exclusion")
        .iter()
        .for_each(check_exclusion);
}

#[test]
fn wrong_keys_of_an_s3_server_are_told_and_not_shown() {
    Store::s3_server("secrets").iter().for_each(check_secrets);
}

#[test]
fn faults_before_an_s3_server_change_nothing() {
    let store = Store::s3_server("faults");
    store
        .iter()
        .for_each(|store| check_faults(store, fault_runs(6)));
}

#[test]
fn a_job_on_hdfs_is_the_local_one() {
    Store::hdfs("job").iter().for_each(check_job);
}

#[test]
fn scores_on_hdfs_are_the_local_ones() {
    Store::hdfs("scores").iter().for_each(check_scores);
}

#[test]
fn kills_while_scores_are_written_to_hdfs_change_nothing() {
    let store = Store::hdfs("score-kills");
    let killing = Killing::of_scores(4, 60);
    store.iter().for_each(|store| check_kills(store, &killing));
}

#[test]
fn kills_on_hdfs_show_no_part_and_change_nothing() {
    // On HDFS every file takes half a second.
    let store = Store::hdfs("kills");
    let killing = Killing::of_all(8, 100);
    store.iter().for_each(|store| check_kills(store, &killing));
}

#[test]
fn kills_during_uploads_to_hdfs_leave_nothing() {
    let store = Store::hdfs("uploads");
    let killing = Killing::of_large_files(6);
    store.iter().for_each(|store| check_kills(store, &killing));
}

#[test]
fn processes_share_an_output_of_an_s3_server() {
    Store::s3_server("processes")
        .iter()
        .for_each(check_processes);
}

#[test]
fn processes_share_an_output_of_hdfs() {
    Store::hdfs("processes").iter().for_each(check_processes);
}

/// HDFS keeps the directories of removed files.
#[test]
fn directories_without_files_on_hdfs_are_not_foreign() {
    let Some(store) = Store::hdfs("empty") else {
        return;
    };
    let graph = graph();
    let bench = Bench::new(&graph);
    store.put_tables(&bench);
    store.put("out/features/edges/part-00000.parquet", Vec::new());
    store.remove("out");
    // A run that was killed before it wrote its plan leaves such a file.
    store.put("out/features/._lock.tmp", Vec::new());
    let job = store.job(&Job::new(&graph, &[FLATTEN]), &OUTPUTS[..1]);
    store.run(&bench, &job, &[]).ok();
}

#[test]
fn two_runs_on_hdfs_exclude_each_other() {
    Store::hdfs("exclusion").iter().for_each(check_exclusion);
}
