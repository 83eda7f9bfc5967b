"""The examples on several devices."""

import unittest

from support import ROOT, Case, python

EXAMPLES = ROOT / "examples"


class Examples(unittest.TestCase):
    finish = Case.finish

    def run_on(self, device, name, *arguments):
        return self.finish(python(EXAMPLES / name, device, *arguments))

    def test_pingpong(self):
        self.assertRegex(self.run_on("via_lo", "pingpong.py"), r"64 bytes, 2000 rounds: \d+\.\d us one way")

    def test_pingpong_between_hosts(self):
        server = python(EXAMPLES / "pingpong.py", "ip:127.0.0.1", "server")
        host = server.stdout.readline().split()[-1]
        self.assertIn(" us one way", self.run_on("ip:127.0.0.1", "pingpong.py", "client", host))
        self.finish(server)

    def test_rdma_write(self):
        for device in ("via_lo", "clan:", "sim:loss=0.02"):
            with self.subTest(device):
                self.assertEqual(self.run_on(device, "rdma_write.py"), "the window has: written from another process\n")

    def test_echo(self):
        for device, clients in (("via_lo", 4), ("sim:loss=0.02", 2)):
            with self.subTest(device):
                said = self.run_on(device, "echo_asyncio.py", clients)
                self.assertEqual(said, f"{clients} clients have left, {100 * clients} messages\n")


if __name__ == "__main__":
    unittest.main()
