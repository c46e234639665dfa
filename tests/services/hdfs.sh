#!/usr/bin/env bash
# Runs an HDFS of Apache Hadoop: hdfs.sh start DIR [PORT] | stop DIR. See README.md.
set -euo pipefail
name=hdfs
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/services/service.sh
. "$here/service.sh"

version=$(sed -n 's:.*<hadoop.version>\(.*\)</hadoop.version>.*:\1:p' "$here/hdfs/pom.xml")

fetch() {
    jars=$cache/hadoop-$version
    [ ! -d "$jars" ] || return 0
    need mvn
    say "downloading Hadoop $version: 90 MB, once"
    local partial=$jars.$$
    if ! mvn --batch-mode --quiet --file "$here/hdfs/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$partial" >"$dir/log" 2>&1; then
        tail -n 30 "$dir/log" >&2
        rm -rf "$partial"
        die "Maven cannot download Hadoop $version"
    fi
    mv -T "$partial" "$jars" 2>/dev/null || rm -rf "$partial" # another start has done it already
}

# The cluster writes this file when the data node has joined and writes are allowed.
name_node_port() { sed -n 's/.*"namenode_port":\([0-9]*\)}.*/\1/p' "$dir/details.json"; }
ready() {
    local port
    port=$(name_node_port)
    [ -n "$port" ] && listening "$port"
}

start() {
    need java
    fetch
    local port=0 # the system chooses
    [ -z "$1" ] || port=$(take_port "$1")
    rm -f "$dir/details.json"
    launch java -Xmx512m -Djava.net.preferIPv4Stack=true \
        -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$jars/*" \
        org.apache.hadoop.test.MiniDFSClusterManager -format -datanodes 1 -nnport "$port" \
        -D "hdfs.minidfs.basedir=$dir/data" -D dfs.replication=1 -D dfs.permissions.enabled=false \
        -writeDetails "$dir/details.json"
    await 120 ready
    echo "GRAPHFLAT_TEST_HDFS=hdfs://127.0.0.1:$(name_node_port)" >"$dir/env"
}

main "$@"
