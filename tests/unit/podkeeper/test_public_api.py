"""The public API: its names, the kinds of its errors, what importing it loads, and that documents use nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import bookie_client
import podkeeper
import podkeeper.errors
from bookie_protocol import errors as all_errors
from tests.docs.examples import blocks

ROOT = Path(__file__).parents[3]
MODULES = (
    "podkeeper",
    *(f"podkeeper.{name}" for name in ("errors", "metadata", "placement", "replication", "streams")),
)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
IMPORT = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)
OURS = ("bookie_client", "bookie_protocol", "bookie_pod", "podkeeper")
STUBS = ("bookie_protocol.ledger_service",)
"""The code that protoc made for clients of the gateway."""
KINDS = (podkeeper.NotThere, podkeeper.Refused, podkeeper.CouldNotTell, podkeeper.InvalidConfiguration)
LEFT_OUT = ("asyncio.subprocess", "bookie_pod", "cryptography", "grpc", "kazoo", "numpy", "rich", "structlog", "yaml")


def imports(text: str) -> set[tuple[str, str]]:
    return {
        (module, name)
        for module, names in IMPORT.findall(text)
        if module.partition(".")[0] in OURS and not module.startswith(STUBS)
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names))
    }


@pytest.mark.parametrize("name", MODULES)
def test_each_public_name_is_there_and_named_once(name: str) -> None:
    module = import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    assert module.__doc__


def test_what_the_client_offers_is_public() -> None:
    assert set(bookie_client.__all__) <= set(podkeeper.__all__)
    assert all(getattr(podkeeper, name) is getattr(bookie_client, name) for name in bookie_client.__all__)
    assert set(podkeeper.errors.__all__) <= set(podkeeper.__all__)


def test_each_error_is_of_one_kind() -> None:
    roots = {podkeeper.PodkeeperError, podkeeper.MetadataError}
    for name in podkeeper.errors.__all__:
        error = getattr(podkeeper, name)
        assert issubclass(error, podkeeper.PodkeeperError)
        assert sum(issubclass(error, kind) for kind in KINDS) == (error not in roots), name


def test_every_error_of_a_request_is_caught_by_a_public_one() -> None:
    for error in vars(all_errors).values():
        if isinstance(error, type) and issubclass(error, podkeeper.PodkeeperError):
            startup = issubclass(error, all_errors.StartupError)
            public = {each for each in error.__mro__ if each.__name__ in podkeeper.errors.__all__}
            assert startup or public - {podkeeper.PodkeeperError} or error is podkeeper.PodkeeperError, error


def test_importing_the_client_loads_no_package_that_it_may_do_without() -> None:
    code = "import sys, podkeeper, podkeeper.streams; print(*[name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *LEFT_OUT[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_documents_import_public_names_alone() -> None:
    """Every Python example of README and docs, and the programs of `examples/`."""
    texts = {page: "".join(each.code for each in blocks(page) if each.language == "python") for page in PAGES}
    texts |= {file: file.read_text() for file in (ROOT / "examples").rglob("*.py")}
    texts |= {file: file.read_text().replace("\\n", "\n") for file in (ROOT / "examples").glob("*.ipynb")}
    wrong = {
        f"{page.relative_to(ROOT)}: {module}.{name}"
        for page, text in texts.items()
        for module, name in imports(text)
        if module not in MODULES or name not in import_module(module).__all__
    }
    assert wrong == set()
    assert sum(len(imports(text)) for text in texts.values()) > 20
