"""Clients and commands on a ZooKeeper that serves nobody without a login."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient, Client, ClientOptions, MetadataServiceOptions, SaslLogin
from bookie_protocol.errors import MetadataUnavailable
from tests.support.serve_process import ServeProcess
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper

LOGIN = MetadataServiceOptions(sasl=SaslLogin(username="bookie", password="s3cret"), secure=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ZooKeeperServer(str(tmp_path_factory.mktemp("sasl")), {"bookie": "s3cret"})
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def uri(server, configuration):
    """A cluster that belongs to the login."""
    uri = server.uri("/clients", "hierarchical")
    assert bookie("cluster", "init", uri, "--config", configuration).returncode == 0
    return uri


@pytest.fixture(scope="module")
def configuration(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configuration")
    (folder / "login").write_text("bookie:s3cret\n")
    lines = {
        "metadataServiceUri": server.uri("/clients", "hierarchical"),
        "zkAuthScheme": "sasl",
        "zkAuthCredentialsPath": str(folder / "login"),
        "zkEnableSecurity": "true",
        "zkTimeout": "4000",
    }
    file = folder / "bk.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return file


def bookie(*arguments):
    return ServeProcess.command(*map(str, arguments))


async def test_a_client_that_logs_in(uri):
    async with Client(uri, ClientOptions(metadata_service=LOGIN)) as client:
        assert [ledger_id async for ledger_id in client.list()] == []
    with pytest.raises(MetadataUnavailable, match="credentials"):
        await Client(uri, ClientOptions(metadata_service=MetadataServiceOptions(timeout=3))).start()


def test_a_blocking_client_that_logs_in(uri):
    with BlockingClient(uri, ClientOptions(metadata_service=LOGIN)) as client:
        assert list(client.list()) == []


def test_commands_take_the_login_of_the_configuration(uri, configuration):
    for named in (("--config", configuration), ("--config", configuration, "--metadata", uri)):
        for command in (("ledger", "list"), ("cluster", "bookies", "--json")):
            done = bookie(*command, *named)
            assert (done.returncode, done.stderr) == (0, "")
    refused = bookie("ledger", "list", "--metadata", uri, "--timeout", "3")
    assert refused.returncode == 12
    assert "check the credentials" in refused.stderr
