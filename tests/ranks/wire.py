"""A wire between two network namespaces, on which packets are late and get lost.

    python wire.py A 10.77.0.1 B 10.77.0.2 --delay 0.05 --loss 0.05

A TUN device in each; what is sent into one comes out of the other. (The kernel's own netem is not
everywhere.) It prints a line when both are up.
"""

from __future__ import annotations

import argparse
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

TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000


def enter(namespace: str) -> None:
    """This process is there from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def device(namespace: str, address: str) -> int:
    """A descriptor of a new device there."""
    enter(f"/run/netns/{namespace}")
    found = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(found, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TUN | IFF_NO_PI))
    for words in (
        ("addr", "add", f"{address}/24", "dev", "wire"), ("link", "set", "lo", "up"),
        ("link", "set", "wire", "up", "mtu", "1400"),
    ):  # fmt: skip
        subprocess.run(["ip", *words], check=True)
    return found


def main() -> None:
    """Carry packets until the reader of our standard output leaves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ends", nargs=4)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    asked = parser.parse_args()
    one, other = device(*asked.ends[:2]), device(*asked.ends[2:])
    enter(f"/proc/{os.getppid()}/ns/net")
    across = {one: other, other: one}
    chance, late, count = random.Random(0), [], 0
    print("up", flush=True)
    while True:
        now = time.monotonic()
        while late and late[0][0] <= now:
            _, _, to, packet = heapq.heappop(late)
            os.write(to, packet)
        wait = max(0.0, late[0][0] - now) if late else 1.0
        ready, _, _ = select.select([one, other, sys.stdin], [], [], wait)
        if sys.stdin in ready:  # it was closed
            return
        for end in ready:
            packet = os.read(end, 1 << 16)
            if chance.random() >= asked.loss:
                count += 1
                heapq.heappush(late, (time.monotonic() + asked.delay, count, across[end], packet))


if __name__ == "__main__":
    main()
