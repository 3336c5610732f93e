"""Each extra of pyproject.toml is enough for what it is for, and the plain install for the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clean_environment import run_in_clean_environment

NAMES = """
import importlib
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)
"""
CLIENT = (
    "bookie_client",
    "bookie_client.streams",
    "bookie_client.placement",
    "bookie_client.recovery",
    "bookie_client.replication",
    "bookie_protocol.errors",
    "bookie_protocol.metadata_service.zookeeper.driver",
    "bookie_protocol.metadata_service.embedded.remote",
    "bookie_protocol.tls",
)
FOR = {
    "": CLIENT,
    "sasl": (*CLIENT, "puresasl"),
    "bookie": (*CLIENT, "bookie_pod.cli.main", "bookie_pod.node.bookie", "bookie_pod.gateway.service"),
    "spark": (*CLIENT, "pyspark_bookie", "pyspark_bookie.jobs.framework.command"),
    "operator": ("bookie_operator.main", "bookie_operator.handlers", "bookie_operator.plugin.main"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the plain install, once it was used."""
    return tmp_path_factory.mktemp("plain") / "env"


@pytest.mark.parametrize("extra", FOR)
def test_an_extra_brings_what_its_part_imports(tmp_path: Path, plain: Path, extra: str) -> None:
    result = run_in_clean_environment(tmp_path / "env" if extra else plain, extra, NAMES, *FOR[extra])
    assert (result.returncode, result.stderr) == (0, "")


def test_the_client_brings_nothing_of_a_bookie(plain: Path) -> None:
    code = "for name in sys.argv[1:]:\n    try: __import__(name)\n    except ModuleNotFoundError: print(name)"
    heavy = ["rocksdict", "numpy", "uvloop", "aiohttp", "msgspec", "pyspark", "kopf"]
    assert run_in_clean_environment(plain, "", code, *heavy).stdout.split() == heavy


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("bookie_pod.cli", "bookie", "bookie"),
        ("bookie_operator", "bookie-operator", "operator"),
        ("bookie_operator.plugin", "kubectl-bookie", "operator"),
    ],
)
def test_a_command_without_its_extra_says_which(plain: Path, package: str, command: str, extra: str) -> None:
    code = f"sys.argv = ['/bin/{command}']\nfrom {package} import command\ncommand()"
    result = run_in_clean_environment(plain, "", code)
    said = f"{command}: the Python package click is not installed: pip install 'podkeeper[{extra}]'\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", said)


def test_a_login_without_its_package_says_which_extra(plain: Path) -> None:
    code = "from bookie_client import SaslAuth\ntry: SaslAuth('a', 'b')\nexcept Exception as error: print(error)"
    said = run_in_clean_environment(plain, "", code).stdout
    assert said == "a SASL login to bookies needs the Python package puresasl: install podkeeper[sasl]\n"
