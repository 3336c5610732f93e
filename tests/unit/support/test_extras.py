"""Each extra of pyproject.toml is enough for what it is for, and the plain install for the client."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.clean_environment import ROOT, run_in_clean_environment

NAMES = """
import importlib
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)
"""
CLIENT = (
    "podkeeper",
    "podkeeper.errors",
    "podkeeper.placement",
    "podkeeper.replication",
    "podkeeper.streams",
    "bookie_protocol.metadata_service.zookeeper.driver",
    "bookie_protocol.tls",
)
ETCD = "bookie_protocol.metadata_service.etcd.tree"
OXIA = "bookie_protocol.metadata_service.oxia.driver"
EMBEDDED = "bookie_protocol.metadata_service.embedded.remote"
FOR = {
    "": CLIENT,
    "embedded": (*CLIENT, EMBEDDED),
    "etcd": (*CLIENT, ETCD),
    "oxia": (*CLIENT, OXIA),
    "gateway": ("bookie_protocol.ledger_service.ledger_service_pb2_grpc", "grpc_status.rpc_status"),
    "pkcs12": (*CLIENT, "cryptography.hazmat.primitives.serialization.pkcs12"),
    "yaml": (*CLIENT, "yaml"),
    "bookie": (
        *CLIENT,
        EMBEDDED,
        ETCD,
        OXIA,
        "yaml",
        "bookie_pod.cli.main",
        "bookie_pod.node.bookie",
        "bookie_pod.gateway.service",
    ),
    "spark": (*CLIENT, EMBEDDED, ETCD, OXIA, "yaml", "pyspark_bookie", "pyspark_bookie.jobs.framework.command"),
    "iceberg": (*CLIENT, "pyiceberg.catalog"),
    "kubectl": ("bookie_operator.plugin.main", "bookie_operator.plugin.bundle", "bookie_operator.plugin.forwarding"),
    "operator": ("bookie_operator.main", "bookie_operator.handlers", "bookie_operator.plugin.main"),
}


def wanted(extra: str) -> set[str]:
    """What an extra adds, as pip takes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {each.partition(";")[0].strip() for each in project["optional-dependencies"][extra]}


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
    heavy = ["aiohttp", "cryptography", "grpc", "kopf", "msgspec", "numpy", "pyspark", "rocksdict"]
    heavy += ["structlog", "uvloop", "yaml"]
    assert run_in_clean_environment(plain, "", code, *heavy).stdout.split() == heavy


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("bookie_pod.cli", "bookie", "bookie"),
        ("bookie_operator", "bookie-operator", "operator"),
        ("bookie_operator.plugin", "kubectl-bookie", "kubectl"),
    ],
)
def test_a_command_without_its_extra_says_which(plain: Path, package: str, command: str, extra: str) -> None:
    code = f"sys.argv = ['/bin/{command}']\nfrom {package} import command\ncommand()"
    result = run_in_clean_environment(plain, "", code)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert {each for each in shlex.split(result.stderr) if ">=" in each} == wanted(extra)


MISSING = {
    ("embedded", "grpc"): "asyncio.run(Client('embedded://127.0.0.1:1/ledgers').start())",
    ("etcd", "grpc"): "asyncio.run(Client('etcd://127.0.0.1:1/podkeeper').start())",
    ("oxia", "grpc"): "asyncio.run(Client('oxia://127.0.0.1:1/default').start())",
    ("bookie", "rocksdict"): "asyncio.run(Client(f'{sys.argv[1]}/metadata').start())",
    ("yaml", "yaml"): "asyncio.run(FileLocations(f'{sys.argv[1]}/file.yaml').open())",
    ("pkcs12", "cryptography"): "tls_context(TlsOptions(ca_file=f'{sys.argv[1]}/file.yaml', ca_type='PKCS12'))",
    ("kerberos", "gssapi"): "KerberosAuth()",
}


@pytest.mark.parametrize(("extra", "package"), MISSING, ids=[extra for extra, _ in MISSING])
def test_a_client_without_an_extra_says_in_one_message_what_installs_it(
    plain: Path, tmp_path: Path, extra: str, package: str
) -> None:
    (tmp_path / "file.yaml").write_text("zones: {}\n")
    code = (
        "import asyncio\n"
        "from podkeeper import Client, KerberosAuth, TlsOptions, PodkeeperError\n"
        "from bookie_client.connection.channel import tls_context\n"
        "from bookie_client.placement.sources import FileLocations\n"
        f"try: {MISSING[extra, package]}\n"
        "except PodkeeperError as error: print(error)"
    )
    done = run_in_clean_environment(plain, "", code, str(tmp_path))
    assert done.stdout.count("\n") == 1, done.stderr
    assert f" needs the Python package {package}, " in done.stdout
    _, _, command = done.stdout.partition(f"{sys.executable} -m pip install ")
    assert set(shlex.split(command)) == wanted(extra)


def test_a_login_by_password_and_a_jks_store_need_no_extra(plain: Path) -> None:
    code = "from podkeeper import SaslAuth\nimport bookie_protocol.tls\nprint(SaslAuth('a', 'b').plugin_name)"
    assert run_in_clean_environment(plain, "", code).stdout == "sasl\n"
