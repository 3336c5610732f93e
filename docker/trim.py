"""Makes the image's environment small, and quick to start: `trim.py ENVIRONMENT`, run by its own interpreter.

- What nothing here imports goes: tests of libraries, the second (asyncio) half of the Kubernetes client, sources of
  extension modules, stubs, programs of others.
- The Kubernetes client (a thousand modules, most of it documentation) and pygments become zip archives with byte code.
- Extension modules lose their debugging symbols, where `strip` is at hand.
- Everything left is compiled, because a read-only root file system keeps no byte code.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

UNUSED: Final = ("kubernetes/aio", "numpy/_core/include", "numpy/_core/lib", "numpy/f2py")
WITH_TESTS: Final = ("numpy", "google", "kazoo", "aiohttp")
SOURCES: Final = (".pyx", ".pxd", ".pxi", ".c", ".h", ".cpp", ".hpp", ".a", ".pyi")
PROGRAMS: Final = ("bookie", "kubectl-", "python")
ZIPPED: Final = ("kubernetes", "pygments")


def trim(packages: Path) -> None:
    """Remove what is not used."""
    for name in UNUSED:
        shutil.rmtree(packages / name, ignore_errors=True)
    for package in WITH_TESTS:
        for folder in list((packages / package).rglob("tests")):
            shutil.rmtree(folder)
    for file in list(packages.rglob("*")):
        if file.suffix in SOURCES and file.is_file():
            file.unlink()


def trim_programs(programs: Path) -> None:
    """Keep ours, and the interpreter."""
    for file in list(programs.iterdir()):
        if not file.name.startswith(PROGRAMS):
            file.unlink()


def strip(packages: Path) -> None:
    """Shared libraries that wheels bring along (`*.libs`) were changed after linking; they are left alone."""
    if (tool := shutil.which("strip")) is None:
        print("there is no strip: extension modules keep their symbols", file=sys.stderr)
        return
    modules = [file for file in packages.rglob("*.so") if not file.parent.name.endswith(".libs")]
    subprocess.run([tool, "--strip-unneeded", *map(str, modules)], check=True)


def zip_package(packages: Path, name: str) -> None:
    """Replace a package of pure Python by an archive that a `.pth` file puts on the path."""
    # Byte code stands beside its source, and is not compared with it: that is how archives are imported.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(packages / name, quiet=1, legacy=True, invalidation_mode=mode, ddir=name)
    archive = packages / f"{name}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as into:
        for file in sorted((packages / name).rglob("*")):
            if file.is_file() and file.parent.name != "__pycache__":
                into.write(file, file.relative_to(packages))
    shutil.rmtree(packages / name)
    (packages / f"{name}.pth").write_text(f"{archive.name}\n")


def main() -> int:
    """The exit code tells whether everything compiled."""
    (packages,) = Path(sys.argv[1]).glob("lib/python3*/site-packages")
    trim(packages)
    trim_programs(Path(sys.argv[1], "bin"))
    strip(packages)
    for name in ZIPPED:
        zip_package(packages, name)
    return 0 if compileall.compile_dir(packages, quiet=1, workers=1) else 1


if __name__ == "__main__":
    sys.exit(main())
