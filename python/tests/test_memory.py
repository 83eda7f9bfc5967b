"""Registered memory: buffers, lifetimes, misuse."""

import array
import copy
import ctypes
import gc
import mmap
import os
import pickle
import struct
import unittest
import weakref

import vipl
from support import Case

try:
    import numpy
except ImportError:
    numpy = None


class Buffers(Case):
    def test_memory_is_a_buffer(self):
        memory = self.nic.alloc(100)
        self.assertEqual((len(memory), bytes(memory)), (100, bytes(100)))
        memory[3:8] = b"hello"
        memory[0] = 7
        self.assertEqual(bytes(memory[2:9]), b"\0hello\0")
        self.assertEqual((memory[0], memory[-97]), (7, ord("h")))
        struct.pack_into("<I", memory, 50, 0x01020304)
        self.assertEqual(bytes(memory[50:54]), b"\4\3\2\1")
        self.assertEqual(memoryview(memory).nbytes, 100)
        self.assertEqual(ctypes.string_at(memory.address, 8), bytes(memory[:8]))
        with self.assertRaises(ValueError):
            memory[0:5] = b"four"
        with self.assertRaises(IndexError):
            memory[100]
        with self.assertRaises((TypeError, ValueError)):
            memory[0] = 256

    def test_files_and_sockets_use_it(self):
        memory = self.nic.alloc(8)
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0) as source:
            os.write(writer, b"12345678")
            os.close(writer)
            self.assertEqual(source.readinto(memory), 8)
        self.assertEqual(bytes(memory), b"12345678")

    def test_buffers_are_registered_in_place(self):
        for buffer in (bytearray(64), array.array("I", [0] * 16), mmap.mmap(-1, 64), memoryview(bytearray(80))[8:72]):
            with self.nic.register(buffer) as memory:
                memory[4:8] = b"\1\2\3\4"
                self.assertEqual(bytes(memoryview(buffer).cast("B")[3:9]), b"\0\1\2\3\4\0")
                self.assertEqual(len(memory), 64)

    @unittest.skipIf(numpy is None and "CI" not in os.environ, "no numpy")
    def test_numpy(self):
        memory = self.nic.alloc(80)
        words = numpy.frombuffer(memory, dtype="<u8")
        words[:] = range(10)
        self.assertEqual(bytes(memory[8:16]), b"\1" + bytes(7))
        array2 = numpy.zeros((4, 5))
        with self.nic.register(array2) as registered:
            numpy.frombuffer(registered)[7] = 2.5
            self.assertEqual(array2[1, 2], 2.5)
            server, client = self.pair(rdma_write=True)
            server.post_recv(words[2:4])
            client.post_send(array2[1])
            self.assertEqual(client.send_wait(10).length, 40)
            with self.assertRaises(vipl.DescriptorError) as caught:
                server.recv_wait(10)
            self.assertTrue(caught.exception.status & vipl.Status.LENGTH_ERROR)
        for wrong in (array2[:, 1], array2.T, numpy.array([None]), numpy.zeros(3, dtype=[("n", "i4"), ("o", "O")])):
            with self.assertRaises(TypeError):
                self.nic.register(wrong)
        with self.assertRaises((TypeError, ValueError)):
            client.post_send(array2[:, 1])

    def test_a_registered_buffer_cannot_be_resized(self):
        buffer = bytearray(64)
        memory = self.nic.register(buffer)
        with self.assertRaises(BufferError):
            buffer.extend(b"more")
        mapped = mmap.mmap(-1, 4096)
        window = self.nic.register(mapped)
        with self.assertRaises(BufferError):
            mapped.close()
        memory.close()
        window.close()
        del memory, window
        gc.collect()
        buffer.extend(b"more")
        mapped.close()

    def test_what_cannot_be_registered(self):
        for wrong, error in (
            (b"read-only", TypeError),
            (memoryview(bytearray(9)).toreadonly(), TypeError),
            ("text", TypeError),
            (7, TypeError),
            (None, TypeError),
            (bytearray(), ValueError),
            (memoryview(bytearray(64))[::2], TypeError),
        ):
            with self.assertRaises(error, msg=repr(wrong)):
                self.nic.register(wrong)

    def test_sizes_that_do_not_fit(self):
        for size in (0, -1, 1 << 63, 1 << 64, 1 << 100):
            with self.assertRaises(ValueError, msg=size):
                self.nic.alloc(size)
        for size in (1.5, "9", None):
            with self.assertRaises(TypeError):
                self.nic.alloc(size)
        for size in ((1 << 63) - 1, (1 << 62) + 1, 1 << 50):
            with self.assertRaises(vipl.ResourceError):
                self.nic.alloc(size)

    def test_no_copies_and_no_other_way_to_make_one(self):
        memory = self.nic.alloc(64)
        for wrong in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaises(TypeError):
                wrong(memory)
        with self.assertRaises(TypeError):
            vipl.Memory()

    def test_a_part_for_a_peer(self):
        memory = self.nic.alloc(100, rdma_write=True)
        remote = memory.remote(10, 20)
        self.assertEqual(remote, vipl.Remote(memory.address + 10, memory.handle, 20))
        self.assertEqual(vipl.Remote.unpack(remote.pack()), remote)
        self.assertEqual(len(remote.pack()), vipl.Remote.SIZE)
        self.assertEqual(remote[5:9], vipl.Remote(memory.address + 15, memory.handle, 4))
        self.assertEqual(len(remote[30:]), 0)
        for wrong in ((101,), (0, 101), (50, 51), (-1,), (0, -1), (1 << 70,)):
            with self.assertRaises(ValueError, msg=wrong):
                memory.remote(*wrong)
        with self.assertRaises(TypeError):
            remote[3]
        with self.assertRaises(ValueError):
            remote[::2]


