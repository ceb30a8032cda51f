"""Relays frames between two network interfaces with a fixed delay:  python delayed_wire.py A B MILLISECONDS

For kernels without the queueing discipline netem. Frames are relayed as the kernel holds them, aggregated to 64 KiB
with their segmentation and checksum offload headers (PACKET_VNET_HDR), so that it relays gigabits per second.
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3
LARGEST = 70000  # bytes of an aggregated frame and its header


def wire_end(interface):
    """Returns a socket that receives and sends frames at an interface."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    for option in (PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING):
        end.setsockopt(SOL_PACKET, option, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def relay(ends, seconds):
    """Relays frames between two sockets, ``seconds`` after they came in, until the process is killed."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    delayed = collections.deque()
    while True:
        wait = max(0.0, delayed[0][0] - time.monotonic()) if delayed else None
        for end in select.select(ends, [], [], wait)[0]:
            while True:
                try:
                    frame = end.recv(LARGEST)
                except OSError:  # no more frames, or the interface is down
                    break
                delayed.append((time.monotonic() + seconds, other[end], frame))
        while delayed and delayed[0][0] <= time.monotonic():
            _, end, frame = delayed.popleft()
            try:
                end.send(frame)
            except OSError:  # full, or the interface is down: the frame is lost
                continue


if __name__ == "__main__":
    relay([wire_end(name) for name in sys.argv[1:3]], float(sys.argv[3]) / 1000)
