"""Completion queues in event loops."""

import asyncio
import os
import selectors
import socket
import unittest

import vipl
from support import PATIENCE, Case


class Loops(Case):
    def setUp(self):
        super().setUp()
        self.cq = self.nic.cq()
        self.server, self.client = self.pair(recv_cq=self.cq)
        self.memory = self.nic.alloc(64)

    def send(self, number):
        self.client.post_send(self.memory[:4], immediate=number)
        self.client.send_wait(PATIENCE)

    def test_selectors(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.cq, selectors.EVENT_READ)
            self.assertEqual(selector.select(0), [])
            self.cq.arm()
            self.server.post_recv(self.memory)
            self.assertEqual(selector.select(0), [])
            self.send(1)
            self.assertEqual(len(selector.select(PATIENCE)), 1)
            self.assertEqual(self.cq.done().take().immediate, 1)
            self.assertIsNone(self.cq.done())
            self.cq.arm()
            self.assertEqual(selector.select(0), [])

    def test_entries_one_after_the_other(self):
        async def receive():
            numbers = []
            async for entry in self.cq:
                numbers.append(entry.take().immediate)
                if len(numbers) == 10:
                    return numbers

        async def main():
            task = asyncio.create_task(receive())
            for number in range(10):
                self.server.post_recv(self.memory)
                self.send(number)
                await asyncio.sleep(0)
            return await asyncio.wait_for(task, PATIENCE)

        self.assertEqual(asyncio.run(main()), list(range(10)))

    def test_one_task_waits_and_can_be_cancelled(self):
        async def main():
            first = asyncio.create_task(self.cq.next())
            await asyncio.sleep(0.01)
            with self.assertRaises(RuntimeError):
                await self.cq.next()
            first.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await first
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.cq.next(), 0.05)
            self.server.post_recv(self.memory)
            self.send(5)
            return (await asyncio.wait_for(self.cq.next(), PATIENCE)).take().immediate

        self.assertEqual(asyncio.run(main()), 5)

    def test_closing_ends_the_loop_over_entries(self):
        async def receive():
            return [entry async for entry in self.cq]

        async def main(close):
            task = asyncio.create_task(receive())
            await asyncio.sleep(0.01)
            close()
            return await asyncio.wait_for(task, PATIENCE)

        self.assertEqual(asyncio.run(main(self.cq.close)), [])
        with self.assertRaises(vipl.Closed):
            asyncio.run(self.cq.next())

    def test_closing_leaves_a_new_file_with_the_same_number_alone(self):
        async def main():
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(self.cq.next())
            await asyncio.sleep(0.01)
            number = self.cq.fileno()
            self.cq.close()
            # Before the task runs again.
            reader, writer = socket.socketpair()
            with reader, writer:
                if reader.fileno() != number:
                    os.dup2(reader.fileno(), number)
                    self.addCleanup(os.close, number)
                readable = asyncio.Event()
                loop.add_reader(number, readable.set)
                with self.assertRaises(vipl.Closed):
                    await task
                writer.send(b"x")
                await asyncio.wait_for(readable.wait(), PATIENCE)
                loop.remove_reader(number)

        asyncio.run(main())

    def test_calls_that_block_run_in_threads(self):
        async def main():
            self.server.post_recv(self.memory)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self.cq.wait, 0.1), 0.02)
            wait = asyncio.create_task(asyncio.to_thread(self.nic.connect_wait, "in a thread"))
            await asyncio.sleep(0.05)
            self.nic.close()
            with self.assertRaises(vipl.Closed):
                await wait

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
