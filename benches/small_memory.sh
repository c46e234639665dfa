#!/bin/sh
# Runs each stage of a job without a limit and in a cgroup with limited memory, page cache included.
#
#     benches/small_memory.sh PROGRAM DIR LIMIT LIMIT_OF_TRAINING
#
# DIR is a directory of `graphflat generate`; limits are bytes. Every run starts with an empty page
# cache. Prints seconds and the gigabytes that were read from disks and written to them. Needs root.
set -eu
program=$1 dir=$2 limit=$3 of_training=$4
if [ -d /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/memory/graphflat key=memory.limit_in_bytes none=-1
else
    group=/sys/fs/cgroup/graphflat key=memory.max none=max
fi
mkdir -p "$group"
cd "$dir"

disks() {
    awk '$3 !~ /^(loop|ram|dm)/ && $3 !~ /[0-9]$/ { r += $6; w += $10 } END { print r, w }' \
        /proc/diskstats
}

run() { # name, limit, arguments
    name=$1
    echo "$2" > "$group/$key"
    shift 2
    sync
    echo 3 > /proc/sys/vm/drop_caches
    before=$(disks) start=$(date +%s.%N)
    code=0
    sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$program" run job.toml --quiet \
        --set 'memory_budget="512MiB"' "$@" || code=$?
    echo "$before $(disks) $start $(date +%s.%N) $code" | awk -v name="$name" '{
        printf "%-28s %7.1f s, read %6.2f GB, written %6.2f GB%s\n", name, $6 - $5,
            ($3 - $1) * 512 / 1e9, ($4 - $2) * 512 / 1e9, $7 ? ", exit code " $7 : "" }'
}

stages() { # heading, limit, limit of training
    echo "$1"
    rm -rf out work
    run "store and flatten" "$2" --stage flatten
    run "train, one epoch" "$3" --stage train --set train.epochs=1
    rm -rf work
    infer="--stage infer --set infer.sampling=\"none\" --set infer.prediction=false"
    # shellcheck disable=SC2086 # words of arguments
    run "store and infer" "$2" $infer
    cat out/embeddings/part-*.parquet | cksum | sed 's/^/checksum of the rows /'
    rm -rf out/embeddings
    # shellcheck disable=SC2086
    run "infer" "$2" $infer
}

stages "without a limit" "$none" "$none"
stages "with $limit and $of_training bytes" "$limit" "$of_training"
