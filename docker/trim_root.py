"""Makes what stands below the environment small: run as root by the interpreter of the base image, in a stage that only
the last one copies from.

- Installers of packages go, and headers: the environment is complete.
- Of the standard library goes what only authors of programs run, and what draws windows.
- glibc's tables of character sets go: UTF-8 is built in, and Python brings its own. So do manuals, and caches of apt.
- What is left of the standard library is compiled: a read-only root file system keeps no byte code, and the public
  images of Python bring none.

Shell, tools and Debian's record of its packages stay: people and scanners find what they know.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

STANDARD_LIBRARY: Final = (
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tkinter",
    "turtle",
    "turtledemo",
)
EXTENSIONS: Final = ("_ctypes_test*", "_test*", "_tkinter*", "_xxtestfuzz*", "xxlimited*")
INSTALLERS: Final = ("_distutils_hack", "distutils-precedence.pth", "pip", "pkg_resources", "setuptools", "wheel")
PROGRAMS: Final = ("2to3*", "idle", "idle3*", "pip", "pip[0-9]*", "pydoc*", "python*-config", "wheel")
SYSTEM: Final = (
    *("usr/lib/*/gconv", "usr/share/bash-completion", "usr/share/info", "usr/share/lintian", "usr/share/python-wheels"),
    *("var/cache/apt/*.bin", "var/cache/debconf/*-old"),
)


def unused(stdlib: Path, sites: list[Path], programs: list[Path], system: Path) -> Iterator[Path]:
    """What there is of it. `sites`: where installers may be. `system`: the root of the file system."""
    for name in STANDARD_LIBRARY:
        yield from (path for path in (stdlib / name, stdlib / f"{name}.py") if path.exists())
        yield from stdlib.glob(f"__pycache__/{name}.*")
    yield from stdlib.glob("config-*")
    for pattern in EXTENSIONS:
        yield from stdlib.glob(f"lib-dynload/{pattern}")
    for folder in sites:
        for name in INSTALLERS:
            yield from folder.glob(name)
            yield from folder.glob(f"{name}-*-info")
    for folder in programs:
        for pattern in PROGRAMS:
            yield from folder.glob(pattern)
    for pattern in SYSTEM:
        yield from system.glob(pattern)


def remove(path: Path) -> None:
    """A file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> int:
    """The exit code tells whether everything compiled."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    programs = {Path(sysconfig.get_path("scripts")), Path(sys.prefix, "bin")}
    sites = [Path(folder) for folder in site.getsitepackages()]
    for path in list(unused(stdlib, sites, sorted(programs), Path("/"))):
        remove(path)
    shutil.rmtree(sysconfig.get_path("include"), ignore_errors=True)
    # The files of an image do not change, so nothing is compared at an import.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return 0 if compileall.compile_dir(stdlib, quiet=1, workers=1, invalidation_mode=mode) else 1


if __name__ == "__main__":
    sys.exit(main())
