//! Hosts of the tests: processes of this machine, or network namespaces with their own addresses.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Bench, Outcome};
use crate::needs::skip;

pub(crate) const SECRET: &str = "the secret of the tests";
/// Longest time until all processes end after one is lost, on a busy machine too: a limit, not a
/// measure of speed.
pub(crate) const LOSS_MAX: Duration = Duration::from_secs(15);

/// Ports of hosts lie below those that the system gives to programs which ask for any free port.
const PORTS: Range<u16> = 12_000..32_000;

/// Number of ports tried.
static NUM_PORTS: AtomicU32 = AtomicU32::new(0);

/// Number of nets made, for their names.
#[cfg(target_os = "linux")]
static NUM_NETS: AtomicU32 = AtomicU32::new(0);

/// Returns a port that no program listens on, and that no other test of this run gets.
fn free_port() -> u16 {
    let count = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(256); // another run of the tests starts elsewhere
    loop {
        let tried = NUM_PORTS.fetch_add(1, Ordering::Relaxed);
        let offset = start.wrapping_add(tried) % count;
        let port = PORTS.start + u16::try_from(offset).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Processes of a hosts file, on ports that were free before.
pub(crate) struct Hosts {
    pub(crate) addresses: Vec<String>,
    path: PathBuf,
}

impl Hosts {
    pub(crate) fn new(bench: &Bench, num: usize) -> Hosts {
        let addresses = (0..num).map(|_| format!("127.0.0.1:{}", free_port()));
        let addresses: Vec<String> = addresses.collect();
        let path = bench.path("hosts.txt");
        std::fs::write(&path, addresses.join("\n")).unwrap();
        Hosts { addresses, path }
    }

    pub(crate) fn command(&self, bench: &Bench, process: usize, args: &[&str]) -> Command {
        let mut command = bench.command(&[&["run", "job.toml"], args].concat());
        command.arg("--hosts").arg(&self.path);
        command.args(["--process", &process.to_string()]);
        command.env("GRAPHFLAT_SECRET", SECRET);
        command
    }

    pub(crate) fn start(&self, bench: &Bench, process: usize, args: &[&str]) -> Child {
        self.command(bench, process, args).spawn().unwrap()
    }
}

/// Waits for a process to end.
pub(crate) fn end(child: Child) -> Outcome {
    Outcome::of(&child.wait_with_output().unwrap())
}

/// Waits for a process, which must end by itself within `longest`.
pub(crate) fn end_within(mut child: Child, longest: Duration) -> Outcome {
    let deadline = Instant::now() + longest;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("still there after {longest:?}: {:?}", end(child));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    end(child)
}

/// Waits until a file exists.
pub(crate) fn wait_for(path: &Path, longest: Duration) {
    wait_until(&path.display().to_string(), longest, || path.exists());
}

/// Waits until `has_come` returns true.
pub(crate) fn wait_until(what: &str, longest: Duration, has_come: impl Fn() -> bool) {
    let deadline = Instant::now() + longest;
    while !has_come() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal to a process, such as `-STOP`.
#[cfg(unix)]
pub(crate) fn send_signal(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    kill.args([signal, &child.id().to_string()]);
    assert!(kill.status().unwrap().success());
}

/// Separate hosts: network namespaces on one bridge.
#[cfg(target_os = "linux")]
pub(crate) struct Net {
    id: String,
    pub(crate) hosts: Hosts,
    pub(crate) disk: SmallDisk,
    /// Forwards the packets of a host whose link is slow and loses some.
    slow: Option<Child>,
}

#[cfg(target_os = "linux")]
impl Net {
    /// Makes `num` hosts; none if this user may not.
    pub(crate) fn new(bench: &Bench, num: usize) -> Option<Net> {
        let addresses: Vec<String> = (1..=num).map(|i| format!("10.213.7.{i}:7000")).collect();
        let path = bench.path("hosts.txt");
        std::fs::write(&path, addresses.join("\n")).unwrap();
        let disk = SmallDisk::new(bench.path("disk"), 16)?;
        let net = Net {
            id: format!(
                "{}-{}",
                std::process::id(),
                NUM_NETS.fetch_add(1, Ordering::Relaxed)
            ),
            hosts: Hosts { addresses, path },
            disk,
            slow: None,
        };
        let bridge = format!("gfb{}", net.id);
        let is_allowed = as_root(&["ip", "link", "add", &bridge, "type", "bridge"]);
        if !is_allowed {
            return skip("this user may not make network namespaces (ip of iproute2, as root)");
        }
        assert!(as_root(&["ip", "link", "set", &bridge, "up"]));
        for host in 0..num {
            let (name, port) = (net.name(host), format!("gfv{}-{host}", net.id));
            let address = format!("10.213.7.{}/24", host + 1);
            for command in [
                &["ip", "netns", "add", &name][..],
                &[
                    "ip", "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
                    &name,
                ],
                &["ip", "link", "set", &port, "master", &bridge, "up"],
                &["ip", "-n", &name, "addr", "add", &address, "dev", "eth0"],
                &["ip", "-n", &name, "link", "set", "eth0", "up"],
                &["ip", "-n", &name, "link", "set", "lo", "up"],
            ] {
                assert!(as_root(command), "{command:?}");
            }
        }
        Some(net)
    }

    /// Delays a host's packets by `delay_ms` and loses `loss` percent of them.
    pub(crate) fn slow_down(&mut self, host: usize, delay_ms: u32, loss: u32) {
        assert!(as_root(&[
            "ip",
            "link",
            "del",
            &format!("gfv{}-{host}", self.id)
        ]));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/slow_link.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(self.name(host))
            .arg(format!("gfb{}", self.id));
        command.arg(format!("10.213.7.{}/24", host + 1));
        command.args([delay_ms, loss, 1].map(|number| number.to_string()));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        self.slow = Some(child);
    }

    fn name(&self, host: usize) -> String {
        format!("gf{}-{host}", self.id)
    }

    pub(crate) fn start(&self, bench: &Bench, host: usize, args: &[&str]) -> Child {
        let inner = self.hosts.command(bench, host, args);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host)]);
        command.arg(inner.get_program()).args(inner.get_args());
        command.current_dir(bench.path("."));
        command.env("GRAPHFLAT_SECRET", SECRET);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs the job on all hosts; all must succeed.
    pub(crate) fn run(&self, bench: &Bench, args: &[&str]) {
        let hosts = 0..self.hosts.addresses.len();
        let children: Vec<Child> = hosts.map(|host| self.start(bench, host, args)).collect();
        children.into_iter().for_each(|child| drop(end(child).ok()));
    }

    /// Returns how many bytes a host has sent.
    pub(crate) fn bytes_sent(&self, host: usize) -> u64 {
        let statistics = "/sys/class/net/eth0/statistics/tx_bytes";
        let mut read = Command::new("ip");
        read.args(["netns", "exec", &self.name(host), "cat", statistics]);
        let said = String::from_utf8(read.output().unwrap().stdout).unwrap();
        said.trim().parse().unwrap()
    }

    pub(crate) fn set_link(&self, host: usize, state: &str) {
        assert!(as_root(&[
            "ip",
            "-n",
            &self.name(host),
            "link",
            "set",
            "eth0",
            state
        ]));
    }
}

#[cfg(target_os = "linux")]
impl Drop for Net {
    fn drop(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.kill().ok();
            slow.wait().ok();
        }
        for host in 0..self.hosts.addresses.len() {
            as_root(&["ip", "netns", "del", &self.name(host)]);
        }
        as_root(&["ip", "link", "del", &format!("gfb{}", self.id)]);
    }
}

