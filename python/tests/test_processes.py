"""Two processes over several devices; signals, fork, and the end of the interpreter."""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
import unittest
import unittest.mock

import vipl
from support import DEVICE, PATIENCE, ROOT, Case, python

PEER = ROOT / "tests" / "peer.py"
DEVICES = os.environ.get("VIPL_TEST_DEVICES", "via_lo ip:127.0.0.1 sim:loss=0.02 clan:").split()


def script(text, **keywords):
    return python("-c", textwrap.dedent(text), **keywords)


class TwoProcesses(unittest.TestCase):
    finish = Case.finish

    def test_messages_and_rdma_on_each_device(self):
        for device in DEVICES:
            with self.subTest(device):
                name = f"python {device}"
                server = python(PEER, "server", device, "", name)
                host = server.stdout.readline().strip()
                client = python(PEER, "client", device, host, name)
                self.assertIn("ok", self.finish(client))
                self.assertIn("ok", self.finish(server))

    def test_a_peer_that_is_killed(self):
        child = script(f"""
            import vipl, time
            nic = vipl.open({DEVICE!r})
            vi = nic.vi()
            vi.post_recv(nic.alloc(64))
            nic.connect_wait("killed").accept(vi)
            print("connected", flush=True)
            time.sleep(1000)
        """)
        with vipl.open(DEVICE) as nic:
            vi = nic.vi()
            memory = nic.alloc(64)
            vi.post_recv(memory)
            vi.connect(nic.address("killed"), timeout=PATIENCE, retry=True)
            child.stdout.readline()
            child.kill()
            with self.assertRaises(vipl.DescriptorError) as caught:
                vi.recv_wait(PATIENCE)
            self.assertTrue(caught.exception.is_flushed)
            self.assertEqual(vi.state, vipl.ViState.ERROR)
            vi.post_send(memory)
            with self.assertRaises(vipl.DescriptorError):
                vi.send_wait(PATIENCE)
            vi.disconnect()
            self.assertEqual(vi.state, vipl.ViState.IDLE)
        self.finish(child, -signal.SIGKILL)


class Signals(unittest.TestCase):
    finish = Case.finish

    def interrupted(self, statement, after="assert True"):
        """Ctrl-C in a statement that waits raises KeyboardInterrupt, and the objects are usable afterwards."""
        child = script(f"""
            import threading, time, vipl
            with vipl.open({DEVICE!r}) as nic:
                vi, cq, memory = nic.vi(), nic.cq(), nic.alloc(64)
                vi.post_recv(memory)
                # It holds a request that it does not answer.
                def serve():
                    global request
                    try:
                        request = nic.connect_wait("held")
                    except vipl.Closed:
                        pass
                threading.Thread(target=serve, daemon=True).start()
                try:
                    print("now", flush=True)
                    {statement}
                except KeyboardInterrupt:
                    {after}
                    print("interrupted", vi.state.name, vi.drain() is not None)
        """)
        self.assertEqual(child.stdout.readline(), "now\n")
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        self.assertIn("interrupted IDLE True", self.finish(child))

    def test_ctrl_c_ends_a_wait_for_a_completion(self):
        self.interrupted("vi.recv_wait()", "assert vi.recv_done() is None")

    def test_ctrl_c_ends_a_wait_for_an_entry(self):
        self.interrupted("cq.wait()", "assert cq.done() is None")

    def test_ctrl_c_ends_a_wait_for_a_client(self):
        self.interrupted("nic.connect_wait('interrupted')")

    def test_ctrl_c_ends_a_request(self):
        self.interrupted("vi.connect(nic.address('held'))")

    def test_ctrl_c_ends_a_request_that_finds_no_server(self):
        self.interrupted("vi.connect(nic.address('nowhere'), retry=True)")

    def test_ctrl_c_ends_a_request_to_a_peer(self):
        statement = "vi.connect_peer(nic.address('nowhere'), nic.address('here')); vi.peer_wait()"
        # On a busy machine the signal may come before the wait.
        self.interrupted(statement, "vi.disconnect()")

    def test_without_a_thread_a_request_is_made_all_the_same(self):
        start = threading.Thread.start

        def refuse(thread):
            if thread.name == "vipl-connect":
                raise RuntimeError("can't start new thread")
            start(thread)

        with vipl.open(DEVICE) as nic:
            server, client = nic.vi(), nic.vi()
            thread = threading.Thread(target=lambda: nic.connect_wait("no thread", PATIENCE).accept(server))
            thread.start()
            with unittest.mock.patch.object(threading.Thread, "start", refuse):
                client.connect(nic.address("no thread"), timeout=PATIENCE, retry=True)
            thread.join()
            self.assertEqual(client.state, vipl.ViState.CONNECTED)

    def test_a_completion_that_comes_with_a_signal_is_not_lost(self):
        with vipl.open(DEVICE) as nic:
            vi = nic.vi()
            one = vi.post_recv(nic.alloc(64))
            queue = vi._handle.recvs
            done, calls = queue.done, []

            def interrupted(handle, taken):
                calls.append(done(handle, taken))
                raise KeyboardInterrupt

            vi.disconnect()
            queue.done = interrupted
            with self.assertRaises(KeyboardInterrupt):
                vi.recv_done()
            queue.done = done
            self.assertEqual(len(calls), 1)
            with self.assertRaises(vipl.DescriptorError) as caught:
                vi.recv_done()
            self.assertIs(caught.exception.descriptor, one)
            self.assertFalse(one.is_posted)


