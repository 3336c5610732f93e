"""The gateway with a client in Go, generated from the proto as any user would."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.generate import ROOT
from tests.support.guarded_grpc import GuardedGrpc
from tests.support.standalone_command import StandaloneCommand
from tests.support.until import until_true

pytestmark = pytest.mark.interop

PROTO = ROOT / "bookie_protocol/ledger_service/ledger_service.proto"
SOURCE = Path(__file__).parent / "go"
PLUGINS = ("google.golang.org/protobuf/cmd/protoc-gen-go", "google.golang.org/grpc/cmd/protoc-gen-go-grpc")
PACKAGE = "podkeeper.dev/ledgerclient/ledgerv1"
ENTRIES, SIZE, BATCH = 20_000, 256, 300


def run(*command, directory):
    done = subprocess.run(
        command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The Go program, built from the proto as it is now."""
    go = shutil.which("go")
    if go is None:
        pytest.fail("go not found: the gateway is tested with a client in Go; install Go 1.25 or newer", pytrace=False)
    directory = tmp_path_factory.mktemp("go")
    for name in ("go.mod", "go.sum", "main.go"):
        shutil.copy(SOURCE / name, directory)
    code = directory / "ledgerv1"
    code.mkdir()
    options = []
    for plugin in PLUGINS:
        name = plugin.rpartition("/")[2]
        run(go, "build", "-o", directory / name, plugin, directory=directory)
        kind = name.removeprefix("protoc-gen-")
        options += [
            f"--plugin={name}={directory / name}",
            f"--{kind}_out={code}",
            f"--{kind}_opt=M{PROTO.name}={PACKAGE},paths=source_relative",
        ]
    run(sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", *options, PROTO.name, directory=directory)
    run(go, "build", "-o", directory / "ledgerclient", ".", directory=directory)
    return directory / "ledgerclient"


def payload(number):
    return number.to_bytes(4, "big") + bytes([number & 0xFF]) * (SIZE - 4)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "TLS and token"])
def test_a_client_in_go_writes_reads_follows_and_meets_errors(program, tmp_path, guarded):
    access = GuardedGrpc(tmp_path) if guarded else None
    keys = access.arguments if access is not None else ()
    shown = (str(access.authority), access.token) if access is not None else ()
    with StandaloneCommand(tmp_path / "data", *keys) as cluster, BlockingClient(cluster.uri) as client:
        said = run(program, cluster.grpc[1], str(ENTRIES), str(SIZE), str(BATCH), *shown, directory=tmp_path)
        ledgers = json.loads(said)
        with client.open(ledgers["written"], password=b"from Go") as reader:
            assert [entry.payload for entry in reader.entries()] == [payload(i) for i in range(ENTRIES)]
            assert reader.metadata.custom_metadata == {"language": b"Go"}
        with client.open(ledgers["tailed"], password=b"from Go") as reader:
            assert [entry.payload for entry in reader.entries()] == [b"a", b"b", b"a", b"b"]
        until_true(lambda: client.metadata(ledgers["cancelled"]).is_closed, 20)
        with client.open(ledgers["cancelled"], password=b"from Go") as reader:
            assert [entry.payload for entry in reader.entries()] == [b"a"]
        assert sorted(client.list()) == sorted(ledgers.values())
