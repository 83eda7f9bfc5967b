"""Objects are closed, collected and used in odd orders and by several threads."""

import gc
import itertools
import pickle
import threading
import time
import unittest
import weakref

import vipl
from support import DEVICE, PATIENCE, Case
from vipl import _handle


class Closing(Case):
    def made(self):
        cq = self.nic.cq()
        server, client = self.pair(recv_cq=cq)
        memory = self.nic.alloc(64)
        server.post_recv(memory)
        return [server, client, memory, cq, self.nic]

    def test_every_order_of_closing(self):
        for order in itertools.permutations(range(5)):
            with vipl.open(DEVICE) as self.nic:
                objects = self.made()
                for index in order:
                    objects[index].close()
                for one in objects:
                    one.close()
            self.assertFalse(self.nic._handle.is_open)

    def test_every_order_of_letting_go(self):
        for order in itertools.permutations(range(5)):
            self.nic = vipl.open(DEVICE)
            handle = self.nic._handle
            objects = self.made()
            self.nic = None
            for index in order:
                objects[index] = None
            gc.collect()
            self.assertFalse(handle.is_open, order)
            self.assertNotIn(handle, _handle.open_nics)
        self.assertEqual(_handle.unclosed, {})

    def test_a_cycle_is_collected_in_whatever_order(self):
        for turn in range(20):
            self.nic = vipl.open(DEVICE)
            # A handle keeps what is posted.
            handle = weakref.ref(self.nic._handle)
            objects = self.made()
            for number, one in enumerate(objects):
                one.cycle = objects[number - turn % 5], objects
            self.nic = objects = one = None
            gc.collect()
            self.assertIsNone(handle())
        self.assertEqual(_handle.unclosed, {})

    def test_finalizers_of_a_cycle_may_use_its_memory(self):
        found = []

        class Last:
            def __init__(self, view):
                self.view, self.cycle = view, self

            def __del__(self):
                found.append(bytes(self.view))

        library = self.nic._handle.library
        free, codes = library.vipl_free, []
        library.vipl_free = lambda address: codes.append(free(address))
        self.addCleanup(setattr, library, "vipl_free", free)
        for turn in range(50):
            memory = self.nic.alloc(1 << 20)
            memory[:5] = b"still"
            memory.cycle = [Last(memory[:5]), memory, Last(memory[:5])]
            if turn % 2:
                # The library would free it at once.
                memory.close()
            del memory
            gc.collect()
        self.assertEqual(found, [b"still"] * 100)
        self.assertEqual(codes, [0] * 50)

    def test_what_is_made_from_a_nic_keeps_it_open(self):
        server, client = self.pair()
        memory = self.nic.alloc(8)
        nic = weakref.ref(self.nic)
        self.nic = None
        # The test case's stack has one reference.
        self.doCleanups()
        self.assertFalse(memory._handle.is_open)
        del server, client, memory
        gc.collect()
        self.assertIsNone(nic())

    def test_a_vi_alone_keeps_all(self):
        vi = vipl.open(DEVICE).vi()
        gc.collect()
        self.assertEqual(vi.state, vipl.ViState.IDLE)
        handle = vi.nic._handle
        del vi
        gc.collect()
        self.assertFalse(handle.is_open)

    def test_posted_memory_is_kept(self):
        server, client = self.pair()
        receive = self.nic.alloc(64)
        send = bytearray(b"kept")
        died = weakref.ref(receive)
        server.post_recv(receive)
        del receive
        memory = self.nic.register(send)
        client.post_send(memory)
        del memory
        gc.collect()
        self.assertIsNotNone(died())
        client.send_wait(20)
        self.assertEqual(bytes(server.recv_wait(20).data), b"kept")
        gc.collect()
        self.assertIsNone(died())

    def test_a_vi_that_is_let_go_gives_its_memory_back(self):
        server, client = self.pair()
        memory = self.nic.alloc(64)
        one = server.post_recv(memory)
        died = weakref.ref(memory)
        del server, memory
        gc.collect()
        self.assertFalse(one.is_posted)
        self.assertIsNotNone(died())
        del one
        self.assertIsNone(died())

    def test_everything_closed_says_so(self):
        objects = self.made()
        server, _, memory, cq, nic = objects
        one = nic.descriptor().recv(memory)
        nic.close()
        for use in (
            server.recv_done, server.send_wait, server.disconnect, server.drain, lambda: server.state,
            lambda: server.connect(vipl.Address(b"", b"x")), lambda: server.post(one), lambda: server.post_recv(),
            memory.remote, cq.done, nic.cq, nic.vi, nic.ptag, lambda: nic.alloc(8), lambda: nic.connect_wait("x"),
            lambda: nic.on_error(print), lambda: nic.address("x", host="localhost"),
        ):
            with self.assertRaises(vipl.Closed) as caught:
                use()
            self.assertRegex(str(caught.exception), "^this .* is closed$")
        for one in objects:
            self.assertIn("closed", repr(one))

    def test_a_tag_closes_what_has_it(self):
        with self.nic.ptag() as ptag:
            vi, memory = self.nic.vi(ptag=ptag), self.nic.alloc(8, ptag=ptag)
            vi.post_recv(memory)
        self.assertFalse(vi._handle.is_open or memory._handle.is_open)


