"""Carries frames between two network interfaces, each a fixed time after it came:  python delayed_wire.py A B MS

For kernels without the queueing discipline netem. Frames are taken and given as the kernel has them, joined ones of
64 KiB with their marks for splitting and check sums (PACKET_VNET_HDR), so that it carries gigabits a second.
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3
LARGEST = 70000  # bytes of a joined frame and its header


def wire_end(interface):
    """A socket that hears what comes in at an interface, and sends out there."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    for option in (PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING):
        end.setsockopt(SOL_PACKET, option, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def carry(ends, seconds):
    """Runs until it is killed."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    on_the_way = collections.deque()
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        for end in select.select(ends, [], [], wait)[0]:
            while True:
                try:
                    frame = end.recv(LARGEST)
                except OSError:  # nothing more, or the interface is down
                    break
                on_the_way.append((time.monotonic() + seconds, other[end], frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, end, frame = on_the_way.popleft()
            try:
                end.send(frame)
            except OSError:  # full, or the interface is down: a wire that loses a frame
                continue


if __name__ == "__main__":
    carry([wire_end(name) for name in sys.argv[1:3]], float(sys.argv[3]) / 1000)
