"""Schemas and values of the same dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest
from jsonschema import Draft202012Validator

from bookie_pod.server.http.api.schema import Schemas, called, to_json


@dataclass
class Leaf:
    """A leaf."""

    leaf_id: int
    """Which one."""
    odd: Literal["a", "b"] = field(metadata=called("is_odd"))
    """A word."""


@dataclass
class Tree:
    """A tree."""

    all_leaves: list[Leaf]
    """Its leaves."""
    by_name: dict[str, Leaf | None]
    """Some of them."""
    share: float | None
    """Of something."""


TREE = Tree([Leaf(1, "a")], {"x": Leaf(2, "b"), "y": None}, 0.5)


def test_values_fit_their_schemas() -> None:
    schemas = Schemas()
    schema = schemas.of(Tree)
    assert schema == {"$ref": "#/components/schemas/Tree"}
    value = to_json(TREE)
    assert value == {
        "allLeaves": [{"leafId": 1, "is_odd": "a"}],
        "byName": {"x": {"leafId": 2, "is_odd": "b"}, "y": None},
        "share": 0.5,
    }
    judge = Draft202012Validator(schema | {"components": {"schemas": schemas.components}})
    judge.validate(value)
    for broken in (
        value | {"more": 1},
        value | {"share": "x"},
        {key: value[key] for key in ("allLeaves", "share")},
        value | {"allLeaves": [{"leafId": 1, "is_odd": "c"}]},
        value | {"allLeaves": [{"leafId": None, "is_odd": "a"}]},
    ):
        assert not judge.is_valid(broken), broken


def test_descriptions_are_the_docstrings() -> None:
    schemas = Schemas()
    schemas.of(Leaf)
    leaf = schemas.components["Leaf"]
    assert (leaf["description"], leaf["properties"]["leafId"]["description"]) == ("A leaf.", "Which one.")


def test_a_type_without_a_schema() -> None:
    with pytest.raises(TypeError, match="no JSON schema"):
        Schemas().of(set[int])
