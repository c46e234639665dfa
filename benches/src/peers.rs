//! The peers' side of a race: Python scripts, and the Pythons that run them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::child::Launch;
use crate::list::{FAMILIES, Peer, Script};
use crate::machine::cores;

/// Settings of glibc with which freed memory is kept, as our allocator does.
const TUNED: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "4000000000"),
    ("MALLOC_TRIM_THRESHOLD_", "16000000000"),
];

/// Prints which of the packages in its arguments are installed, as JSON.
const PROBE: &str = "\
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))
";

/// The peers that can run, and why others cannot.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    dir: PathBuf,
    pythons: BTreeMap<String, PathBuf>,
    /// A Python that runs `gen.py`.
    generator: Option<PathBuf>,
    /// Installed packages of each Python.
    installed: BTreeMap<PathBuf, Vec<String>>,
    pub(crate) left_out: Vec<String>,
}

impl Peers {
    /// Finds out which peers can run from their directory and the Pythons of `--peer-python`.
    ///
    /// Without an entry, the Python of a peer is that of `peers`, and without that one of
    /// `venv-NAME` and `venv-peers` in the working directory. DGL needs packages of its own, so
    /// `peers` is not meant for it.
    pub(crate) fn find(dir: &Path, given: &BTreeMap<String, PathBuf>) -> Self {
        let mut peers = Self {
            dir: dir.to_owned(),
            ..Self::default()
        };
        let mut names: Vec<&str> = all().map(|peer| peer.name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let shared = if name == "dgl" {
                None
            } else {
                given.get("peers").cloned()
            };
            let found = given.get(name).cloned().or(shared).or_else(|| {
                let shared_dir = if name == "dgl" {
                    "venv-dgl"
                } else {
                    "venv-peers"
                };
                let places = [format!("venv-{name}"), shared_dir.to_owned()];
                let pythons = places.map(|place| Path::new(&place).join("bin/python"));
                // The working directory of a run is another one.
                pythons
                    .into_iter()
                    .find(|path| path.exists())
                    .and_then(|path| std::path::absolute(path).ok())
            });
            match found {
                Some(python) => {
                    peers.pythons.insert(name.to_owned(), python);
                }
                None => peers.left_out.push(format!(
                    "{name} is left out: no Python for it; give --peer-python {name}=PATH"
                )),
            }
        }
        peers.probe();
        peers
    }

    /// Asks each Python for its packages.
    fn probe(&mut self) {
        let mut wanted: Vec<&str> = all().flat_map(|peer| peer.needs).copied().collect();
        wanted.sort_unstable();
        wanted.dedup();
        for (name, python) in self.pythons.clone() {
            if self.installed.contains_key(&python) {
                continue;
            }
            match packages(&python, &wanted) {
                Ok(installed) => {
                    self.installed.insert(python, installed);
                }
                Err(error) => {
                    self.pythons.remove(&name);
                    let problem = format!("{name} is left out: {}: {error:#}", python.display());
                    self.left_out.push(problem);
                }
            }
        }
        let makes = |packages: &[String]| {
            ["numpy", "pyarrow", "scipy"]
                .iter()
                .all(|name| packages.iter().any(|has| has == name))
        };
        let mut makers = self
            .installed
            .iter()
            .filter(|(_, packages)| makes(packages));
        self.generator = makers.next().map(|(python, _)| python.clone());
        if self.generator.is_none() && !self.pythons.is_empty() {
            let problem = "no Python has numpy, pyarrow and scipy, which gen.py needs: peers run \
                           only on graphs that are below --data already";
            self.left_out.push(problem.to_owned());
        }
    }

    /// Returns the Python and the script that make the tables of the peers.
    pub(crate) fn generator(&self) -> Option<(PathBuf, PathBuf)> {
        let python = self.generator.clone()?;
        Some((python, self.dir.join("gen.py")))
    }

    /// Returns the Python of a peer; notes once why the peer cannot run.
    pub(crate) fn python(&mut self, peer: &Peer) -> Option<PathBuf> {
        let python = self.pythons.get(peer.name)?;
        let script = match peer.script {
            Script::File(file) => Some(self.dir.join(file)),
            Script::Text(_) => None,
        };
        let installed = self.installed.get(python)?;
        let is_missing = |name: &&&str| !installed.iter().any(|has| has == **name);
        let missing: Vec<&str> = peer.needs.iter().filter(is_missing).copied().collect();
        let problem = if !missing.is_empty() {
            let lacks = missing.join(", ");
            format!("{} lacks {lacks}", python.display())
        } else if let Some(script) = script.filter(|script| !script.exists()) {
            format!("{} does not exist", script.display())
        } else {
            return Some(python.clone());
        };
        let what = match peer.script {
            Script::File(file) => format!(" of {file}"),
            Script::Text(_) => String::new(),
        };
        let line = format!("{}{what} is left out: {problem}", peer.name);
        if !self.left_out.contains(&line) {
            self.left_out.push(line);
        }
        None
    }

