"""What the tests share: a device, and pairs of connected VIs."""

import contextlib
import os
import pathlib
import subprocess
import sys
import threading
import unittest

import vipl

ROOT = pathlib.Path(__file__).resolve().parents[1]

#: Seconds that nothing here takes, however busy the machine is.
PATIENCE = 120

#: What tests of one process run on.
DEVICE = os.environ.get("VIPL_TEST_DEVICE", "via_lo")


def connect(server, client, name):
    """Connects two idle VIs of this process."""
    done = []

    def serve():
        done.append(server.nic.connect_wait(name, PATIENCE).accept(server))

    thread = threading.Thread(target=serve)
    thread.start()
    client.connect(client.nic.address(name, host=server.nic.attributes.address), timeout=PATIENCE, retry=True)
    thread.join()
    assert done, "the server has accepted"


def python(*arguments, **keywords):
    """Starts another interpreter with this package."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), **keywords.pop("environment", {}))
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )


class Case(unittest.TestCase):
    """A test with an open NIC, which is closed at its end with whatever the test has left."""

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.nic = stack.enter_context(vipl.open(DEVICE))

    def pair(self, **attributes):
        """Two connected VIs."""
        server, client = self.nic.vi(**attributes), self.nic.vi(**attributes)
        connect(server, client, self.id()[-60:])
        return server, client

    def finish(self, process, expected=0):
        """Waits for another interpreter; its output."""
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, expected, f"{out}\n{err}")
        return out
