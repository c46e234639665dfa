#!/usr/bin/env bash
# Runs MinIO, a real S3 server: minio.sh start DIR [PORT] | stop DIR. See README.md.
set -euo pipefail
name=minio
# shellcheck source=tests/services/service.sh
. "$(dirname "${BASH_SOURCE[0]}")/service.sh"

# The last version of the module, which has no tags that Go accepts as versions.
version=v0.0.0-20260212201848-7aac2a2c5b7c
bucket=graphflat

build() {
    binary=$cache/minio-$version/minio
    [ ! -x "$binary" ] || return 0
    need go
    say "building $version: some minutes, once"
    local partial=$binary.$$
    mkdir -p "$partial"
    # Without C, so that no C compiler is needed.
    if ! CGO_ENABLED=0 GOBIN=$partial GOFLAGS=-buildvcs=false \
        go install -trimpath -ldflags='-s -w' "github.com/minio/minio@$version" >"$dir/log" 2>&1; then
        tail -n 30 "$dir/log" >&2
        rm -rf "$partial"
        die "go install of $version failed"
    fi
    mv "$partial/minio" "$binary"
    rmdir "$partial"
}

# Checks that this server listens on the port (by its log, because another server may answer there)
# and that it answers.
healthy() {
    local status
    grep -q "API: http://127.0.0.1:$1" "$dir/log" || return 1
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET /minio/health/ready HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' >&3
    read -r -t 5 status <&3 || true
    exec 3>&-
    [[ $status == *" 200 "* ]]
}

start() {
    build
    local port user=graphflat password
    port=$(take_port "$1")
    password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    # With one drive, each directory of MinIO is a bucket.
    mkdir -p "$dir/data/$bucket"
    MINIO_ROOT_USER=$user MINIO_ROOT_PASSWORD=$password MINIO_BROWSER=off MINIO_UPDATE=off \
        MINIO_CONFIG_ENV_FILE='' HOME=$dir \
        launch "$binary" server --address "127.0.0.1:$port" "$dir/data"
    await 60 healthy "$port"
    cat >"$dir/env" <<ENV
AWS_ENDPOINT_URL=http://127.0.0.1:$port
AWS_ACCESS_KEY_ID=$user
AWS_SECRET_ACCESS_KEY=$password
AWS_REGION=us-east-1
GRAPHFLAT_TEST_S3=s3://$bucket
ENV
}

main "$@"
