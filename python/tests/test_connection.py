"""Connecting: both models, names, and what goes wrong."""

import os
import signal
import threading
import time
import unittest

import vipl
from support import DEVICE, PATIENCE, Case, connect


class ClientAndServer(Case):
    def test_what_each_side_learns(self):
        server = self.nic.vi(transfer_max=4096, rdma_write=True)
        client = self.nic.vi(transfer_max=4096)
        found = []

        def serve():
            request = self.nic.connect_wait("learns", PATIENCE)
            found.append((request.client, request.attributes, repr(request)))
            request.accept(server)

        thread = threading.Thread(target=serve)
        thread.start()
        local = self.nic.address(b"me\0")
        attributes = client.connect(self.nic.address("learns"), local, PATIENCE, retry=True)
        thread.join()
        self.assertEqual(attributes, server.status.attributes)
        self.assertEqual(found[0][:2], (local, client.status.attributes))
        self.assertIn("b'me\\x00'", found[0][2])
        self.assertEqual((server.state, client.state), (vipl.ViState.CONNECTED,) * 2)
        with self.assertRaises(vipl.InvalidState):
            client.connect(self.nic.address("learns"), timeout=1)

    def test_a_rejected_request(self):
        client = self.nic.vi()
        thread = threading.Thread(target=lambda: self.nic.connect_wait("rejects", PATIENCE).reject())
        thread.start()
        with self.assertRaises(vipl.Reject):
            client.connect(self.nic.address("rejects"), timeout=PATIENCE, retry=True)
        thread.join()
        self.assertEqual(client.state, vipl.ViState.IDLE)

    def test_a_request_that_is_dropped_is_rejected(self):
        client = self.nic.vi()
        thread = threading.Thread(target=lambda: self.nic.connect_wait("drops", PATIENCE) and None)
        thread.start()
        with self.assertRaises(vipl.Reject):
            client.connect(self.nic.address("drops"), timeout=PATIENCE, retry=True)
        thread.join()

    def test_other_attributes_can_be_tried_again(self):
        client, small, right = self.nic.vi(), self.nic.vi(transfer_max=4096), self.nic.vi()
        found = []

        def serve():
            with self.nic.connect_wait("tries", PATIENCE) as request:
                try:
                    request.accept(small)
                except vipl.InvalidMtu as error:
                    found.append(error)
                request.accept(right)
                with self.assertRaises(vipl.Closed):
                    request.accept(small)

        thread = threading.Thread(target=serve)
        thread.start()
        client.connect(self.nic.address("tries"), timeout=PATIENCE, retry=True)
        thread.join()
        self.assertEqual(len(found), 1)
        self.assertEqual(right.state, vipl.ViState.CONNECTED)

    def test_nothing_waits_there(self):
        vi = self.nic.vi()
        with self.assertRaises(vipl.NoMatch) as caught:
            vi.connect(self.nic.address("nothing"), timeout=1)
        self.assertIn("VipConnectRequest(", str(caught.exception))
        self.assertIn("b'nothing'", str(caught.exception))
        with self.assertRaises((vipl.NoMatch, vipl.Timeout)):
            vi.connect(self.nic.address("nothing"), timeout=0.05, retry=True)
        with self.assertRaises(vipl.Timeout):
            self.nic.connect_wait("nothing", 0.15)
        with self.assertRaises(vipl.Timeout):
            self.nic.connect_wait("nothing", 0)
        with self.assertRaises(vipl.InvalidParameter):
            self.nic.connect_wait(b"x" * 65)
        with self.assertRaises(ValueError):
            vi.connect(self.nic.address(b"x" * 65536), timeout=1)

    def test_wrong_types(self):
        vi, here = self.nic.vi(), self.nic.address("here")
        for wrong in ("hello", b"hello", 7, None):
            for use in (
                lambda: vi.connect(wrong),
                lambda: vi.connect_peer(wrong, here),
                lambda: vi.connect_peer(here, wrong),
            ):
                with self.assertRaises(TypeError, msg=repr(wrong)):
                    use()
        for wrong in (7, None, 1.5, ["x"]):
            with self.assertRaises(TypeError, msg=repr(wrong)):
                self.nic.address(wrong)
            with self.assertRaises(TypeError, msg=repr(wrong)):
                self.nic.connect_wait(wrong)
        with self.assertRaises(TypeError):
            self.nic.address("x", host=7)
        with self.assertRaises(TypeError):
            self.nic.on_error("handler")
        with self.assertRaises(TypeError):
            vi.connect(here, timeout="soon")

    def waits(self, on_call=lambda: None):
        """Counts the calls of VipConnectWait."""
        library = self.nic._handle.library
        wait, calls = library.VipConnectWait, []

        def counted(*arguments):
            calls.append(threading.current_thread().name)
            on_call()
            return wait(*arguments)

        library.VipConnectWait = counted
        self.addCleanup(setattr, library, "VipConnectWait", wait)
        return calls

    def test_a_wait_is_one_call(self):
        # Between two calls a client of VIPL_STRICT would find no server.
        calls = self.waits()

        def wait():
            with self.assertRaises(vipl.Timeout):
                self.nic.connect_wait("one call", 0.35)

        wait()
        self.assertEqual(calls, ["vipl-connect"])
        thread = threading.Thread(target=wait, name="another")
        thread.start()
        thread.join()
        self.assertEqual(calls, ["vipl-connect", "another"])

    def test_a_wait_goes_on_after_a_signal(self):
        class Interrupted(Exception):
            pass

        def handler(*_):
            raise Interrupted

        before = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        has_interrupted = []

        def interrupt():
            if not has_interrupted:
                has_interrupted.append(True)
                os.kill(os.getpid(), signal.SIGALRM)

        calls = self.waits(interrupt)
        with self.assertRaises(Interrupted):
            self.nic.connect_wait("goes on")
        with self.assertRaises(vipl.Timeout):
            self.nic.connect_wait("goes on", 0.01)
        server, client = self.nic.vi(), self.nic.vi()
        thread = threading.Thread(target=lambda: client.connect(self.nic.address("goes on"), timeout=PATIENCE))
        thread.start()
        self.nic.connect_wait("goes on", PATIENCE).accept(server)
        thread.join()
        self.assertEqual(client.state, vipl.ViState.CONNECTED)
        self.assertEqual(len(calls), 1)
        # The limit of an interrupted wait does not shorten the next one.
        has_interrupted.clear()
        with self.assertRaises(Interrupted):
            self.nic.connect_wait("goes on", 0.05)
        other, patient = self.nic.vi(), self.nic.vi()

        def connect_later():
            while len(calls) < 3:
                time.sleep(0.001)
            patient.connect(self.nic.address("goes on"), timeout=PATIENCE, retry=True)

        thread = threading.Thread(target=connect_later)
        thread.start()
        self.nic.connect_wait("goes on", PATIENCE).accept(other)
        thread.join()
        self.assertEqual(len(calls), 3)

    def test_a_wait_ends_when_its_nic_is_closed(self):
        found = []

        def wait():
            try:
                self.nic.connect_wait("forever")
            except vipl.Closed as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        self.nic.close()
        thread.join(PATIENCE)
        self.assertEqual(len(found), 1)


