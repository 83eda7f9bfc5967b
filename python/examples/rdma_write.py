#!/usr/bin/env python3
"""rdma_write: one process writes into the memory of another.

    rdma_write.py [DEVICE]

The target registers a window that peers may write to, sends its place in a message, and does nothing more. The writer fills the window
from an array; with numpy it would be `numpy.frombuffer(memory)`.
"""

import os
import sys

import vipl


def be_written(device):
    with vipl.open(device) as nic:
        window = nic.alloc(64, rdma_write=True)
        place = nic.alloc(vipl.Remote.SIZE)
        vi = nic.vi(rdma_write=True)
        vi.post_recv()  # without memory, for the empty message that follows the data
        nic.connect_wait("rdma_write").accept(vi)
        place[:] = window.remote().pack()
        vi.post_send(place)
        vi.send_wait()
        vi.recv_wait()
        print("the window has:", bytes(window).rstrip(b"\0").decode())


def write_there(device):
    with vipl.open(device) as nic:
        memory = nic.register(bytearray(64))
        vi = nic.vi(rdma_write=True)
        vi.post_recv(memory)
        vi.connect(nic.address("rdma_write"), timeout=30, retry=True)
        window = vipl.Remote.unpack(vi.recv_wait().data)
        text = b"written from another process"
        memory[: len(text)] = text
        vi.post_write(window, memory[: len(text)])
        vi.post_send()  # arrives after the data
        vi.send_wait()
        vi.send_wait()


def main(device="via_lo"):
    child = os.fork()
    if not child:
        write_there(device)
        os._exit(0)
    be_written(device)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
