"""Messages, RDMA, descriptors and completion queues between two VIs of one process."""

import gc
import unittest

import vipl
from support import Case
from vipl import Status


class Messages(Case):
    def test_a_message_with_immediate_data(self):
        server, client = self.pair()
        here, there = self.nic.alloc(64), self.nic.alloc(64)
        posted = server.post_recv(here)
        self.assertTrue(posted.is_posted)
        self.assertIsNone(server.recv_done())
        there[:5] = b"hello"
        sent = client.post_send(there[:5], immediate=0xFFFFFFFF)
        self.assertIs(client.send_wait(20), sent)
        received = server.recv_wait(20)
        self.assertIs(received, posted)
        self.assertFalse(received.is_posted)
        self.assertEqual((bytes(received.data), received.length), (b"hello", 5))
        self.assertEqual((received.immediate, sent.length), (0xFFFFFFFF, 5))
        self.assertEqual(received.status, Status.DONE | Status.IMMEDIATE)
        self.assertEqual(received.status_text, "DONE|IMMEDIATE|OP_RECEIVE")

    def test_several_parts_and_none(self):
        server, client = self.pair()
        here, there = self.nic.alloc(64), self.nic.alloc(64)
        server.post_recv(here[0:2], here[10:20], here[30:31])
        server.post_recv()
        there[:9] = b"gathering"
        client.post_send(there[0:6], there[:0], there[6:9])
        client.post_send()
        first, second = server.recv_wait(20), server.recv_wait(20)
        self.assertEqual(bytes(first.data), b"gathering")
        self.assertEqual([bytes(part) for part in first.parts][:2], [b"ga", b"thering\0\0\0"])
        self.assertEqual((second.length, bytes(second.data), second.immediate), (0, b"", None))

    def test_a_prepared_descriptor_is_posted_again_and_again(self):
        server, client = self.pair()
        here, there = self.nic.alloc(64), self.nic.alloc(64)
        receive, send = server.descriptor().recv(here), client.descriptor().send(there[:9])
        for turn in range(100):
            server.post(receive)
            there[:9] = b"turn %04d" % turn
            client.post(send)
            client.send_wait(20)
            self.assertEqual(bytes(server.recv_wait(20).data), b"turn %04d" % turn)

    def test_rdma(self):
        server, client = self.pair(rdma_write=True, rdma_read=bool(self.nic.attributes.rdma_read))
        window = self.nic.alloc(100, rdma_write=True, rdma_read=bool(self.nic.attributes.rdma_read))
        here = self.nic.alloc(100)
        here[:7] = b"written"
        remote = window.remote()
        client.post_write(remote[20:], here[:7])
        client.send_wait(20)
        server.post_recv()
        client.post_write(remote[40:], here[:7], immediate=9)
        client.send_wait(20)
        received = server.recv_wait(20)
        self.assertEqual((received.immediate, received.is_remote_write, bytes(received.data)), (9, True, b""))
        self.assertEqual(bytes(window[18:29]), b"\0\0written\0\0")
        self.assertEqual(bytes(window[40:47]), b"written")
        if self.nic.attributes.rdma_read:
            client.post_read(remote[38:48], here[50:60])
            self.assertEqual(bytes(client.send_wait(20).data), b"\0\0written\0")

    def test_rdma_that_is_not_permitted(self):
        server, client = self.pair(rdma_write=True)
        closed, here = self.nic.alloc(64), self.nic.alloc(64)
        client.post_write(closed.remote(), here)
        with self.assertRaises(vipl.DescriptorError) as caught:
            client.send_wait(20)
            client.post_send()
            client.send_wait(20)
        self.assertTrue(caught.exception.status & (Status.RDMA_PROTECTION_ERROR | Status.FLUSHED), caught.exception)
        self.assertEqual(bytes(closed), bytes(64))

    def test_a_message_that_is_too_long(self):
        server, client = self.pair()
        here, there = self.nic.alloc(64), self.nic.alloc(64)
        server.post_recv(here[:10])
        client.post_send(there)
        with self.assertRaises(vipl.DescriptorError) as caught:
            server.recv_wait(20)
        error = caught.exception
        self.assertIn("LENGTH_ERROR", str(error))
        self.assertIn("VIP_DESCRIPTOR_ERROR: ", str(error))
        self.assertFalse(error.is_flushed)
        self.assertFalse(error.descriptor.is_posted)

    def test_an_empty_queue(self):
        vi = self.nic.vi()
        self.assertIsNone(vi.send_done())
        self.assertIsNone(vi.recv_done())
        with self.assertRaises(vipl.DescriptorError) as caught:
            vi.recv_wait(20)
        self.assertIsNone(caught.exception.descriptor)
        self.assertIn("nothing is posted", str(caught.exception))

    def test_timeouts(self):
        server, client = self.pair()
        server.post_recv(self.nic.alloc(64))
        for timeout in (0, 0.001, 0.25):
            with self.assertRaises(vipl.Timeout) as caught:
                server.recv_wait(timeout)
            self.assertIsInstance(caught.exception, TimeoutError)
        for wrong in (-1, float("nan"), -0.5):
            with self.assertRaises(ValueError):
                server.recv_wait(wrong)
        with self.assertRaises(TypeError):
            server.recv_wait("soon")

    def test_disconnecting_flushes(self):
        server, client = self.pair()
        memory = self.nic.alloc(64)
        posted = [server.post_recv(memory) for _ in range(3)]
        server.disconnect()
        self.assertEqual(server.state, vipl.ViState.IDLE)
        with self.assertRaises(vipl.DescriptorError) as caught:
            server.recv_done()
        self.assertTrue(caught.exception.is_flushed)
        self.assertIs(caught.exception.descriptor, posted[0])
        self.assertEqual(server.drain(), posted[1:])
        self.assertEqual(server.drain(), [])

    def test_a_full_queue(self):
        vi, memory = self.nic.vi(), self.nic.alloc(64)
        most = self.nic.attributes.descriptors_per_queue_max
        for _ in range(most):
            vi.post_recv(memory)
        extra = vi.descriptor().recv(memory)
        with self.assertRaises(vipl.ResourceError):
            vi.post(extra)
        self.assertFalse(extra.is_posted)
        vi.disconnect()
        self.assertEqual(len(vi.drain()), most)
        vi.post(extra)


