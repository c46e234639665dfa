//! HDFS through `hdfs-native`: without Java, with Hadoop's configuration files, and with Kerberos
//! if they require it.

use std::sync::Arc;

use hdfs_native_object_store::HdfsObjectStoreBuilder;
use object_store::{ObjectStore, Result};

/// Settings with which a request fails within seconds if no name node answers.
const IMPATIENT: [(&str, &str); 3] = [
    ("dfs.client.failover.max.attempts", "5"),
    ("dfs.client.failover.sleep.base.millis", "200"),
    ("dfs.client.failover.sleep.max.millis", "2000"),
];

/// Opens the file system of a name node or name service; of `fs.defaultFS` if it is empty.
pub(super) fn open(authority: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = HdfsObjectStoreBuilder::new();
    if !authority.is_empty() {
        builder = builder.with_url(format!("hdfs://{authority}"));
    }
    // Hadoop's files set how long an address is tried; without them, the default of three minutes
    // is too long.
    if ["HADOOP_CONF_DIR", "HADOOP_HOME"]
        .iter()
        .all(|name| std::env::var_os(name).is_none())
    {
        builder = builder.with_config(IMPATIENT);
    }
    Ok(Arc::new(builder.build()?))
}
