"""Fixtures that several rings share."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support import rings, timeouts, unheard
from tests.support.etcd import EtcdServer
from tests.support.garbage import set_aside_what_is_collected
from tests.support.oxia import MISSING, SERVER, OxiaServer
from tests.support.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from tests.support.spark import SparkSessions

# examples are not timed: the machine may be busy with other things
settings.register_profile("podkeeper", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
# What a change has to pass is the same examples each time; everybody else's runs find new ones.
settings.register_profile("change", settings.get_profile("podkeeper"), derandomize=True, max_examples=30)
# What one runs all day finds new ones, too, but fewer each time.
settings.register_profile("check", settings.get_profile("podkeeper"), max_examples=10)
settings.load_profile("podkeeper")

HERE = Path(__file__).parent
NICENESS = os.getpriority(os.PRIO_PROCESS, 0)
LONG = (
    "spark/",
    "campaign/",
    "process/",
    "simulation/test_healing_bugs.py",
    "simulation/test_streams.py",
    "crash/",
    "simulation/",
    "interop/test_security.py",
    "interop/test_disk_exchange.py",
    "interop/test_python_client.py",
    "interop/test_client_exchange.py",
    "interop/test_managed_ledgers.py",
    "interop/test_crash.py",
    "interop/test_java_client.py",
    "interop/test_distributedlog.py",
)
"""Tests that take long, in the order in which they begin."""
TOGETHER = (
    ("tests/spark/", "tests/docs/test_spark_"),
    ("tests/interop/test_client_exchange.py", "tests/interop/test_client_metadata.py"),
)
"""Beginnings of node ids: tests that use one session of Spark with its cluster, or four Java bookies."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--patience",
        type=float,
        default=1.0,
        help="how many times its time-out a test may take: for a machine under load",
    )


def pytest_sessionstart() -> None:
    """A shell that runs the tests in the background has SIGINT ignored, here and in every process that is started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_collection = pytest.hookimpl(wrapper=True)(set_aside_what_is_collected)


def pytest_configure(config: pytest.Config) -> None:
    # The clusters of a test are found by its own commands, and by no other worker's.
    os.environ["XDG_STATE_HOME"] = f"{tempfile.gettempdir()}/podkeeper-tests-{os.getuid()}-{os.getpid()}"
    config.pluginmanager.register(unheard)
    config.pluginmanager.register(timeouts)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Every worker would import files, and make their tests, to leave out all of them."""
    if collection_path.suffix == ".py" and rings.waits(collection_path, config.option.markexpr, _later()):
        return True
    return None


@cache
def _later() -> list[rings.Later]:
    return rings.read(rings.TABLE.read_text())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks of rings, before `-m` is looked at. And files that take long come first, so that no worker has one left
    when the others have nothing: Spark's, which compute; those of processes, which wait; the long ones of what only
    computes; then those with tests that are not in `make check`. With a word in `ORDER` files come in an order that is
    this word's."""
    rings.mark(items, _later())
    timeouts.lengthen(items)
    if word := os.environ.get("ORDER"):
        items.sort(key=lambda item: random.Random(f"{word} {item.nodeid.partition('::')[0]}").random())
        return
    wide = {item.path for item in items if item.get_closest_marker("wide")}

    @cache
    def rank(path: Path) -> int:
        file = path.relative_to(HERE).as_posix()
        longest = (number for number, begin in enumerate(LONG) if file.startswith(begin))
        return next(longest, len(LONG) + (path not in wide))

    items.sort(key=lambda item: rank(item.path))


class Files(LoadFileScheduling):
    """A worker takes a file after the other, and of those that share a Java all."""

    def _split_scope(self, nodeid: str) -> str:
        together = (each[0] for each in TOGETHER if nodeid.startswith(each))
        return next(together, super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


# Hooks and no fixtures: pytest takes longer to set those up, for each of ten thousand tests.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A command or a simulation that an earlier test ran may have set the log up for the whole process."""
    unheard.listen_to_logs()
    if (kazoo := logging.getLogger("kazoo")).level:
        kazoo.setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Who takes SIGINT for itself gives it back: another test of the same process waits for it. And no test makes the
    process nicer, which would be slow for the rest of the run."""
    try:
        yield
    finally:
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert handler is signal.default_int_handler, f"SIGINT was left to {handler}"
    assert (niceness := os.getpriority(os.PRIO_PROCESS, 0)) == NICENESS, (
        f"the process was left with niceness {niceness}"
    )


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for the whole run; tests take roots of their own. Mark its users `zookeeper`."""
    server = ZooKeeperServer(str(tmp_path_factory.mktemp("zookeeper")))
    try:
        server.start()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the whole run; tests take roots of their own. Mark its users `etcd`."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    try:
        server.start()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def oxia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaServer]:
    """One Oxia for the whole run; tests take roots of their own. Mark its users `oxia`."""
    if not SERVER:
        pytest.skip(MISSING)
    server = OxiaServer(tmp_path_factory.mktemp("oxia"))
    try:
        server.start()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    """One Java for the whole run; a session for everybody who does not ask for a new one."""
    from tests.support.spark import SparkSessions

    sessions = SparkSessions(tmp_path_factory.mktemp("spark"))
    yield sessions
    sessions.stop()
