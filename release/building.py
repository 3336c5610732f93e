"""The archives of a release: wheel, source distribution, and archives that are the same whenever they are made."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from release.facts import ReleaseError

_EXECUTABLE = 0o755
_PLAIN = 0o644


def build_distributions(source: Path, directory: Path) -> None:
    """Build the source distribution, and of it the wheel, with the packages that are installed here."""
    for kind in ("--sdist", "--wheel"):
        command = [str(Path(sys.executable).with_name("uv")), "build", "-q", kind, "--offline", "--no-build-isolation"]
        command += ["--python", sys.executable, "-o", str(directory), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ReleaseError(f"uv build {kind} failed: {last}")
    (directory / ".gitignore").unlink(missing_ok=True)
    for path in directory.glob("*.tar.gz"):
        with tarfile.open(path) as tar:
            executable = frozenset(entry.name for entry in tar if entry.isfile() and entry.mode & stat.S_IXUSR)
        path.write_bytes(archive(members(path), executable))


def archive_folder(folder: Path, name: str) -> bytes:
    """The files below `folder` as a tar.gz in which they are below `name`."""
    files = {
        f"{name}/{path.relative_to(folder)}": path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    return archive(files)


def archive(files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> bytes:
    """Files by path as a tar.gz, which is the same whenever and wherever it is made."""
    written = io.BytesIO()
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    with (
        gzip.GzipFile(fileobj=written, mode="wb", filename="", mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(content), seconds
            entry.mode = _EXECUTABLE if path in executable else _PLAIN
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as they are, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _block)


def yaml_text(content: Mapping[str, Any]) -> str:
    """A resource or manifest as YAML."""
    return str(yaml.dump(dict(content), Dumper=_Blocks, sort_keys=False, width=120, allow_unicode=True))


def members(path: Path) -> dict[str, bytes]:
    """The files of a tar archive, by path."""
    found = {}
    with tarfile.open(path) as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            if file is not None:
                found[entry.name] = file.read()
    return found
