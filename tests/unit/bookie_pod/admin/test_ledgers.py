"""Ledgers over HTTP: pages, streams, and faults in the middle."""

from __future__ import annotations

import aiohttp
import pytest

from bookie_protocol.errors import BookieUnavailable, MetadataDamaged, MetadataUnavailable
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.unit.bookie_pod.admin.conftest import Served


def fill(served: Served, count: int) -> None:
    served.admin.ledgers.ledgers = {each: LedgerMetadata(each, 1, 1, 1, {0: ("b1",)}) for each in range(count)}


async def test_a_plain_list_knows_no_pages(served: Served) -> None:
    assert (await served.get("ledger/list")).body == "{ }"
    fill(served, 500)
    found = (await served.get("ledger/list?page=2&decode_meta=true")).json
    assert list(found.items()) == [(str(each), None) for each in range(500)]


async def test_pages_hold_every_ledger_once(served: Served) -> None:
    """The first page has 99, as in the reference."""
    fill(served, 250)
    pages = [(await served.get(f"ledger/list?print_metadata=true&page={page}")).json for page in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [99, 100, 51, 0]
    assert [int(key) for page in pages for key in page] == list(range(250))
    assert all(text.startswith("BookieMetadataFormatVersion\t3\n") for page in pages for text in page.values())


async def test_everything_without_a_page(served: Served) -> None:
    fill(served, 230)
    found = (await served.get("ledger/list?print_metadata=true&decode_meta=true")).json
    assert [view["ledgerId"] for view in found.values()] == list(range(230))
    assert found["7"]["allEnsembles"] == {"0": [{"id": "b1"}]}
    assert (found["7"]["ctime"], found["7"]["digestType"], found["7"]["password"]) == (-1, None, "")


async def test_a_ledger_deleted_since_it_was_listed_is_left_out(served: Served) -> None:
    fill(served, 3)
    ids = served.admin.ledgers.ids

    async def with_a_ghost():
        async for ledger_id in ids():
            yield ledger_id
        yield 99

    served.admin.ledgers.ids = with_a_ghost
    assert list((await served.get("ledger/list?print_metadata=true")).json) == ["0", "1", "2"]


@pytest.mark.parametrize("decode", ["false", "true"])
async def test_a_ledger_whose_metadata_is_damaged_is_told_in_its_place(served: Served, decode: str) -> None:
    fill(served, 3)
    metadata = served.admin.ledgers.metadata

    async def with_one_damaged(ledger_id: int) -> LedgerMetadata:
        if ledger_id == 1:
            raise MetadataDamaged("/ledgers/00/0000/L0001 is no ledger metadata")
        return await metadata(ledger_id)

    served.admin.ledgers.metadata = with_one_damaged
    found = (await served.get(f"ledger/list?print_metadata=true&decode_meta={decode}")).json
    assert list(found) == ["0", "1", "2"]
    assert found["1"] == "(damaged) /ledgers/00/0000/L0001 is no ledger metadata"


async def test_flags_are_the_word_true_in_lower_case(served: Served) -> None:
    fill(served, 1)
    assert (await served.get("ledger/list?print_metadata=TRUE")).json == {"0": None}


async def test_entries_and_pages(served: Served) -> None:
    served.admin.ledgers.payloads[5] = [b"%d" % number for number in range(2500)]
    read = "ledger/read?ledger_id=5"
    assert len((await served.get(read)).json) == 2500
    assert (await served.get(f"{read}&start_entry_id=3&end_entry_id=5")).json == {"3": "3", "4": "4", "5": "5"}
    pages = [(await served.get(f"{read}&page={page}")).json for page in (1, 2, 3, 4)]
    assert [page.pop("Entries for page: ") for page in pages] == ["1", "2", "3", "4"]
    assert [len(page) for page in pages] == [1000, 1000, 500, 0]
    within = (await served.get(f"{read}&start_entry_id=2&end_entry_id=1003&page=2")).json
    assert within == {"1002": "1002", "1003": "1003", "Entries for page: ": "2"}


@pytest.mark.parametrize(
    "query", ["start_entry_id=5&end_entry_id=4", "end_entry_id=999&page=2", "start_entry_id=-1", "end_entry_id=x"]
)
async def test_ranges_that_are_none(served: Served, query: str) -> None:
    served.admin.ledgers.payloads[5] = [b"x"]
    assert (await served.get(f"ledger/read?ledger_id=5&{query}")).status == 400


async def test_payloads_are_shown_as_ascii(served: Served) -> None:
    served.admin.ledgers.payloads[5] = [b'tab\t"quote"\\ \x00\x1f\x7f\x80\xff']
    answer = await served.get("ledger/read?ledger_id=5")
    assert '"0" : "tab\\t\\"quote\\"\\\\ \\u0000\\u001F\x7f\ufffd\ufffd"' in answer.body
    assert answer.json["0"] == 'tab\t"quote"\\ \x00\x1f\x7f\ufffd\ufffd'


async def test_a_fault_before_the_first_entry_has_a_status(served: Served) -> None:
    ledgers = served.admin.ledgers
    ledgers.payloads[5] = [b"x"]
    ledgers.fault_after, ledgers.fault = 0, BookieUnavailable("no bookie answers")
    answer = await served.get("ledger/read?ledger_id=5")
    assert (answer.status, answer.body) == (503, "no bookie answers")


async def test_a_fault_in_the_middle_breaks_the_answer_off(served: Served) -> None:
    """Whoever reads must not take half a list for the whole."""
    fill(served, 4000)
    ledgers = served.admin.ledgers
    ledgers.fault_after, ledgers.fault = 3000, MetadataUnavailable("lost")
    with pytest.raises(aiohttp.ClientError):
        await served.get("ledger/list")
    ledgers.fault_after = None
    assert len((await served.get("ledger/list")).json) == 4000


async def test_delete(served: Served) -> None:
    assert (await served("/api/v1/ledger/delete?ledger_id=9", "DELETE")).json == "Deleted ledger: 9"
    for bad in ("-1", "x", "", "9223372036854775808", "9" * 5000):
        assert (await served(f"/api/v1/ledger/delete?ledger_id={bad}", "DELETE")).status == 400
    assert served.admin.ledgers.deleted == [9]