    /// Returns the start of one run on the tables `data`, which writes to `scratch`.
    pub(crate) fn start(
        &self,
        peer: &Peer,
        python: &Path,
        tuned: bool,
        data: &Path,
        scratch: &Path,
    ) -> Launch {
        let mut args: Vec<OsString> = Vec::new();
        match peer.script {
            Script::Text(text) => args.extend(["-c".into(), text.into()]),
            Script::File(file) => args.push(self.dir.join(file).into_os_string()),
        }
        args.extend(["--data".into(), data.as_os_str().to_owned()]);
        if matches!(peer.script, Script::File(_)) {
            let threads = if peer.one_core { 1 } else { cores() };
            args.extend(["--threads".into(), threads.to_string().into()]);
        }
        if let Script::File(file) = peer.script
            && file.starts_with("flatten_")
        {
            args.extend(["--out".into(), scratch.join("out").into_os_string()]);
        }
        if let Some(model) = peer.model {
            args.extend(["--model".into(), model.into()]);
        }
        args.extend(peer.args.iter().map(Into::into));
        // The directory of the scripts may be read-only.
        let mut env = vec![("PYTHONDONTWRITEBYTECODE", "1")];
        if tuned {
            env.extend(TUNED);
        }
        Launch {
            program: python.to_owned(),
            args,
            env,
            dir: scratch.to_owned(),
            one_core: peer.one_core,
        }
    }
}

fn all() -> impl Iterator<Item = &'static Peer> {
    FAMILIES.iter().flat_map(|family| family.peers)
}

fn packages(python: &Path, wanted: &[&str]) -> anyhow::Result<Vec<String>> {
    let output = Command::new(python)
        .args(["-c", PROBE])
        .args(wanted)
        .stdin(Stdio::null())
        .output()
        .context("cannot be started")?;
    anyhow::ensure!(output.status.success(), "fails with {}", output.status);
    serde_json::from_slice(&output.stdout).context("does not print its packages")
}

/// Returns the name of a peer in reports.
pub(crate) fn name(peer: &Peer, tuned: bool) -> String {
    let shown = match peer.name {
        "dgl" => "DGL",
        "duckdb" => "DuckDB",
        "polars" => "Polars",
        "pyg" => "PyG",
        "spark" => "Spark",
        other => other,
    };
    let label = match peer.label {
        "" => String::new(),
        "one core" => ", one core".to_owned(),
        label => format!(" {label}"),
    };
    format!("{shown}{label}{}", if tuned { ", tuned" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_without_a_python_or_a_package_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("python");
        std::fs::write(&python, "#!/bin/sh\necho '[\"polars\", \"torch\"]'\n").unwrap();
        let runnable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&python, runnable).unwrap();
        let given = [("polars", &python), ("pyg", &python)];
        let given = given.map(|(name, path)| (name.to_owned(), path.clone()));
        let mut peers = Peers::find(dir.path(), &BTreeMap::from(given));
        let without = peers.left_out.join("\n");
        for name in ["dgl", "duckdb", "pyarrow", "spark", "torch"] {
            let line =
                format!("{name} is left out: no Python for it; give --peer-python {name}=PATH");
            assert!(without.contains(&line), "{without}");
        }
        assert!(without.contains("no Python has numpy"), "{without}");
        let of = |name: &str| all().find(|peer| peer.name == name).unwrap();
        assert_eq!(peers.python(of("dgl")), None);
        assert_eq!(peers.python(of("polars")), None);
        assert!(
            peers
                .left_out
                .last()
                .unwrap()
                .ends_with("flatten_polars.py does not exist")
        );
        std::fs::write(dir.path().join("flatten_polars.py"), "").unwrap();
        assert_eq!(peers.python(of("polars")), Some(python.clone()));
        for _ in 0..2 {
            assert_eq!(peers.python(of("pyg")), None);
        }
        let lines = peers.left_out.iter().filter(|line| line.starts_with("pyg"));
        let lines: Vec<&String> = lines.collect();
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].ends_with("lacks torch_geometric, pyg_lib, numpy, pyarrow"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_tuned_run_differs_in_its_environment_only() {
        let peers = Peers::default();
        let peer = all().find(|peer| peer.name == "dgl").unwrap();
        let start = |tuned| {
            peers.start(
                peer,
                Path::new("python"),
                tuned,
                Path::new("S"),
                Path::new("x"),
            )
        };
        let (plain, tuned) = (start(false), start(true));
        assert_eq!(plain.args, tuned.args);
        assert_eq!(tuned.env.len(), plain.env.len() + 2);
        assert_eq!([name(peer, false), name(peer, true)], ["DGL", "DGL, tuned"]);
    }
}
