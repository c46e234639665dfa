"""Connects a network namespace to a bridge by a link that delays packets and loses some.

slow_link.py NAMESPACE BRIDGE ADDRESS DELAY_MS LOSS_PERCENT SEED

Prints `up` when the link is up, and runs until it is killed. Only root can run it. It replaces
`netem`, which not every kernel has.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_MAX = 65536


def enter(path: str) -> None:
    """Moves this process to another network namespace."""
    fd = os.open(path, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.close(fd)


def tap(name: str) -> int:
    """Creates a network device; returns the file with which its frames are read and written."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def main() -> None:
    namespace, bridge, address, delay_ms, loss_percent, seed = sys.argv[1:]
    port = f"gft{os.getpid()}"
    home = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}"
    outer = tap(port)
    enter(f"/run/netns/{namespace}")
    inner = tap("eth0")
    enter(home)
    for command in (
        f"ip link set {port} master {bridge} up",
        f"ip -n {namespace} addr add {address} dev eth0",
        f"ip -n {namespace} link set eth0 up",
    ):
        subprocess.run(command.split(), check=True)
    print("up", flush=True)

    draw = random.Random(int(seed))
    delay, loss = float(delay_ms) / 1000, float(loss_percent) / 100
    ends = {outer: inner, inner: outer}
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for fd in select.select(list(ends), [], [], timeout)[0]:
            frame = os.read(fd, FRAME_MAX)
            number += 1
            if draw.random() >= loss:
                heapq.heappush(waiting, (time.monotonic() + delay, number, ends[fd], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, fd, frame = heapq.heappop(waiting)
            try:
                os.write(fd, frame)
            except OSError:
                pass  # a link that is down or full loses the frame


main()
