# shellcheck shell=bash
# What minio.sh and hdfs.sh share: a server in a directory of its own, started, awaited and stopped.
# Sourced by them, with `name` set and a function `start`; `dir` holds the server's files pid, env and log.
: "${name:?}"

# What is fetched and built is kept here, and used again.
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck disable=SC2034 # used by those that source this
cache=${GRAPHFLAT_SERVICES:-$repo/target/services}

say() { printf '%s: %s\n' "$name" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Exit code 3: this machine lacks a program, which is no failure of the service.
need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || {
            say "$program is not installed"
            exit 3
        }
    done
}

running() {
    local pid
    pid=$(cat "$dir/pid" 2>/dev/null) || return 1
    # A number alone could by now be another process's.
    [[ $(ps -o args= -p "$pid" 2>/dev/null) == *"$dir"* ]]
}

# launch COMMAND...: starts the server in a process group of its own.
launch() {
    set -m
    "$@" </dev/null >"$dir/log" 2>&1 &
    set +m
    echo $! >"$dir/pid"
}

# await SECONDS COMMAND...: until COMMAND succeeds; shows the log when the server ends or is late.
await() {
    local limit=$((SECONDS + $1))
    shift
    until "$@" 2>/dev/null; do
        running || fail "it ended"
        [ "$SECONDS" -lt "$limit" ] || fail "it does not answer"
        sleep 0.2
    done
}

fail() {
    say "$1; the end of $dir/log:"
    tail -n 30 "$dir/log" >&2
    stop
    exit 1
}

# Whether something listens on a port of the loopback.
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# take_port [PORT]: prints that port, or a free one; a server that is there already is not ours.
take_port() {
    if [ -n "${1:-}" ] && listening "$1"; then
        die "port $1 is taken"
    fi
    echo "${1:-$(free_port)}"
}

# A port that nothing listens on, below those that the system gives to clients.
free_port() {
    local port
    while
        port=$((10000 + (RANDOM * 32768 + RANDOM) % 22000))
        listening "$port"
    do :; done
    echo "$port"
}

stop() {
    local pid tries=50
    if running; then
        pid=$(cat "$dir/pid")
        kill -TERM -- "-$pid" 2>/dev/null || true
        while running && ((tries-- > 0)); do sleep 0.2; done
        kill -KILL -- "-$pid" 2>/dev/null || true
    fi
    rm -f "$dir/pid" "$dir/env"
}

# guard PID: stops the server when that process ends, in whatever way.
guard() {
    set -m
    (
        while kill -0 "$1" && running; do sleep 1; done
        stop
    ) </dev/null >/dev/null 2>&1 &
    set +m
}

usage() {
    say "usage: $0 start DIR [PORT] | stop DIR"
    exit 2
}

# main start|stop DIR [PORT]: `start` prints the lines of the file env, NAME=value.
main() {
    if [ $# -lt 2 ] || [ $# -gt 3 ]; then
        usage
    fi
    local action=$1
    mkdir -p "$2"
    dir=$(cd "$2" && pwd)
    case $action in
    start)
        if ! running; then
            rm -f "$dir/env"
            start "${3:-}"
            [ -z "${GRAPHFLAT_SERVICE_OWNER:-}" ] || guard "$GRAPHFLAT_SERVICE_OWNER"
        fi
        cat "$dir/env"
        ;;
    stop) stop ;;
    *) usage ;;
    esac
}
