"""Bodies and parameters: what programs of other versions send is taken, anything else is told in one line."""

from __future__ import annotations

import asyncio
import re

import pytest

from bookie_pod.admin.bookie_ids import MOST_LOSSES, accepted_losses
from bookie_pod.server.http.api.openapi import Schemas
from bookie_protocol.admin_api import autorecovery, bookie, cluster, decommission, gc, integrity
from bookie_protocol.admin_api.bodies import Body, asked, decode, requested
from bookie_protocol.errors import BadRequest, ProtocolViolation
from tests.unit.bookie_pod.admin.conftest import Served

CHECKS = "/api/v1/autorecovery/checks"
UNDO = "/api/v1/autorecovery/decommission/undo"
PROOF = "/api/v1/autorecovery/decommission/proof"
COOKIE = "/api/v1/bookie/cookie?bookie_id=b:1"
REBUILD = "/api/v1/bookie/index_rebuild"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", UNDO, '{"bookie_src": "b:1"}'),
        ("PUT", UNDO, '{"bookie_src": "b:1", "said_by_a_newer_one": [1]}'),
        ("POST", PROOF, '{"bookie_id": "b:1"}'),
        ("POST", PROOF, '{"bookie_id": "b:1", "accept_loss": ""}'),
        ("POST", PROOF, '{"bookie_id": "b:1", "accept_loss": "7, 9223372036854775807"}'),
        ("DELETE", COOKIE, None),
        ("DELETE", COOKIE, " \n"),
        ("DELETE", COOKIE, "{}"),
        ("DELETE", COOKIE, '{"accept_loss": "7"}'),
        ("DELETE", COOKIE, '{"accept_loss": "7,\\n\\t8\\r\\n"}'),
        ("PUT", CHECKS, '{"checks": ["replicas", "replicas"]}'),
        ("PUT", REBUILD, None),
        ("PUT", REBUILD, '{"ledgers": false}'),
        ("PUT", REBUILD, '{"directories": ["/data/a"], "locations": true, "acceptDamage": true}'),
    ],
)
async def test_what_programs_send_is_taken(served: Served, method: str, path: str, body: str | None) -> None:
    assert (await served(path, method, body)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "line"),
    [
        ("PUT", UNDO, None, "the body: object missing required field `bookie_src`; its members are bookie_src"),
        ("PUT", UNDO, '{"bookie_src": 7}', "bookie_src: expected `str`, got `int`"),
        ("PUT", UNDO, '{"bookie_src": "a/b"}', "bookie_src must be a bookie id, not 'a/b'"),
        ("POST", PROOF, "[]", "the body: expected `object`, got `array`"),
        ("POST", PROOF, "x", "the body: JSON is malformed: invalid character (byte 0)"),
        ("DELETE", COOKIE, '{"accept_loss": [7]}', "accept_loss: expected `str`, got `array`"),
        ("PUT", CHECKS, '{"checks": ["bookies"]}',
         "checks[0]: invalid enum value 'bookies'; it may be ledgers, placement, replicas"),
        ("PUT", CHECKS, '{"checks": ["a field b"]}',
         "checks[0]: invalid enum value 'a field b'; it may be ledgers, placement, replicas"),
        ("PUT", CHECKS, '{"checks": []}', "checks: expected `array` of length >= 1"),
        ("PUT", REBUILD, '{"directories": [7]}', "directories[0]: expected `str`, got `int`"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_told_in_one_line(
    served: Served, method: str, path: str, body: str | None, line: str
) -> None:
    answer = await served(path, method, body)
    assert (answer.status, answer.line) == (400, line)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (integrity.RebuildBody, '{"' + "q" * 500_000 + '": 1}'),
        (integrity.RebuildBody, '{"' + " - at `$" * 60_000 + '": 1}'),
        (autorecovery.ChecksBody, '{"checks": ["' + " - at `$." * 60_000 + '"]}'),
        (decommission.UndoBody, "[" * 500_000),
        (decommission.UndoBody, '{"bookie_src":' * 100_000),
    ],
)
def test_a_refusal_is_short_however_long_the_body(kind: type[Body], text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        requested(text.encode(), kind)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "text", [b'{"bookie_src": "\xff"}', b'{"\xff": 1}', b'{"bookie_src": "\xed\xa0\x80"}', b'"\xc3']
)
def test_what_is_not_utf8_is_malformed(text: bytes) -> None:
    with pytest.raises(BadRequest, match="body: "):
        requested(text, decommission.UndoBody)
    with pytest.raises(ProtocolViolation):
        decode(text, decommission.UndoBody)