class Peers(Case):
    def test_both_request(self):
        one, two = self.nic.vi(), self.nic.vi()
        here, there = self.nic.address("one"), self.nic.address("two")
        one.connect_peer(there, here, 20)
        self.assertIsNone(one.peer_done())
        self.assertEqual(one.state, vipl.ViState.CONNECT_PENDING)
        two.connect_peer(here, there, 20)
        self.assertEqual(one.peer_wait(), two.peer_wait())
        memory = self.nic.alloc(8)
        two.post_recv(memory)
        one.post_send(memory[:3])
        self.assertEqual(two.recv_wait(20).length, 3)
        with self.assertRaises(vipl.InvalidState):
            one.peer_done()

    def test_one_is_alone(self):
        vi = self.nic.vi()
        vi.connect_peer(self.nic.address("none"), self.nic.address("alone"), 0.05)
        with self.assertRaises(vipl.Timeout):
            vi.peer_wait()
        self.assertEqual(vi.state, vipl.ViState.IDLE)
        vi.connect_peer(self.nic.address("none"), self.nic.address("alone"))
        vi.disconnect()
        with self.assertRaises(vipl.VipError):
            vi.peer_wait()


class Names(Case):
    def test_hosts(self):
        own = self.nic.attributes.address
        self.assertEqual(self.nic.address("x").host, own)
        self.assertEqual(self.nic.address("x", host=own).host, own)
        self.assertEqual(self.nic.address("x", host="localhost").host, own)
        self.assertEqual(self.nic.address("x", host=self.nic.address().host_text).host, own)
        with self.assertRaises(vipl.NameServiceError) as caught:
            self.nic.address("x", host="no-such-host.invalid")
        self.assertIn("no-such-host.invalid", str(caught.exception))
        with self.assertRaises(ValueError):
            self.nic.address("x", host="no\0host")

    def test_what_is_an_address_and_what_is_a_name(self):
        from vipl.address import parse_host

        self.assertEqual(parse_host("192.0.2.7:34998"), bytes([192, 0, 2, 7, 0x88, 0xB6]))
        self.assertEqual(parse_host("[2001:db8::7]:9")[:2] + parse_host("[2001:db8::7]:9")[-2:], b"\x20\x01\x00\x09")
        self.assertEqual(parse_host("02:00:ff:10:00:01"), bytes([2, 0, 255, 16, 0, 1]))
        self.assertEqual(parse_host("2-0-ff-10-0-1"), bytes([2, 0, 255, 16, 0, 1]))
        for name in ("localhost", "", "1:2:3:4:5", "1:2:3:4:5:100", "host:80", "192.0.2.7", "1.2.3.4:99999"):
            self.assertIsNone(parse_host(name), name)

    def test_addresses_are_encoded_as_the_header_says(self):
        address = vipl.Address(bytes(range(1, 7)), b"ab")
        self.assertEqual(vipl.Address.decode(address.encode()), address)
        self.assertEqual(vipl.Address.decode(address.encode() + b"rest"), address)
        self.assertEqual(vipl.Address.decode(b""), vipl.Address(b""))
        self.assertEqual(vipl.Address.decode(b"\xff\xff\xff\xffabc"), vipl.Address(b"abc"))
        self.assertEqual(str(address), "01:02:03:04:05:06 b'ab'")


