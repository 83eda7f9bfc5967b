"""The C library: found and opened at the first call that needs it."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib

from . import _abi

#: The file, under the names that it may have.
FILES = ("libvipl.so.1", "libvipl.so")


class LibraryNotFound(OSError):
    """No ``libvipl.so.1`` could be opened; the text lists what was tried.

    ``VIPL_LIBRARY`` names a file. Without it the package looks in the ``lib`` folders of the prefix in which it is installed,
    then where the system's loader looks.
    """


class Library:
    """The functions of vipl.h and vipl_ext.h, each with the types of its parameters. All release the GIL."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Never closed: threads of the library may run until the process ends.
        loaded = ctypes.CDLL(path)
        for name, (result, parameters) in _abi.FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = parameters
            setattr(self, name, function)

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(f"{name} is no function of VIPL")


def _candidates() -> list[str]:
    named = os.environ.get("VIPL_LIBRARY")
    if named:
        return [named]
    # PREFIX/lib/python3/dist-packages/vipl, as `cargo xtask install` puts it.
    folder = pathlib.Path(__file__).resolve().parent
    lib = folder.parents[2]
    beside: list[pathlib.Path] = []
    if folder.parent.name == "dist-packages" and lib.name == "lib":
        beside = [lib, lib.parent / "lib64", *sorted(lib.glob("*-linux-gnu"))]
    return [str(path / FILES[0]) for path in beside if (path / FILES[0]).exists()] + list(FILES)


@functools.lru_cache(maxsize=None)
def library() -> Library:
    """The opened library.

    Raises LibraryNotFound.
    """
    tried = []
    for path in _candidates():
        try:
            return Library(path)
        except (OSError, AttributeError) as error:
            tried.append(f"  tried {path}: {error}")
    raise LibraryNotFound(
        "no VIPL library found\n" + "\n".join(tried) + "\nset VIPL_LIBRARY to the path of libvipl.so.1"
    )
