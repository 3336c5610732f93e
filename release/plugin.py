"""The plugin of kubectl as one file that any Python from 3.11 on runs, and its manifest for krew.

The file is a zip archive with the modules of the plugin and the metadata of the package; the packages of others that it
needs are not in it, since most are compiled. Where one is missing, the plugin names those that are to be installed.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
import zipfile
from pathlib import Path
from typing import Any, Final

from release.building import archive, yaml_text
from release.facts import LICENSE, Made, project

COMMAND: Final = "kubectl-bookie"
_PACKAGES: Final = ("operator/bookie_operator", "bookie_protocol", "bookie_pod/config")
_SINGLE: Final = ("bookie_pod/__init__.py",)
_LEFT_OUT: Final = (".pyi", ".proto", ".pyc")
_MAIN: Final = """\
import sys

if sys.version_info < {oldest!r}:
    sys.exit("kubectl-bookie needs Python {shown} or newer; %s is %d.%d" % ((sys.executable,) + sys.version_info[:2]))
from bookie_operator.plugin import command

command()
"""


def plugin_file(root: Path) -> bytes:
    """The program: a zip archive behind a line that names the interpreter."""
    about = project(root)
    oldest = tuple(int(part) for part in about["requires-python"].removeprefix(">=").split("."))
    files = {"__main__.py": _MAIN.format(oldest=oldest, shown=".".join(map(str, oldest))).encode()}
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and path.suffix not in _LEFT_OUT and "__pycache__" not in path.parts:
                inside = path.relative_to(root / "operator" if package.startswith("operator/") else root)
                files[str(inside)] = path.read_bytes()
    files |= {path: (root / path).read_bytes() for path in _SINGLE}
    files[f"podkeeper-{about['version']}.dist-info/METADATA"] = _metadata(about).encode()
    written = io.BytesIO()
    written.write(b"#!/usr/bin/env python3\n")
    stamp = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in sorted(files.items()):
            packed.writestr(zipfile.ZipInfo(name, stamp), content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


def write_plugin(root: Path, made: Made) -> None:
    """Write the program, the archive that krew installs, and krew's manifest."""
    program = plugin_file(root)
    single = made.directory / COMMAND
    single.write_bytes(program)
    single.chmod(0o755)
    license_text = (root / "LICENSE").read_bytes()
    made.plugin.write_bytes(archive({COMMAND: program, "LICENSE": license_text}, frozenset({COMMAND})))
    manifest = krew_manifest(root, made, hashlib.sha256(made.plugin.read_bytes()).hexdigest())
    made.krew.write_text(yaml_text(manifest), encoding="utf-8")


def krew_manifest(root: Path, made: Made, sha256: str) -> dict[str, Any]:
    """The manifest of the plugin in krew's index."""
    about = project(root)
    needed = requirements(about)
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "bookie"},
        "spec": {
            "version": f"v{made.version}",
            "homepage": made.address.url,
            "shortDescription": "Manage Apache BookKeeper clusters of Podkeeper",
            "description": (
                "Shows what the operator of Podkeeper does with a BookieCluster and why it waits, and asks it for\n"
                "work: restarts, decommissions, moves of clusters that others made, support bundles.\n"
            ),
            "caveats": (
                f"Needs Python {about['requires-python'].removeprefix('>=')} or newer as python3, with the packages\n"
                f"  {' '.join(needed)}\n"
                "Without them it prints the command that installs those which are missing.\n"
            ),
            "platforms": [
                {
                    "selector": {
                        "matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}],
                    },
                    "uri": made.address.asset(made.plugin.name, made.version),
                    "sha256": sha256,
                    "bin": COMMAND,
                    "files": [{"from": COMMAND, "to": "."}, {"from": "LICENSE", "to": "."}],
                }
            ],
        },
    }


def requirements(about: dict[str, Any]) -> list[str]:
    """Return the packages that the plugin needs."""
    plain = [each for each in about["dependencies"] if re.match("google-crc32c|protobuf", each)]
    return [*plain, *about["optional-dependencies"]["kubectl"]]


def _metadata(about: dict[str, Any]) -> str:
    """The metadata that `importlib.metadata` reads: the version, and the packages that the plugin needs."""
    lines = [
        "Metadata-Version: 2.4",
        "Name: podkeeper",
        f"Version: {about['version']}",
        f"License-Expression: {LICENSE}",
    ]
    lines += [f'Requires-Dist: {each}; extra == "kubectl"' for each in requirements(about)]
    return "\n".join([*lines, "Provides-Extra: kubectl", ""])