/// A directory on a separate, small disk.
#[cfg(target_os = "linux")]
pub(crate) struct SmallDisk {
    pub(crate) dir: PathBuf,
}

#[cfg(target_os = "linux")]
impl SmallDisk {
    /// Mounts a disk of `kib` KiB; none if this user may not.
    pub(crate) fn new(dir: PathBuf, kib: u64) -> Option<SmallDisk> {
        std::fs::create_dir(&dir).unwrap();
        let size = format!("size={kib}k");
        let at = dir.to_str().unwrap();
        let is_allowed = as_root(&["mount", "-t", "tmpfs", "-o", &size, "tmpfs", at]);
        match is_allowed {
            true => Some(SmallDisk { dir }),
            false => skip("this user may not mount a tmpfs (as root)"),
        }
    }

    /// Removes all files on the disk.
    pub(crate) fn empty(&self) {
        for entry in std::fs::read_dir(&self.dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => std::fs::remove_dir_all(path).unwrap(),
                false => std::fs::remove_file(path).unwrap(),
            }
        }
    }

    /// Returns the KiB that the files take.
    pub(crate) fn used(&self) -> u64 {
        let sizes = crate::harness::files_below(&self.dir)
            .into_iter()
            .map(|path| path.metadata().unwrap().len());
        sizes.map(|size| size.div_ceil(4096) * 4).sum()
    }

    /// Resizes the disk to `kib` KiB; the files stay.
    pub(crate) fn resize(&self, kib: u64) {
        let options = format!("remount,size={kib}k");
        assert!(as_root(&[
            "mount",
            "-o",
            &options,
            self.dir.to_str().unwrap()
        ]));
    }
}

#[cfg(target_os = "linux")]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        as_root(&["umount", self.dir.to_str().unwrap()]);
    }
}

/// Runs a command that only root may run; false if it fails.
#[cfg(target_os = "linux")]
fn as_root(command: &[&str]) -> bool {
    let mut run = Command::new(command[0]);
    run.args(&command[1..]).stderr(Stdio::null());
    run.status().is_ok_and(|status| status.success())
}
