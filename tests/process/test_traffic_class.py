"""Reads of the traffic class `batch` in a bookie process: held back by its limit, in nobody's way, counted."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import Flag
from tests.support.bookie_process import free_port
from tests.support.frames import entry, v2_add, v2_code, v2_entry, v2_read
from tests.support.serve_process import ServeProcess, SyncClient

PAYLOAD = bytes(2000)


def test_marked_reads_wait_for_their_limit_and_nothing_waits_for_them(tmp_path: Path) -> None:
    settings = {"httpServerEnabled": "true", "httpServerPort": str(free_port()), "batchClassReadRateByBytes": "1000"}
    with ServeProcess(tmp_path / "bookie", settings) as bookie:
        bookie.start()
        with SyncClient(bookie.port) as client:
            for number in range(3):
                assert v2_code(client.ask(v2_add(entry(7, number, PAYLOAD)))) == 0
            assert v2_entry(client.ask(v2_read(7, 0, Flag.BATCH_CLASS))) == entry(7, 0, PAYLOAD)
            # Two seconds' worth of bytes were read.
            client.send(
                v2.encode_batch_read_request(7, 1, 1, 1, 1 << 20, Flag.BATCH_CLASS),
                v2_read(7, 2),
                v2_add(entry(7, 3, PAYLOAD)),
            )
            answers = [v2.decode_response(client.frame()[4:]) for _ in range(3)]
        found = _metrics(int(bookie.settings["httpServerPort"]))
    assert [type(answer) for answer in answers] == [v2.Response, v2.Response, v2.BatchReadResponse]
    assert {answer.entry_id for answer in answers[:2]} == {2, 3}
    assert answers[2].entries.split() == [entry(7, 1, PAYLOAD)]
    assert found["BATCH_CLASS_READ_ENTRIES"] == 2
    assert found["BATCH_CLASS_READ_BYTES"] == 2 * len(entry(7, 0, PAYLOAD))
    assert found["BATCH_CLASS_READS_BLOCKED"] == 0
    # What held it back is its limit, not somebody it gave way to.
    assert found["BATCH_CLASS_YIELDED_SECONDS_TOTAL"] < 0.5 < found["BATCH_CLASS_LIMITED_SECONDS_TOTAL"]
    assert found["BookieBatchClassReadThreadPool_threads"] == 1


def _metrics(port: int) -> dict[str, float]:
    """Those of the server, without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("bookkeeper_server_")]
    return {line[0].removeprefix("bookkeeper_server_"): float(line[1]) for line in lines if "{" not in line[0]}