class Errors(Case):
    def test_they_can_be_pickled(self):
        vi = self.nic.vi()
        caught = []
        for call in (
            lambda: vipl.open("no-such-device"), vi.recv_wait, lambda: vi.connect_peer(vipl.Address(b""), vipl.Address(b"")),
        ):
            try:
                call()
            except vipl.VipError as error:
                caught.append(error)
        vi.close()
        try:
            vi.drain()
        except vipl.VipError as error:
            caught.append(error)
        self.assertEqual(len(caught), 4)
        for error in caught:
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), copy.code), (type(error), str(error), error.code))

    def test_asynchronous_errors(self):
        found, arrived = [], threading.Event()

        def handler(error):
            found.append(error)
            arrived.set()

        self.nic.on_error(handler)
        server, client = self.pair()
        client.post_send()  # and no receive is posted
        try:
            client.send_wait(20)
        except vipl.DescriptorError:
            pass
        self.assertTrue(arrived.wait(PATIENCE))
        self.assertEqual(found[0].code, vipl.AsyncCode.RECEIVE_QUEUE_EMPTY)
        self.assertIs(found[0].vi, server)
        self.assertIn("VIP_ERROR_RECVQ_EMPTY: ", str(found[0]))

    def test_a_handler_that_raises_closes_and_replaces_itself(self):
        seen = []
        threading_hook, sys_hook = threading.Event(), __import__("sys").unraisablehook

        def hook(unraisable):
            seen.append(unraisable.exc_type)
            threading_hook.set()

        __import__("sys").unraisablehook = hook
        self.addCleanup(setattr, __import__("sys"), "unraisablehook", sys_hook)

        def handler(error):
            self.nic.on_error(None)
            error.vi.close()
            with self.assertRaises(vipl.ResourceError):
                self.nic.close()
            raise KeyError("on purpose")

        self.nic.on_error(handler)
        server, client = self.pair()
        client.post_send()
        self.assertTrue(threading_hook.wait(PATIENCE))
        self.assertEqual(seen, [KeyError])
        self.assertIs(server._handle.is_open, False)
        # The library refused while its handler ran, and the NIC has lost nothing but what was closed.
        self.nic.close()


class Threads(Case):
    def test_waits_end_when_their_object_is_closed(self):
        cq = self.nic.cq()
        server, client = self.pair()
        attached = self.nic.vi(recv_cq=cq)
        memory = self.nic.alloc(64)
        server.post_recv(memory)
        attached.post_recv(memory)
        ended = []

        def run(call):
            try:
                call()
            except vipl.VipError as error:
                ended.append(error)

        calls = (server.recv_wait, cq.wait, lambda: self.nic.connect_wait("waits"))
        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        self.nic.close()
        for thread in threads:
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())
        self.assertEqual(len(ended), 3)

    def test_the_other_threads_run_during_a_wait(self):
        server, client = self.pair()
        memory = self.nic.alloc(64)
        server.post_recv(memory)
        received = []
        thread = threading.Thread(target=lambda: received.append(server.recv_wait(PATIENCE)))
        thread.start()
        time.sleep(0.02)
        client.post_send(memory[:1])
        client.send_wait(20)
        thread.join(PATIENCE)
        self.assertEqual(len(received), 1)

    def test_many_threads_on_one_vi(self):
        server, client = self.pair()
        memory = self.nic.alloc(64)
        count, workers = 200, 4
        received, sent = [], []

        def receive():
            for _ in range(count):
                server.post_recv(memory)
            for _ in range(count):
                received.append(server.recv_wait(PATIENCE))

        def send():
            for number in range(count):
                client.post_send(memory[:8], immediate=number)
                sent.append(client.send_wait(PATIENCE))

        receivers = [threading.Thread(target=receive) for _ in range(workers)]
        for thread in receivers:
            thread.start()
        while len(server._handle.recvs.posted) + len(received) < count * workers:
            time.sleep(0.001)
        senders = [threading.Thread(target=send) for _ in range(workers)]
        for thread in senders:
            thread.start()
        for thread in receivers + senders:
            thread.join(PATIENCE)
        self.assertEqual(len({id(one) for one in received}), count * workers)
        self.assertEqual(len(sent), count * workers)
        expected = sorted(number for number in range(count) for _ in range(workers))
        self.assertEqual(sorted(one.immediate for one in received), expected)

    def test_one_descriptor_is_posted_by_one_thread(self):
        vi, memory = self.nic.vi(), self.nic.alloc(64)
        one = self.nic.descriptor().recv(memory)
        results = []

        def post():
            try:
                results.append(vi.post(one))
            except ValueError:
                results.append(None)

        threads = [threading.Thread(target=post) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results.count(one), 1)

    def test_closing_while_others_use_it(self):
        for _ in range(20):
            server, client = self.pair()
            memory = self.nic.alloc(64)
            unexpected = []

            def use(vi):
                try:
                    while True:
                        vi.post_recv(memory)
                        vi.drain()
                        if len(vi._handle.recvs.posted) > 500:
                            vi.disconnect()
                except vipl.Closed:
                    pass
                except BaseException as error:
                    unexpected.append(error)

            threads = [threading.Thread(target=use, args=(vi,)) for vi in (server, client, server)]
            for thread in threads:
                thread.start()
            time.sleep(0.005)
            server.close()
            client.close()
            for thread in threads:
                thread.join(PATIENCE)
            self.assertEqual(unexpected, [])
            self.assertEqual(len(server._handle.recvs.posted) + len(client._handle.recvs.posted), 0)


if __name__ == "__main__":
    unittest.main()