LEDGERS, READ, BOOKIES = f"{cluster.LEDGERS.path}?", f"{cluster.READ.path}?ledger_id=", f"{cluster.BOOKIES.path}?"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (f"{READ}5.0", "ledger_id=5.0: must be a whole number"),
        (f"{READ}1e2", "ledger_id=1e2: must be a whole number"),
        (f"{READ}%205", "ledger_id= 5: must be a whole number"),
        (f"{READ}null", "ledger_id=null: must be a whole number"),
        (f"{READ}{'9' * 5000}", f"ledger_id={'9' * 100}: must be a whole number"),
        (f"{READ}{2**63}", f"ledger_id: expected `int` <= {2**63 - 1}"),
        (f"{READ}-1", "ledger_id: expected `int` >= 0"),
        (f"{READ}5&end_entry_id=-2", "end_entry_id: expected `int` >= -1"),
        (f"{LEDGERS}page=0", "page: expected `int` >= 1"),
        (f"{BOOKIES}type=RW", "type: invalid enum value 'RW'; it may be rw, ro"),
        (f"{decommission.PROGRESS.path}?bookie=b",
         "the query: object missing required field `bookie_id`; its members are bookie_id"),
        (f"{decommission.PROGRESS.path}?bookie_id=b%0a", "bookie_id must be a bookie id, not 'b\\n'"),
    ],
)  # fmt: skip
async def test_a_parameter_that_is_wrong_is_told(served: Served, path: str, line: str) -> None:
    answer = await served(path)
    assert (answer.status, answer.line) == (400, line)


def test_parameters_are_read_as_the_reference_reads_them() -> None:
    given = {"ledger_id": "+07", "end_entry_id": "-1", "page": "-0", "unknown": "x"}
    with pytest.raises(BadRequest, match=r"page: .*`int` >= 1"):
        asked(given, cluster.EntriesQuery)
    assert asked(given | {"page": "2"}, cluster.EntriesQuery) == cluster.EntriesQuery(7, page=2)
    for text, flag in (("true", True), ("TRUE", False), ("1", False), ("", False)):
        assert asked({"fullest": text}, bookie.SpaceQuery).fullest is flag
    assert asked({"entryLog": "007"}, gc.EntryLogQuery).entry_log == "007"
    assert asked({"missingreplica": "7"}, autorecovery.MarksQuery) == autorecovery.MarksQuery("7")


def test_a_refusal_is_short_however_long_the_parameter() -> None:
    with pytest.raises(BadRequest) as refused:
        asked({"type": " - at `$" * 1000}, cluster.BookiesQuery)
    assert len(str(refused.value)) < 600


def test_half_a_character_is_no_choice() -> None:
    with pytest.raises(BadRequest, match="query: "):
        asked({"type": "\udcff"}, cluster.BookiesQuery)


async def test_what_the_document_allows_as_losses_is_taken() -> None:
    described = Schemas().parameters(decommission.ProofQuery)[1]["schema"]["pattern"]
    for text in ("", "7", "7, 8", "9" * 18):
        assert re.search(described, text)
        await accepted_losses(text)
    for text in (str(2**63), "9" * 19, "9" * 20):
        assert not re.search(described, text)
        with pytest.raises(BadRequest):
            await accepted_losses(text)
    assert await accepted_losses(str(2**63 - 1)) == {2**63 - 1}


async def test_a_long_list_of_losses_leaves_turns_to_others() -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    turn()
    assert len(await accepted_losses(", \n".join(map(str, range(50_000))))) == 50_000
    assert turns > 40
    with pytest.raises(BadRequest):
        await accepted_losses("1," * MOST_LOSSES + "1")
