//! An S3 server in the process of the tests: `s3s-fs` on a temporary directory.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::stores::BUCKET;

/// A server with the bucket of the tests; dropping it stops it.
pub(crate) struct S3Server {
    endpoint: String,
    /// Dropping it ends the server's threads.
    _runtime: Runtime,
    _root: TempDir,
}

impl S3Server {
    /// Starts a server on a free port, for the keys `test` and `secret-1234`.
    pub(crate) fn start() -> Self {
        let root = TempDir::with_prefix("graphflat-s3-").unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single("test", "secret-1234"));
        let service = builder.build();
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = Builder::new(TokioExecutor::new());
                    // A client that is killed breaks its connection.
                    connection
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Self {
            endpoint,
            _runtime: runtime,
            _root: root,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}