class Interrupted(Exception):
    pass


class Interruptions(Case):
    @unittest.skipIf(sys.version_info < (3, 11), "older interpreters raise between any two instructions")
    def test_signals_at_any_instant_lose_nothing(self):
        cq = self.nic.cq(1024)
        server, client = self.pair(recv_cq=cq)
        memory = self.nic.alloc(64)
        receives, sends = server._handle.recvs.posted, client._handle.sends.posted
        # Prepared ones, since a signal in a finalizer is reported, and ignored.
        for_receive = [self.nic.descriptor().recv(memory) for _ in range(50)]
        for_send = [self.nic.descriptor().send(memory[:8]) for _ in range(4)]
        is_armed = False
        interruptions, waited = 0, 0

        def handler(*_):
            nonlocal is_armed
            if is_armed:
                is_armed = False
                raise Interrupted

        def step():
            nonlocal waited
            for vi, descriptors in ((server, for_receive), (client, for_send)):
                for one in descriptors:
                    if not one.is_posted:
                        vi.post(one)
            while client.send_done() is not None:
                pass
            with contextlib.suppress(vipl.Timeout):
                cq.wait(0.001)
                waited += 1
            # Not only what the entry is of: the last one may have been interrupted.
            while server.recv_done() is not None:
                pass

        before = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
        turn = 0
        while interruptions < 1000 or waited < 100:
            turn += 1
            try:
                # However busy the machine is, some turns come to their end.
                is_armed = turn % 4 != 0
                step()
            except Interrupted:
                interruptions += 1
            finally:
                is_armed = False
        # What was complete is returned, and what was posted is flushed; nothing is left over.
        while sends:
            client.send_done()
        while server.recv_done() is not None:
            pass
        posted = set(receives.values())
        server.disconnect()
        self.assertEqual(set(server.drain()), posted)
        self.assertEqual((dict(receives), dict(sends)), ({}, {}))
        self.assertFalse(any(one.is_posted for one in posted))


class Fork(Case):
    def test_a_child_has_nothing_and_the_parent_all(self):
        server, client = self.pair()
        memory = self.nic.alloc(64)
        registered = self.nic.register(bytearray(64))
        server.post_recv(registered)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            found = []
            try:
                for use in (
                    lambda: client.post_send(registered),
                    lambda: server.recv_done(),
                    lambda: self.nic.alloc(64),
                    lambda: memory.remote(),
                ):
                    try:
                        use()
                        found.append("none")
                    except vipl.Closed:
                        found.append("closed")
                self.nic.close()
                with vipl.open(DEVICE) as own:
                    new = own.alloc(64)
                    new[:5] = b"child"
                    del memory
                    assert bytes(new[:5]) == b"child"
                    memory = new
                del use, memory, registered, server, client
                gc.collect()
                os.write(writer, " ".join(found).encode())
            finally:
                os._exit(len(found) - 4)
        os.close(writer)
        with os.fdopen(reader) as source:
            self.assertEqual(source.read(), "closed closed closed closed")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        memory[:6] = b"parent"
        client.post_send(memory[:6])
        client.send_wait(20)
        self.assertEqual(bytes(server.recv_wait(20).data), b"parent")

    def test_processes_of_multiprocessing(self):
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=_answer, args=(sender,))
            child.start()
            self.assertTrue(receiver.poll(PATIENCE))
            self.assertEqual(receiver.recv(), 64)
            child.join(PATIENCE)
            self.assertEqual(child.exitcode, 0)