class Descriptors(Case):
    def test_misuse(self):
        vi, memory = self.nic.vi(), self.nic.alloc(64)
        one = self.nic.descriptor()
        with self.assertRaisesRegex(ValueError, "no operation"):
            vi.post(one)
        vi.post(one.recv(memory))
        with self.assertRaisesRegex(ValueError, "posted"):
            vi.post(one)
        with self.assertRaisesRegex(ValueError, "posted"):
            one.send(memory)
        self.assertEqual(len(one.parts[0]), 64)
        with self.assertRaises(AttributeError):
            vi.post("descriptor")

    def test_parts_that_are_no_registered_memory(self):
        one, memory = self.nic.descriptor(), self.nic.alloc(64)
        for wrong, error in (
            (b"bytes", TypeError),
            ("text", TypeError),
            (3, TypeError),
            (None, TypeError),
            (bytearray(5), ValueError),
            (memory[::2], TypeError),
            (memory[:5].toreadonly(), TypeError),
        ):
            with self.assertRaises(error, msg=repr(wrong)):
                one.send(wrong)
        with self.assertRaises(TypeError):
            one.write("remote", memory)
        with self.assertRaises(ValueError):
            one.write(vipl.Remote(1, 2, 63), memory)
        for remote in (vipl.Remote(1 << 64, 2, 64), vipl.Remote(1, 1 << 32, 64), vipl.Remote(-1, 2, 64)):
            with self.assertRaises(ValueError):
                one.write(remote, memory)
        for wrong in (-1, 1 << 32):
            with self.assertRaises(ValueError):
                one.send(memory, immediate=wrong)
        with self.assertRaises(TypeError):
            one.send(memory, immediate="7")
        with self.assertRaises(ValueError):
            one.send(*[memory] * (self.nic.attributes.segments_max + 1))

    def test_as_many_parts_as_the_nic_permits(self):
        server, client = self.pair()
        count = self.nic.attributes.segments_max
        here, there = self.nic.alloc(count), self.nic.alloc(count)
        there[:] = bytes(at % 251 for at in range(count))
        server.post_recv(*(here[at : at + 1] for at in range(count)))
        client.post_send(*(there[at : at + 1] for at in range(count)))
        client.send_wait(20)
        self.assertEqual(bytes(server.recv_wait(20).data), bytes(there))

    def test_places_are_used_again(self):
        memory = self.nic.alloc(64)
        for _ in range(5000):
            self.nic.descriptor().send(memory)
            self.nic.descriptor().send(memory, memory, memory)
        regions = list(self.nic._tag(None)._handle.children)
        self.assertLessEqual(len(regions), 3)

    def test_a_descriptor_of_another_tag(self):
        ptag = self.nic.ptag()
        vi, memory = self.nic.vi(), self.nic.alloc(64, ptag=ptag)
        with self.assertRaisesRegex(ValueError, "tag"):
            vi.post(self.nic.descriptor(ptag).recv(memory))
        # The memory alone is found out at the transfer.
        server, client = self.pair()
        server.post_recv(memory)
        client.post_send(self.nic.alloc(8))
        with self.assertRaises(vipl.DescriptorError) as caught:
            server.recv_wait(20)
        self.assertTrue(caught.exception.status & Status.PROTECTION_ERROR)


