"""Makes the image's environment small, and quick to start: `trim.py ENVIRONMENT`, run by its own interpreter.

- What nothing here imports goes: tests of libraries, the second (asyncio) half of the Kubernetes client, sources of
  extension modules, stubs, programs of others; and, without Spark, where nobody's jobs run, parts of numpy beyond
  arrays.
- Large libraries in Python alone become one zip archive with byte code; most of them are the operator's. The Kubernetes
  client (a thousand generated modules, most of it documentation), OpenTelemetry and pygments stand there without
  documentation and sources.
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
from collections.abc import Iterable
from pathlib import Path
from typing import Final

UNUSED: Final = (
    *("google/api", "google/cloud", "google/gapic", "google/logging", "google/longrunning", "google/type"),
    *("grpc/beta", "grpc/framework", "kubernetes/aio"),
    *("numpy/_core/include", "numpy/_core/lib", "numpy/_pyinstaller", "numpy/distutils", "numpy/doc", "numpy/f2py"),
    *("pyarrow/include", "pyarrow/src", "pyspark/examples", "pyspark/data"),
)
UNUSED_MODULES: Final = ("numpy/_core/_*_tests.*.so", "numpy/_core/_simd.*.so")
# Jobs may well use them.
UNUSED_WITHOUT_SPARK: Final = ("numpy/fft", "numpy/ma", "numpy/polynomial", "numpy/random", "numpy/testing")
WITH_TESTS: Final = ("numpy", "google", "kazoo", "aiohttp", "pyarrow", "websocket")
SOURCES: Final = (".pyx", ".pxd", ".pxi", ".c", ".h", ".cpp", ".hpp", ".a", ".pyi")
PROGRAMS: Final = ("bookie", "kubectl-", "python")
ZIPPED: Final = (
    *("attr", "attrs", "click", "dateutil", "idna", "kazoo", "kopf", "markdown_it", "oauthlib"),
    *("prometheus_client", "pycparser", "pydantic", "requests", "requests_oauthlib", "rich", "structlog", "tzdata"),
    *("urllib3", "websocket"),
)
ZIPPED_WITHOUT_SOURCES: Final = ("kubernetes", "opentelemetry", "pygments")
ARCHIVE: Final = "libraries.zip"
# The files of an image do not change, so nothing is compared at an import.
MODE: Final = py_compile.PycInvalidationMode.UNCHECKED_HASH


def trim(packages: Path) -> None:
    """Remove what is not used."""
    for name in UNUSED if (packages / "pyspark").exists() else (*UNUSED, *UNUSED_WITHOUT_SPARK):
        shutil.rmtree(packages / name, ignore_errors=True)
    for pattern in UNUSED_MODULES:
        for module in packages.glob(pattern):
            module.unlink()
    for package in WITH_TESTS:
        for folder in list((packages / package).rglob("tests")):
            shutil.rmtree(folder)
    for file in list(packages.rglob("*")):
        # Lists of installed files serve only those who take a library away again.
        if (file.suffix in SOURCES or file.match("*.dist-info/RECORD")) and file.is_file():
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


def zip_packages(packages: Path, names: Iterable[str], without_sources: Iterable[str] = ()) -> None:
    """Replace packages of pure Python by an archive that a `.pth` file puts on the path."""
    with zipfile.ZipFile(packages / ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as into:
        for name in names:
            _into_archive(packages, name, into, optimize=0)
        for name in without_sources:
            _into_archive(packages, name, into, optimize=2)
    (packages / ARCHIVE).with_suffix(".pth").write_text(f"{ARCHIVE}\n")


def _into_archive(packages: Path, name: str, into: zipfile.ZipFile, *, optimize: int) -> None:
    """With `optimize` byte code takes the place of sources, and has no documentation."""
    root = packages / name
    # Byte code stands beside its source, and is not compared with it: that is how archives are imported.
    if not compileall.compile_dir(root, quiet=1, legacy=True, invalidation_mode=MODE, ddir=name, optimize=optimize):
        raise SystemExit(f"{root}: does not compile")
    # A folder without `__init__.py` is a package too, if the archive names it.
    for file in sorted((root, *root.rglob("*"))):
        if "__pycache__" not in file.parts and not (optimize and file.suffix == ".py"):
            into.write(file, file.relative_to(packages))
    shutil.rmtree(root)


def main() -> int:
    """The exit code tells whether everything compiled."""
    (packages,) = Path(sys.argv[1]).glob("lib/python3*/site-packages")
    trim(packages)
    trim_programs(Path(sys.argv[1], "bin"))
    strip(packages)
    zip_packages(packages, ZIPPED, ZIPPED_WITHOUT_SOURCES)
    return 0 if compileall.compile_dir(packages, quiet=1, workers=1, invalidation_mode=MODE) else 1


if __name__ == "__main__":
    sys.exit(main())
