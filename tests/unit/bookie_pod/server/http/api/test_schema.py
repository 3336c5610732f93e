"""Schemas of bodies: what is encoded fits them, and nothing else does."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import pytest
from jsonschema import Draft202012Validator
from msgspec import field

from bookie_pod.server.http.api.schema import Schemas
from bookie_protocol.admin_api.bodies import Body, decode, plain
from bookie_protocol.errors import ProtocolViolation


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