class CompletionQueues(Case):
    def test_completions_of_several_vis(self):
        cq = self.nic.cq()
        pairs = [self.pair(recv_cq=cq) for _ in range(3)]
        memory = self.nic.alloc(64)
        self.assertIsNone(cq.done())
        with self.assertRaises(vipl.Timeout):
            cq.wait(0.15)
        for number, (server, client) in enumerate(pairs):
            server.post_recv(memory)
            client.post_send(memory[:number])
        found = {}
        for _ in pairs:
            entry = cq.wait(20)
            self.assertTrue(entry.is_receive)
            found[entry.vi] = entry.take().length
        self.assertEqual(found, {server: number for number, (server, _) in enumerate(pairs)})
        with self.assertRaises(vipl.InvalidParameter):
            pairs[0][0].recv_wait(0)

    def test_resizing_and_limits(self):
        cq = self.nic.cq(4)
        cq.resize(8)
        for wrong in (0, self.nic.attributes.cq_entries_max + 1):
            with self.assertRaises(vipl.VipError):
                cq.resize(wrong)
        for wrong in (-1, 1 << 64):
            with self.assertRaises(ValueError):
                cq.resize(wrong)
            with self.assertRaises(ValueError):
                self.nic.cq(wrong)
        with self.assertRaises(TypeError):
            self.nic.vi(recv_cq="queue")

    def test_a_vi_that_is_no_longer_referenced_leaves_no_entry(self):
        cq = self.nic.cq()
        server, client = self.pair(recv_cq=cq)
        memory = self.nic.alloc(64)
        server.post_recv(memory)
        client.post_send(memory[:1])
        client.send_wait(20)
        del server
        gc.collect()
        self.assertIsNone(cq.done())

    def test_closing_a_queue_closes_its_vis(self):
        with self.nic.cq() as cq:
            vi = self.nic.vi(send_cq=cq)
        self.assertIn("closed", repr(vi))
        self.assertIn("closed", repr(cq))
        for use in (cq.done, cq.wait, cq.fileno, cq.arm):
            with self.assertRaises(vipl.Closed):
                use()


if __name__ == "__main__":
    unittest.main()
