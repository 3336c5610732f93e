"""The blocking surface is the asynchronous one: the same calls with the same parameters."""

import ast
import inspect
import textwrap

import pytest

from bookie_client import AdvancedLedgerWriter, Client, LedgerReader, LedgerWriter
from bookie_client.blocking import (
    BlockingAdvancedLedgerWriter,
    BlockingClient,
    BlockingLedgerReader,
    BlockingLedgerWriter,
)

PAIRS = [
    (Client, BlockingClient),
    (LedgerWriter, BlockingLedgerWriter),
    (AdvancedLedgerWriter, BlockingAdvancedLedgerWriter),
    (LedgerReader, BlockingLedgerReader),
]
RETURNS = {
    "Opening[LedgerWriter]": "BlockingLedgerWriter",
    "Opening[AdvancedLedgerWriter]": "BlockingAdvancedLedgerWriter",
    "Opening[LedgerReader]": "BlockingLedgerReader",
    "AsyncIterator[LedgerEntry]": "Iterator[LedgerEntry]",
    "AsyncGenerator[Sequence[LedgerEntry], None]": "Iterator[Sequence[LedgerEntry]]",
    "AsyncIterator[int]": "Iterator[int]",
    "asyncio.Future[int]": "Future[int]",
    "asyncio.Future[list[int]]": "Future[list[int]]",
}
NOT_FOR_USERS = {
    "follow",
    "heard",
    "iterate",
    "bookies",
    "cluster_view",
    "context",
    "metadata_service",
    "open_stored",
    "operations",
    "placement",
    "run",
    "stored",
    "stored_metadata",
}
"""`follow` is called by `Client.open`, `stored` by streams; `run` leads from the blocking client to the others, which
are for administration and run on the client's loop."""


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")} - NOT_FOR_USERS


def attributes(cls):
    """What only instances have: assigned in `__init__`, without an underscore."""
    found = set()
    for base in cls.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(base.__init__))).body
        stored = (
            node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        found |= {node.attr for node in stored if ast.unparse(node.value) == "self" and not node.attr.startswith("_")}
    return found


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_every_call_and_property_is_there_and_no_other(asynchronous, blocking):
    assert public(blocking) | attributes(blocking) == public(asynchronous) | attributes(asynchronous)


CALLS = [
    pytest.param(getattr(a, name), getattr(b, name), id=f"{a.__name__}.{name}")
    for a, b in PAIRS
    for name in sorted(public(a) | ({"__init__"} if a is Client else set()))
    if callable(getattr(a, name))
]


@pytest.mark.parametrize(("asynchronous", "blocking"), CALLS)
def test_parameters_and_results_are_the_same(asynchronous, blocking):
    ours, theirs = inspect.signature(blocking), inspect.signature(asynchronous)
    assert ours.parameters == theirs.parameters
    expected = theirs.return_annotation
    assert ours.return_annotation == RETURNS.get(expected, expected)


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_properties_have_the_same_types(asynchronous, blocking):
    for name in public(asynchronous):
        described = inspect.getattr_static(asynchronous, name)
        if isinstance(described, property):
            ours = inspect.signature(inspect.getattr_static(blocking, name).fget).return_annotation
            assert ours == inspect.signature(described.fget).return_annotation, name
