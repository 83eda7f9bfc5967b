#!/usr/bin/env python3
"""pingpong: messages to and fro, and how long one takes.

    pingpong.py [DEVICE]                 both sides on this host
    pingpong.py DEVICE server            on one host; prints its address
    pingpong.py DEVICE client HOST       on another; HOST is a name, or the address that the server has printed
"""

import os
import statistics
import sys
import time

import vipl

ROUNDS, BYTES = 2000, 64


def receive(vi):
    """Polls: shortest, and the processor is busy meanwhile. vi.recv_wait() sleeps."""
    while True:
        done = vi.recv_done()
        if done is not None:
            return done


def play(vi, memory, is_first):
    """Sends and receives in turns; the times of all rounds in seconds."""
    receives = vi.descriptor().recv(memory[:BYTES])
    sends = vi.descriptor().send(memory[BYTES:])
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        if is_first:
            vi.post(sends)
            vi.send_wait()
        receive(vi)
        vi.post(receives)  # before the peer may send again
        if not is_first:
            vi.post(sends)
            vi.send_wait()
        times.append(time.perf_counter() - begun)
    return times


def serve(device):
    with vipl.open(device) as nic:
        memory, vi = nic.alloc(2 * BYTES), nic.vi()
        vi.post_recv(memory[:BYTES])
        print(f"waiting at {nic.address().host_text}", flush=True)
        nic.connect_wait("pingpong").accept(vi)
        play(vi, memory, False)


def call(device, host):
    with vipl.open(device) as nic:
        memory, vi = nic.alloc(2 * BYTES), nic.vi()
        vi.post_recv(memory[:BYTES])
        vi.connect(nic.address("pingpong", host), timeout=30, retry=True)
        half = statistics.median(play(vi, memory, True)) / 2
        print(f"{BYTES} bytes, {ROUNDS} rounds: {half * 1e6:.1f} us one way")


def main(device="via_lo", role=None, host=None):
    if role == "server":
        serve(device)
    elif role == "client":
        call(device, host)
    else:
        child = os.fork()
        if not child:
            serve(device)
            os._exit(0)
        call(device, None)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