class Lifetimes(Case):
    def test_memory_stays_while_a_buffer_uses_it(self):
        memory = self.nic.alloc(1 << 20)
        memory[:5] = b"still"
        view = memory[:5]
        memory.close()
        del memory
        gc.collect()
        self.assertEqual(bytes(view), b"still")
        view[0:1] = b"S"
        self.nic.close()
        self.assertEqual(bytes(view), b"Still")

    def test_unreferenced_memory_is_deregistered_and_freed(self):
        before = vipl.describe("budgets")
        for _ in range(200):
            memory = self.nic.alloc(1 << 24)
            died = weakref.ref(memory)
            del memory
            self.assertIsNone(died())
        self.assertEqual(len(self.nic._tag(None)._handle.children), 0)
        self.assertEqual(type(vipl.describe("budgets")), type(before))

    def test_closing_twice_and_using_closed_memory(self):
        memory = self.nic.alloc(64)
        vi = self.nic.vi()
        memory.close()
        memory.close()
        self.assertIn("closed", repr(memory))
        for use in (
            lambda: memory.handle,
            memory.remote,
            lambda: vi.post_recv(memory),
            lambda: vi.post_recv(memory[:5]),
            lambda: self.nic.descriptor().send(memory),
        ):
            with self.assertRaises(vipl.Closed):
                use()

    def test_deregistering_posted_memory_is_an_error_of_the_transfer(self):
        server, client = self.pair()
        memory, other = self.nic.alloc(64), self.nic.alloc(64)
        server.post_recv(memory)
        memory.close()
        del memory
        gc.collect()
        client.post_send(other)
        with self.assertRaises(vipl.DescriptorError) as caught:
            server.recv_wait(20)
        self.assertTrue(caught.exception.status & vipl.Status.PROTECTION_ERROR, caught.exception)
        self.assertEqual(len(caught.exception.descriptor.parts[0]), 64)

    def test_the_nics_limits(self):
        with self.assertRaises(vipl.ResourceError):
            kept = []
            for _ in range(self.nic.attributes.register_regions_max + 1):
                kept.append(self.nic.alloc(64))
        self.assertGreater(len(kept), 100)

    def test_rights_that_the_nic_does_not_have(self):
        if not self.nic.attributes.rdma_read:
            with self.assertRaises(vipl.InvalidRdmaRead):
                self.nic.alloc(64, rdma_read=True)
        before = len(self.nic._tag(None)._handle.children)
        ptag = self.nic.ptag()
        ptag.close()
        with self.assertRaises(vipl.Closed):
            self.nic.alloc(64, ptag=ptag)
        with self.assertRaises(TypeError):
            self.nic.alloc(64, ptag=7)
        self.assertEqual(len(self.nic._tag(None)._handle.children), before)


if __name__ == "__main__":
    unittest.main()