class Devices(unittest.TestCase):
    def test_a_device_that_is_not_there(self):
        with self.assertRaises(vipl.InvalidParameter) as caught:
            vipl.open("no-such-device")
        self.assertEqual(caught.exception.function, "VipOpenNic")
        self.assertIn("'no-such-device'", str(caught.exception))
        self.assertIn("VIP_INVALID_PARAMETER: ", str(caught.exception))
        for wrong, error in (("via\0lo", ValueError), ("x" * 64, vipl.InvalidParameter), ("", vipl.InvalidParameter)):
            with self.assertRaises(error):
                vipl.open(wrong)
        with self.assertRaises(AttributeError):
            vipl.open(7)

    def test_what_the_library_knows(self):
        self.assertIn("library", vipl.describe("version"))
        self.assertIsInstance(vipl.describe(f"map {DEVICE}"), dict)
        with self.assertRaises(vipl.InvalidParameter):
            vipl.describe("nothing")
        self.assertEqual(vipl.strerror(4).partition(":")[0], "VIP_TIMEOUT")
        self.assertIn("LENGTH_ERROR", vipl.status_text(9))

    def test_what_a_nic_does_not_offer(self):
        with vipl.open(DEVICE) as nic:
            with self.assertRaises(vipl.InvalidMtu):
                nic.vi(transfer_max=nic.attributes.transfer_max + 1)
            for wrong in (-1, 1 << 64):
                with self.assertRaises(ValueError):
                    nic.vi(transfer_max=wrong)
            with self.assertRaises(vipl.InvalidReliabilityLevel):
                nic.vi(reliability=vipl.Reliability(0))
            with self.assertRaises(TypeError):
                nic.vi(ptag="tag")
            for level in vipl.Reliability:
                server, client = nic.vi(reliability=level), nic.vi(reliability=level)
                connect(server, client, f"level {level}")


if __name__ == "__main__":
    unittest.main()
