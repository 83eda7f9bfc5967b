#!/usr/bin/env python3
"""compare: RDMA Writes from Python beside the same loop in C, in turns, to one target.

    compare.py [--device DEVICE] [--rounds N]        needs a C compiler; VIPL_LIBRARY names the library, built for release

Each writer is a process on the second processor, with 16 writes outstanding; the target, on the first one, does nothing but wait. Prints
for each size the medians and the median of the ratios of neighbours: with a buffer for each outstanding write, on both sides, and with one
for all, which stays in the processor's own cache.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import vipl  # noqa: E402

#: Bytes of a write, and how many of them.
SIZES = ((8, 300_000), (4096, 200_000), (65536, 40_000), (1 << 20, 4_000))
WINDOW = 16
NAME = "compare"


def pin(processor):
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[processor % len(allowed)]})


def take(vi):
    while True:
        done = vi.send_done()
        if done is not None:
            return done


def vipl_writer(device, size, count, buffers):
    with vipl.open(device) as nic:
        place, data = nic.alloc(64), nic.alloc(size * buffers)
        data[:] = b"\1" * len(data)
        vi = nic.vi(rdma_write=True)
        vi.post_recv(place)
        vi.connect(nic.address(NAME), timeout=60, retry=True)
        remote = vipl.Remote.unpack(vi.recv_wait().data)
        starts = [size * (at % buffers) for at in range(WINDOW)]
        sends = [vi.descriptor().write(remote[at : at + size], data[at : at + size]) for at in starts]
        begun = time.perf_counter()
        for send in sends:
            vi.post(send)
        for _ in range(count - WINDOW):
            vi.post(take(vi))
        for _ in sends:
            take(vi)
        print(time.perf_counter() - begun)
        vi.post_send()
        vi.send_wait()


def serve(nic, length):
    """The target's side of one writer."""
    with nic.vi(rdma_write=True) as vi, nic.alloc(length, rdma_write=True) as window, nic.alloc(64) as place:
        vi.post_recv()
        nic.connect_wait(NAME, 60).accept(vi)
        place[: vipl.Remote.SIZE] = window.remote().pack()
        vi.post_send(place[: vipl.Remote.SIZE])
        vi.send_wait()
        vi.recv_wait(120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="via_lo")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--writer", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["VIPL_MAX_TRANSFER_SIZE"] = str(SIZES[-1][0])
    if options.writer:
        pin(1)
        return vipl_writer(options.device, *options.writer)
    library = pathlib.Path(vipl._library.library().path).resolve()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "writer"
        (program.parent / "libvipl.so.1").symlink_to(library)
        (program.parent / "libvipl.so").symlink_to(library)
        headers = HERE.parents[1] / "headers"
        command = ["cc", "-O2", f"-I{headers}", HERE / "writer.c", f"-L{folder}", "-lvipl", f"-Wl,-rpath,{library.parent}"]
        subprocess.run([*command, "-o", program], check=True)
        pin(0)
        with vipl.open(options.device) as nic:
            for (size, count), buffers in itertools.product(SIZES, (WINDOW, 1)):
                writers = {
                    "C": [program, options.device, NAME, size, count, WINDOW, buffers],
                    "Python": [sys.executable, __file__, "--device", options.device, "--writer", size, count, buffers],
                }
                rates = {"C": [], "Python": []}
                for _ in range(options.rounds):
                    for name, command in writers.items():
                        child = subprocess.Popen(
                            list(map(str, command)), stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin(1)
                        )
                        serve(nic, size * buffers)
                        rates[name].append(count / float(child.communicate()[0]))
                ratios = [one / other for one, other in zip(rates["Python"], rates["C"])]
                c, python = (statistics.median(rates[name]) for name in ("C", "Python"))
                print(
                    f"{size:8} bytes, {buffers:2} buffers: C {c * size / 1e9:7.3f} GB/s {1e6 / c:7.2f} us, "
                    f"Python {python * size / 1e9:7.3f} GB/s {1e6 / python:7.2f} us, ratio {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})"
                )


if __name__ == "__main__":
    main()