def _answer(sender):
    with vipl.open(DEVICE) as nic:
        sender.send(len(nic.alloc(64)))


class End(unittest.TestCase):
    """The interpreter ends with objects open, threads in calls, and handlers set."""

    finish = Case.finish

    def ends(self, text):
        child = script(f"import vipl, sys, threading, time\nDEVICE = {DEVICE!r}\n" + textwrap.dedent(text))
        out, err = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, err)
        for word in ("Traceback", "Exception ignored", "Fatal", "panicked"):
            self.assertNotIn(word, err)
        return out

    def test_objects_left_open(self):
        self.ends("""
            nic = vipl.open(DEVICE)
            memory, vi, cq = nic.alloc(64), nic.vi(), nic.cq()
            vi.post_recv(memory)
            nic.on_error(print)
        """)

    def test_a_cycle_with_finalizers_that_use_memory(self):
        out = self.ends("""
            nic = vipl.open(DEVICE)
            class Late:
                def __del__(self):
                    assert bytes(self.view) == b"still"
                    print("late")
            late = Late()
            late.memory = nic.alloc(1 << 20)
            late.view = late.memory[:5]
            late.view[:] = b"still"
            late.cycle = late
        """)
        self.assertEqual(out, "late\n")

    def test_threads_in_calls(self):
        self.ends("""
            nic = vipl.open(DEVICE)
            vi, cq = nic.vi(), nic.cq()
            vi.post_recv(nic.alloc(64))
            def quietly(call):
                try:
                    call()
                except vipl.Closed:
                    pass
            for call in (vi.recv_wait, cq.wait, lambda: nic.connect_wait("x")):
                threading.Thread(target=quietly, args=(call,), daemon=True).start()
            time.sleep(0.2)
        """)

    def test_handlers_that_run(self):
        self.ends("""
            nic = vipl.open(DEVICE)
            entered = threading.Event()
            def handler(error):
                entered.set()
                time.sleep(0.3)
            nic.on_error(handler)
            server, client = nic.vi(), nic.vi()
            thread = threading.Thread(target=lambda: nic.connect_wait("end").accept(server))
            thread.start()
            client.connect(nic.address("end"), timeout=60, retry=True)
            thread.join()
            client.post_send()
            entered.wait()
        """)

    def test_an_exception_ends_it(self):
        child = script(f"""
            import vipl
            nic = vipl.open({DEVICE!r})
            vi = nic.vi()
            vi.post_recv(nic.alloc(64))
            raise SystemExit(3)
        """)
        self.finish(child, 3)

    def test_no_library(self):
        text = """
            import vipl
            help(vipl)
            try:
                vipl.open()
            except vipl.LibraryNotFound as error:
                print("FOUND", error)
        """
        out = self.finish(script(text, environment={"VIPL_LIBRARY": "/no/such/libvipl.so.1"}))
        self.assertIn("tried /no/such/libvipl.so.1: ", out)
        self.assertIn("set VIPL_LIBRARY", out)
        self.assertIn("VipOpenNic", self.finish(script(text, environment={"VIPL_LIBRARY": "libc.so.6"})))

    def test_no_agent(self):
        child = script(
            f"""
            import vipl
            try:
                vipl.open({DEVICE!r}).vi()
                print("opened")
            except vipl.ResourceError as error:
                print(error)
            """,
            environment={"VIPL_AGENT": "/no/such/agent"},
        )
        self.assertIn("VipOpenNic('", self.finish(child))


if __name__ == "__main__":
    unittest.main()
