"""What the examples of a page run on: an environment with a wheel, a cluster of it, and a program of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.examples import Newcomer
from tests.support.installed import Installed
from tests.support.standalone_command import StandaloneCommand


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Nothing is activated or set in it."""
    return Installed(tmp_path_factory.mktemp("newcomer"), "bookie", "spark")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> Iterator[StandaloneCommand]:
    """`bookie standalone` for the examples of one page."""
    data = tmp_path_factory.mktemp("docs") / "data"
    command, variables = installed.command("bookie"), installed.variables()
    with StandaloneCommand(data, "--bookies", "3", command=command, variables=variables) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> Iterator[Newcomer]:
    """Who runs the examples of one page, in their order; what one leaves, the next one has."""
    made = Newcomer(installed, tmp_path_factory.mktemp("newcomer"))
    yield made
    made.close()
