"""`/openapi.json` and the answers that it describes.

Schemas of bodies: what is encoded fits them, and nothing else does.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Literal

import pytest
from jsonschema import Draft202012Validator
from msgspec import field

from bookie_pod.admin.ledgers import ledger_view
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.server.http.api.openapi import Schemas
from bookie_pod.server.http.api.table import METHODS, Group
from bookie_pod.server.http.routes import resources
from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.reports import LogReport, PassResult
from bookie_protocol.admin_api.autorecovery import (
    AbsentBookieState,
    AutoRecoveryProcessState,
    CheckRun,
    CheckSummary,
    LedgerRepairState,
    WorkerState,
)
from bookie_protocol.admin_api.bodies import Body, decode, plain
from bookie_protocol.admin_api.cluster import FoundLedgers, KnownBookie
from bookie_protocol.admin_api.decommission import BOOKIES_PATTERN, LedgerReason, RecoverState
from bookie_protocol.admin_api.streams import CursorState, ListedLedger, StreamState
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.service_info import is_readable_bookie_id
from tests.support.fake_admin import gc_state
from tests.support.http_answers import Document
from tests.unit.bookie_pod.admin.conftest import Served
from tests.unit.bookie_pod.admin.conftest import served as served  # a fixture

PARAMETERS = {
    "ledger_id": ["5", "6", "x"],
    "decommission": ["1700000000000", "x"],
    "print_metadata": ["true", "false"],
    "decode_meta": ["true", "false"],
    "page": ["1", "0"],
    "start_entry_id": ["0", "x"],
    "end_entry_id": ["-1", "-2"],
    "type": ["rw", "ro", "xx"],
    "print_hostnames": ["true"],
    "fullest": ["true", "false"],
    "file_type": ["journal", "entrylog", "index", "xx"],
    "entryLog": ["1f.log", "ff", "zz"],
    "enabled": ["true", "false"],
    "limit": ["1", "0", "x"],
    "bookie_id": ["b:1", "gone:1"],
    "accept_loss": ["7", "7,8", "", "x"],
    "bookies": ["b:1,b:2", ""],
    "missingreplica": ["b1", "b9"],
    "excludingmissingreplica": ["b2", "b1"],
    "printmissingreplica": ["true"],
    "first": ["0", "x"],
    "state": ["OPEN", "xx"],
    "bookie": ["b1"],
    "after": ["a"],
    "prefix": ["a"],
    "name": ["orders", "gone"],
    "most": ["100", "x"],
}
BODIES = [
    None,
    "not json",
    "{}",
    '{"forceMajor": true}',
    '{"suspendMajor": true}',
    '{"resumeMinor": true}',
    '{"olderMetadata": true}',
    '{"readOnly": true}',
    '{"entryLocationRocksDBCompact": true}',
    '{"entryLocationRocksDBCompact": true, "entryLocations": "/nowhere"}',
    '{"delay_seconds": 5}',
    '{"bookie_src": "b:1"}',
    '{"bookie_src": ["b:1"]}',
    '{"bookie_id": "b:1"}',
    '{"checks": ["ledgers", "replicas"]}',
    '{"bookies": ["b1:3181"]}',
]


@pytest.fixture
def rich(served: Served) -> Served:
    """Ports that have something to tell everywhere."""
    admin = served.admin
    members = {0: ("b1", "b2"), 7: ("b1", "b3")}
    admin.ledgers.ledgers[5] = LedgerMetadata(
        5, 2, 2, 1, members, digest_type=DigestType.CRC32C, password=b"pw", ctime=1, custom_metadata={"a": b"\xff"}
    )
    admin.ledgers.payloads[5] = [b"one", b"\xfftwo"]
    report = LogReport(31, "/data/1f.log", 9, LogUsage(31, 9, 3, 1), [(5, 3)], "because", 90)
    admin.gc.log_reports = {31: report}
    done = PassResult(errors=["one"])
    admin.gc.collectors = [("/data/ledgers", gc_state(quarantined={3: "torn"}, last_pass=done))]
    admin.cluster.writable = {"b1": "h1"}
    admin.cluster.known_bookies = [KnownBookie("b1", "writable", True, False, "h1", "/z1", "http://h1:8000")]
    admin.finder.found = FoundLedgers([ledger_view(admin.ledgers.ledgers[5])], 1, 6, [4])
    cursor = CursorState("billing", "5:1", 3, 7)
    listed = [ListedLedger(5, 0, None, None, None)]
    admin.streams.states["orders"] = StreamState("orders", 1, 2, 3, 5, 0, 6, [cursor], 1, None, listed)
    admin.indexes.known = {"/data/locations": True}
    admin.settings.values = {"gcWaitTime": "5"}
    admin.decommission.recovery = RecoverState(["b:1"], True, "", 1, 2, 3, [LedgerReason(7, "why")], [])
    recovery = admin.auto_recovery
    recovery.auditor_id, recovery.delay_s, recovery.marked = "b1", 60, {5: ("b1",)}
    run = CheckRun(1, None, 2, 3, {"ledgers": 4})
    recovery.summaries = [CheckSummary("ledgers", "b1", run, run, 5, None, "no answer", 6)]
    repair = LedgerRepairState(5, "copying", 1.5, 2, 1, 10, 20, 1000, 0, "", [], None)
    absent = AbsentBookieState("b2", 1, 2, True, False)
    recovery.process = AutoRecoveryProcessState(
        "b1",
        True,
        5,
        True,
        None,
        60,
        7,
        0,
        0,
        [absent],
        ["ledgers"],
        {"ledgers": None},
        WorkerState(True, [repair], 1, 2, 3, 4, 5, 6.5),
    )
    return served


async def document(served: Served) -> Document:
    answer = await served("/openapi.json")
    assert answer.headers["Content-Type"].startswith("application/json")
    return Document(answer.json)


async def test_every_answer_of_every_operation_is_as_documented(rich: Served) -> None:
    judge = await document(rich)
    successes = set()
    for method, path, operation in judge.operations:
        names = [each["name"] for each in operation["parameters"]]
        queries: list[dict[str, str]] = [{}, {name: PARAMETERS[name][0] for name in names}]
        queries += [queries[1] | {name: value} for name in names for value in PARAMETERS[name]]
        for query in queries:
            for body in BODIES if "requestBody" in operation else [None]:
                text = "&".join(f"{name}={value}" for name, value in query.items())
                answer = await rich(f"{path}?{text}", method, body)
                judge.judge(method, path, answer)
                assert answer.status != 500
                if answer.status == 200:
                    successes.add((method, path))
    missing = {(method, path) for method, path, _ in judge.operations} - successes
    assert missing == {("GET", "/api/v1/bookie/list_bookie_info")}  # no bookie answers the fake


async def test_every_path_is_in_the_document_and_served(rich: Served) -> None:
    judge = await document(rich)
    table = {each.path: each for each in resources(RESOURCES, frozenset())}
    assert set(judge.content["paths"]) == set(table)
    for path, resource in table.items():
        for method in METHODS:
            answer = await rich(path, method)
            if resource.operation(method) is None:
                assert method.lower() not in judge.content["paths"][path]
                assert (answer.status, answer.line) == (
                    resource.refusal.status,
                    resource.refusal.body.replace("{method}", method),
                )


async def test_nothing_in_an_answer_or_a_body_is_of_just_any_type(served: Served) -> None:
    """But for the document itself, which is no less than JSON Schema."""
    content = (await document(served)).content
    assert untyped(content["components"]["schemas"]) == []
    assert {path for path, methods in content["paths"].items() if untyped(methods)} == {"/openapi.json"}


def untyped(described: object) -> list[object]:
    """The schemas that demand nothing, or no more than an object."""
    if isinstance(described, list):
        return [found for each in described for found in untyped(each)]
    if not isinstance(described, dict):
        return []
    here = [described] if described in ({}, {"type": "object"}) else []
    return here + [found for each in described.values() for found in untyped(each)]


def test_a_start_does_not_wait_for_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes three times as much time as all the rest."""
    made: list[object] = []
    monkeypatch.setattr("bookie_pod.server.http.routes.openapi", lambda table, **how: made.append(table))
    resources(RESOURCES, frozenset())
    assert not made


