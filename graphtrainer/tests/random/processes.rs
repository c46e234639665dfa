//! The processes of a job as threads of a test.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cluster::{Cluster, ClusterPlan, Secret};

/// Joins each process of a job and calls `run` with it; returns what each returned.
///
/// # Panics
///
/// If a process cannot join, or `run` panics.
pub(crate) fn in_processes<R: Send>(
    num_processes: usize,
    run: impl Fn(&Cluster) -> R + Sync,
) -> Vec<R> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners: Vec<TcpListener> = (0..num_processes).map(bind).collect();
    let hosts = listeners.iter().map(|listener| {
        let address = listener.local_addr().expect("it is bound");
        address.to_string()
    });
    let hosts: Vec<String> = hosts.collect();
    let join = |process: usize, listener: TcpListener| {
        let plan = ClusterPlan {
            hosts: hosts.clone(),
            process,
            bind: None,
            threads: 1,
            secret: Secret::new(b"the secret of the job").expect("it is long enough"),
            build: "of a test".to_owned(),
            job: "of a test".to_owned(),
            start_timeout: Duration::from_secs(60),
            on_end: Arc::new(|_| {}),
        };
        run(&Cluster::join(plan, Some(listener)).expect("the processes meet"))
    };
    thread::scope(|scope| {
        let processes = (0..).zip(listeners);
        let processes =
            processes.map(|(process, listener)| scope.spawn(move || join(process, listener)));
        let processes: Vec<_> = processes.collect();
        let ended = processes
            .into_iter()
            .map(|of| of.join().expect("no process panics"));
        ended.collect()
    })
}
