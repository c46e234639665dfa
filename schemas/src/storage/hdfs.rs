//! HDFS, by `hdfs-native`: no Java, Hadoop's own configuration files, Kerberos where they ask for it.

use std::sync::Arc;

use hdfs_native_object_store::HdfsObjectStoreBuilder;
use object_store::{ObjectStore, Result};

/// Opens the file system of a name node or name service; of `fs.defaultFS` if it is empty.
pub(super) fn open(authority: &str) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = HdfsObjectStoreBuilder::new();
    if !authority.is_empty() {
        builder = builder.with_url(format!("hdfs://{authority}"));
    }
    Ok(Arc::new(builder.build()?))
}