def test_operation_ids_are_unique_and_tokens_are_told() -> None:
    table = resources(RESOURCES, frozenset({Group.ADMIN}))
    from bookie_pod.server.http.api.openapi import openapi

    found = openapi(table, version="1", guarded=frozenset({Group.ADMIN}))
    operations = [operation for methods in found["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids) > 35
    for operation in operations:
        admin = operation["tags"] == ["administration"]
        assert ("security" in operation) == ("401" in operation["responses"]) == admin
    assert found["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


class Leaf(Body):
    """A leaf."""

    leaf_id: int
    """Which one."""
    odd: Literal["a", "b"] = field(name="is_odd")
    """A word."""


class Tree(Body):
    """A tree."""

    all_leaves: list[Leaf]
    """Its leaves."""
    by_name: dict[str, Leaf | None]
    """Some of them."""
    share: float | None
    """Of something."""
    height: int = 0
    """Which older trees did not tell."""


TREE = Tree([Leaf(1, "a")], {"x": Leaf(2, "b"), "y": None}, 0.5, 3)
VALUE = {
    "allLeaves": [{"leafId": 1, "is_odd": "a"}],
    "byName": {"x": {"leafId": 2, "is_odd": "b"}, "y": None},
    "share": 0.5,
    "height": 3,
}


def test_values_fit_their_schemas() -> None:
    schemas = Schemas()
    schema = schemas.of(Tree)
    assert schema == {"$ref": "#/components/schemas/Tree"}
    assert plain(TREE) == VALUE
    judge = Draft202012Validator(schema | {"components": {"schemas": schemas.components}})
    judge.validate(VALUE)
    for broken in (
        VALUE | {"more": 1},
        VALUE | {"share": "x"},
        {key: VALUE[key] for key in ("allLeaves", "share")},
        VALUE | {"allLeaves": [{"leafId": 1, "is_odd": "c"}]},
        VALUE | {"allLeaves": [{"leafId": None, "is_odd": "a"}]},
    ):
        assert not judge.is_valid(broken), broken


def test_any_mapping_is_an_object() -> None:
    assert plain(MappingProxyType({7: TREE.all_leaves})) == {"7": VALUE["allLeaves"]}


def test_descriptions_are_the_docstrings() -> None:
    schemas = Schemas()
    schemas.of(Leaf)
    leaf = schemas.components["Leaf"]
    assert (leaf["description"], leaf["properties"]["leafId"]["description"]) == ("A leaf.", "Which one.")


def test_a_type_without_a_schema() -> None:
    with pytest.raises(TypeError):
        Schemas().of(object)


def test_pods_of_other_versions_are_understood() -> None:
    assert decode(b'{"allLeaves": [], "byName": {}, "share": null, "more": {}}', Tree) == Tree([], {}, None)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"null", b'"x"', b"{}", b"[" * 100_000, b"\xff"),
        b'{"allLeaves": [], "byName": {}}',
        b'{"allLeaves": [], "byName": {}, "share": true}',
        b'{"allLeaves": [{"leafId": 1}], "byName": {}, "share": 1}',
    ],
)
def test_what_is_missing_or_of_another_type_is_never_guessed(text: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(text, Tree)


async def test_every_parameter_has_one_type(served: Served) -> None:
    document = Document((await served("/openapi.json")).json)
    schemas = [each["schema"] for _, _, operation in document.operations for each in operation["parameters"]]
    assert {schema["type"] for schema in schemas} == {"string", "integer", "boolean"}
    assert not any("anyOf" in schema for schema in schemas)


@pytest.mark.parametrize(
    ("value", "fits"), [("a", True), ("a,.b,c..", True), (".", False), ("a,..", False), ("a,.,b", False)]
)
def test_lists_of_bookies_are_described_as_they_are_taken(value: str, fits: bool) -> None:
    assert bool(re.search(BOOKIES_PATTERN, value)) is fits
    assert all(map(is_readable_bookie_id, value.split(","))) is fits
