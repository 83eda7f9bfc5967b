"""The notebooks give the outputs that they show; and the runner notices when they do not."""

import json
import pathlib
import tempfile
import unittest

from support import ROOT, Case, python

NOTEBOOKS = ROOT / "notebooks"


class Notebooks(unittest.TestCase):
    finish = Case.finish

    def test_each(self):
        paths = sorted(NOTEBOOKS.glob("*.ipynb"))
        self.assertGreaterEqual(len(paths), 2)
        for path in paths:
            with self.subTest(path.name):
                self.assertIn("cells are right", self.finish(python(NOTEBOOKS / "run.py", path)))

    def run_cells(self, *cells):
        """The runner's exit status for cells of source, stored text and tags."""
        made = []
        for source, text, *tags in cells:
            outputs = [{"output_type": "stream", "name": "stdout", "text": [text]}] if text else []
            made.append({"cell_type": "code", "metadata": {"tags": tags}, "source": [source], "outputs": outputs})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "one.ipynb"
            path.write_text(json.dumps({"cells": made}))
            process = python(NOTEBOOKS / "run.py", path)
            process.communicate()
            return process.returncode

    def test_the_runner(self):
        self.assertEqual(self.run_cells(("a = 3", ""), ("print(a, 'it  is')", "4 it is")), 0)
        self.assertEqual(self.run_cells(("'value'", "'value'"),), 0)
        self.assertEqual(self.run_cells(("raise KeyError('k')", "'k'", "raises-exception"),), 0)
        self.assertEqual(self.run_cells(("print('other')", "text"),), 1)
        self.assertEqual(self.run_cells(("print('more')", ""),), 1)
        self.assertEqual(self.run_cells(("pass", "text"),), 1)
        self.assertEqual(self.run_cells(("raise KeyError", ""),), 1)
        self.assertEqual(self.run_cells(("a = 3", "", "raises-exception"),), 1)
        self.assertEqual(self.run_cells(("a = 3", ""), ("nothing", "")), 1)


if __name__ == "__main__":
    unittest.main()
