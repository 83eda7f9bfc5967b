#!/usr/bin/env python3
"""echo_asyncio: a server in an event loop, for any number of clients, and some clients.

    echo_asyncio.py [DEVICE [CLIENTS]]

Completions come from one queue, by its descriptor in the loop; new clients from a thread, since waiting for one blocks.
"""

import asyncio
import os
import sys

import vipl

TEXT, MESSAGES = 64, 100


def accept_clients(nic, cq, count, vis):
    """In a thread. Each VI has a receive before its client is accepted. As a socket, a VI that nothing references is closed."""
    for _ in range(count):
        vi = nic.vi(recv_cq=cq)
        vis.add(vi)
        memory = nic.alloc(2 * TEXT)
        vi.context = memory[TEXT:]
        vi.post_recv(memory[:TEXT])
        nic.connect_wait("echo_asyncio").accept(vi)


async def serve(cq, count, vis):
    answered = left = 0
    async for entry in cq:
        vi = entry.vi
        try:
            question = entry.take()
        except vipl.DescriptorError:
            vi.close()  # the client has left, which flushed the receive
            vis.discard(vi)
            left += 1
            if left == count:
                return answered
            continue
        answer = vi.context[: question.length]
        answer[:] = question.data
        vi.post(question)
        vi.post_send(answer)
        vi.send_wait()
        answered += 1


def call(device):
    """A client, in a process of its own."""
    with vipl.open(device) as nic:
        vi, memory = nic.vi(), nic.alloc(TEXT)
        vi.post_recv(memory)
        vi.connect(nic.address("echo_asyncio"), timeout=30, retry=True)
        text = nic.alloc(TEXT)
        for number in range(MESSAGES):
            text[:8] = b"%08d" % number
            vi.post_send(text[:8])
            vi.send_wait()
            answer = vi.recv_wait()
            assert bytes(answer.data) == b"%08d" % number
            vi.post(answer)


async def main(device="via_lo", clients="4"):
    count = int(clients)
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            call(device)
            os._exit(0)
        children.append(child)
    with vipl.open(device) as nic, nic.cq(1024) as cq:
        vis = set()
        accepting = asyncio.create_task(asyncio.to_thread(accept_clients, nic, cq, count, vis))
        answered = await serve(cq, count, vis)
        await accepting
    for child in children:
        os.waitpid(child, 0)
    print(f"{count} clients have left, {answered} messages")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
