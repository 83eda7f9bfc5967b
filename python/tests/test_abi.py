"""The declarations are those of the headers."""

import ctypes
import pathlib
import re
import subprocess
import sys
import unittest

from support import ROOT
from vipl import _abi, descriptor, errors
from vipl._library import library

HEADERS = ROOT.parent / "headers"


class Declarations(unittest.TestCase):
    def test_they_are_up_to_date(self):
        subprocess.run([sys.executable, ROOT / "declare.py", "--check"], check=True)

    def test_sizes_and_offsets(self):
        column = {8: 1, 4: 2}[ctypes.sizeof(ctypes.c_void_p)]
        compared = 0
        for line in (HEADERS / "abi" / "layout.txt").read_text().splitlines():
            words = line.split()
            if line.startswith("#") or ":" in words[0] or len(words) != 3:
                continue
            name, _, member = words[0].partition(".")
            kind = getattr(_abi, name, None)
            if kind is None:
                self.assertFalse(name.startswith("VIP_"), f"{name} is not declared")
                continue
            found = getattr(kind, member).offset if member else ctypes.sizeof(kind)
            self.assertEqual(found, int(words[column]), line)
            compared += 1
        self.assertGreater(compared, 80)

    def test_every_exported_function_is_declared(self):
        names = (HEADERS / "abi" / "symbols.txt").read_text().split()
        self.assertEqual(sorted(_abi.FUNCTIONS), sorted(names))
        for name in names:
            self.assertTrue(callable(getattr(library(), name)))

    def test_constants_have_the_values_of_a_c_compiler(self):
        names = re.findall(r"^(VIP_\w+) = [0-9(c]", pathlib.Path(_abi.__file__).read_text(), re.M)
        values = {name: getattr(_abi, name) for name in names}
        values = {name: value for name, value in values.items() if isinstance(value, int)}
        self.assertGreater(len(values), 60)
        lines = [f"_Static_assert((unsigned long){name} == {value}UL, \"{name}\");" for name, value in values.items()]
        source = '#include "vipl.h"\n#include "vipl_ext.h"\n' + "\n".join(lines)
        try:
            command = ["cc", "-fsyntax-only", "-x", "c", "-I", HEADERS, "-"]
            compiled = subprocess.run(command, input=source, text=True, capture_output=True)
        except FileNotFoundError:
            self.skipTest("no C compiler")
        self.assertEqual(compiled.returncode, 0, compiled.stderr)

    def test_packed_structures_are_those_of_the_header(self):
        control, segment = _abi.VIP_CONTROL_SEGMENT, _abi.VIP_DATA_SEGMENT
        self.assertEqual(descriptor.CONTROL.size, ctypes.sizeof(control))
        self.assertEqual(descriptor.CONTROL_SIZE, ctypes.sizeof(control))
        self.assertEqual(descriptor.SEGMENT.size, ctypes.sizeof(segment))
        self.assertEqual(descriptor.RESULT_AT, control.ImmediateData.offset)
        one = control.from_buffer_copy(descriptor.CONTROL.pack(1, 2, 3, 4, 5, 6, 7, 8))
        found = one.Next.AddressBits, one.NextHandle, one.SegCount, one.Control, one.Reserved
        self.assertEqual(found, (1, 2, 3, 4, 5))
        self.assertEqual((one.ImmediateData, one.Length, one.Status), (6, 7, 8))
        two = segment.from_buffer_copy(descriptor.SEGMENT.pack(1, 2, 3))
        self.assertEqual((two.Data.AddressBits, two.Handle, two.Length), (1, 2, 3))


class Names(unittest.TestCase):
    def test_each_return_code_has_a_class(self):
        codes = {name: value for name, value in vars(_abi).items() if isinstance(value, int)}
        returns = re.findall(r"VIP_\w+(?= = )", (HEADERS / "vipl.h").read_text().split("} VIP_RETURN")[0].split("typedef enum")[-1])
        self.assertEqual(len(returns), 17)
        for name in returns[1:]:
            error = errors.error("VipTest", codes[name])
            self.assertNotEqual(type(error), errors.VipError, name)
            self.assertEqual(error.code, codes[name])
            self.assertIn(f"{name}: ", str(error))

    def test_each_asynchronous_error_has_a_name(self):
        for code in errors.AsyncCode:
            self.assertRegex(str(errors.AsyncError(code)), r"^VIP_ERROR_\w+: ")
        self.assertIn("12345", str(errors.AsyncError(12345)))

    def test_all_that_is_public_is_described(self):
        import vipl

        for name in vipl.__all__:
            self.assertTrue(getattr(vipl, name).__doc__, name)


if __name__ == "__main__":
    unittest.main()
