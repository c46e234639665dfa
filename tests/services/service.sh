# shellcheck shell=bash
# Shared by minio.sh and hdfs.sh: starts, awaits and stops a server in its own directory.
# They set `name` and define a function `start`. `dir` contains the server's files pid, env and log.
: "${name:?}"

# Keeps what is downloaded and built, so it is used again.
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck disable=SC2034 # the other scripts use it
cache=${GRAPHFLAT_SERVICES:-${CARGO_TARGET_DIR:-$repo/target}/services}

say() { printf '%s: %s\n' "$name" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Exits with 3 if a program is missing on this machine.
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
    # The number alone may belong to another process by now.
    [[ $(ps -o args= -p "$pid" 2>/dev/null) == *"$dir"* ]]
}

# launch COMMAND...: starts the server in its own process group.
launch() {
    set -m
    "$@" </dev/null >"$dir/log" 2>&1 &
    set +m
    echo $! >"$dir/pid"
}

# await SECONDS COMMAND...: waits until COMMAND succeeds. If the server ends or SECONDS pass, prints
# the log and exits.
await() {
    local limit=$((SECONDS + $1))
    shift
    until "$@" 2>/dev/null; do
        # Not `running`: while a program is loaded from a slow disk, ps does not show its arguments.
        kill -0 "$!" 2>/dev/null || fail "it ended"
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

# Whether a program listens on a port of 127.0.0.1.
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# take_port [PORT]: prints the port, or a free one. Exits if a server listens on the port already.
take_port() {
    if [ -n "${1:-}" ] && listening "$1"; then
        die "port $1 is taken"
    fi
    echo "${1:-$(free_port)}"
}

# Prints a free port below the range that the system gives to clients.
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

# guard PID: stops the server when process PID ends.
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

# main start|stop DIR [PORT]: `start` prints the file env, lines NAME=value.
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
