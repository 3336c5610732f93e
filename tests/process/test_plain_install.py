"""What `pip install podkeeper[embedded]` brings, and no more, writes and reads ledgers."""

from __future__ import annotations

from pathlib import Path

from tests.support.clean_environment import run_in_clean_environment
from tests.support.standalone_command import StandaloneCommand

PROGRAM = """
from podkeeper import BlockingClient, NoSuchLedger
with BlockingClient(sys.argv[1]) as client:
    with client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=b"secret") as ledger:
        ledger.append_many(b"%d" % number for number in range(500))
    with client.open(ledger.ledger_id, password=b"secret") as reader:
        print(sum(int(entry.payload) for entry in reader.read(0, 499)))
    try:
        client.open(ledger.ledger_id + 1000)
    except NoSuchLedger:
        print("no such ledger")
"""


def test_the_client_alone_writes_and_reads(tmp_path: Path) -> None:
    with StandaloneCommand(tmp_path / "data", "--bookies", "2") as cluster:
        result = run_in_clean_environment(tmp_path / "env", "embedded", PROGRAM, cluster.uri)
    assert (result.returncode, result.stdout, result.stderr) == (0, "124750\nno such ledger\n", "")
