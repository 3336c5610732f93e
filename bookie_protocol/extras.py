"""Parts that need more than the plain install: the extras of pyproject.toml, and what to say without them.

A message names the packages that are missing, never an extra to install from a package index: Podkeeper itself may have
come from a checkout, a wheel or a single file.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib import import_module
from types import ModuleType

from bookie_protocol.errors import InvalidConfiguration

_OWN = ("podkeeper", "bookie_protocol", "bookie_client", "bookie_pod", "bookie_operator", "pyspark_bookie")
_EXTRA = re.compile(r"""extra == ["'](?P<name>[^"']+)""")
_NAME = re.compile(r"[^A-Za-z0-9._-]")


def needed(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module of an extra, or one that needs it.

    Raises InvalidConfiguration, which names `purpose` and the command that installs what is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"{purpose} needs {remedy(error, extra)}") from None
    except ImportError as error:  # such as a shared library that is missing
        raise InvalidConfiguration(f"{purpose} needs the extra {extra}, which cannot be loaded: {error}") from None


def install_command(extra: str, *otherwise: str) -> str:
    """Return the command that installs what is missing of an extra, by the names that its packages have.

    `otherwise` is installed if nothing is known to be missing.
    """
    missing = [each for each in _requirements(extra) if not _is_installed(each)]
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *(missing or otherwise)])


def remedy(error: ModuleNotFoundError, extra: str) -> str:
    """Return the missing package and the command that installs it. Raises `error` if a module of ours is missing."""
    missing = (error.name or "").partition(".")[0]
    if not missing or missing in _OWN:
        raise error
    return f"the Python package {missing}, which is not installed: {install_command(extra, missing)}"


def _requirements(extra: str) -> list[str]:
    """Return what the plain install and this extra need, such as `aiohttp>=3.10`."""
    from importlib.metadata import PackageNotFoundError, requires  # slow to load, and hardly ever needed

    try:
        listed = requires("podkeeper") or []
    except PackageNotFoundError:  # the modules without the metadata of the package
        return []
    found = []
    for each in listed:
        requirement, _, condition = each.partition(";")
        named = _EXTRA.search(condition)
        if named is None or named["name"] == extra:
            found.append(requirement.strip())
    return found


def _is_installed(requirement: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(_NAME.split(requirement, maxsplit=1)[0])
    except PackageNotFoundError:
        return False
    return True
