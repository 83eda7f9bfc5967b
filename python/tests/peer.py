"""One of two processes of test_processes.py: `peer.py server|client DEVICE HOST NAME`. Prints "ok" at its end.

The server prints its address in its first line.
"""

import sys

import vipl

PATIENCE = 120
ROUNDS = 20


def main(role, device, host, name):
    with vipl.open(device) as nic, nic.cq() as cq:
        has_read = bool(nic.attributes.rdma_read & vipl.Reliability.DELIVERY)
        window = nic.alloc(4096, rdma_write=True, rdma_read=has_read)
        here = nic.register(bytearray(4096))
        vi = nic.vi(rdma_write=True, rdma_read=has_read, recv_cq=cq)
        receives = [vi.post_recv(here[at : at + 64]) for at in (0, 64)]
        if role == "server":
            print(nic.address().host_text, flush=True)
            nic.connect_wait(name, PATIENCE).accept(vi)
        else:
            vi.connect(nic.address(name, host=host), timeout=PATIENCE, retry=True)

        def receive():
            entry = cq.wait(PATIENCE)
            assert entry.vi is vi and entry.is_receive
            return entry.take()

        # Each side says where the other may write.
        here[1024 : 1024 + vipl.Remote.SIZE] = window.remote().pack()
        vi.post_send(here[1024 : 1024 + vipl.Remote.SIZE], immediate=7)
        vi.send_wait(PATIENCE)
        first = receive()
        assert first.immediate == 7 and first in receives
        remote = vipl.Remote.unpack(first.data)
        vi.post(first)
        for turn in range(ROUNDS):
            text = f"{role} {turn}".encode().ljust(32)
            here[2048:2080] = text
            vi.post_write(remote[64 * turn : 64 * turn + 32], here[2048:2080], immediate=turn)
            vi.send_wait(PATIENCE)
            arrived = receive()
            assert arrived.is_remote_write and arrived.immediate == turn, arrived
            other = {"server": "client", "client": "server"}[role]
            assert bytes(window[64 * turn : 64 * turn + 32]) == f"{other} {turn}".encode().ljust(32)
            vi.post(arrived)
        if has_read:
            # What this process wrote there last.
            vi.post_read(remote[64 * (ROUNDS - 1) :][:32], here[3000:3032])
            assert bytes(vi.send_wait(PATIENCE).data) == text
        vi.post_send(here[:0])
        vi.send_wait(PATIENCE)
        assert receive().length == 0
        if role == "server":
            # The client disconnects first, which flushes what is posted here.
            try:
                receive()
                raise AssertionError("a message after the last one")
            except vipl.DescriptorError as error:
                assert error.is_flushed, error
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
