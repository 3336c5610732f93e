"""Where the entries of a range came from. On a virtual clock."""

import pytest

from bookie_client.reading.origins import NOWHERE
from tests.unit.bookie_client.reading.rig import Rig, read_range, run_virtually


def read_with_origins(rig, first, last):
    async def main():
        reader = rig.reader()
        origins = reader.note_origins()
        entries = await read_range(reader, first, last)
        return [(entry.entry_id, origins.take(entry.entry_id)) for entry in entries], origins

    return run_virtually(main)


@pytest.mark.parametrize("options", [{}, {"batch_reads": False}, {"ensemble": 4, "write_quorum": 2}])
def test_each_entry_tells_its_bookie_and_the_time_of_its_request(options):
    rig = Rig(120, **options)
    found, origins = read_with_origins(rig, 10, 109)
    assert [entry_id for entry_id, _ in found] == list(range(10, 110))
    for entry_id, origin in found:
        assert origin.bookie in rig.metadata.bookies_for(entry_id)
        assert origin.seconds is not None
        assert 0 <= origin.seconds < 1
    assert origins.take(10) == NOWHERE, "what was taken is forgotten"


def test_an_entry_that_was_damaged_tells_who_gave_it_in_the_end():
    rig = Rig(20)
    for entry_id in range(20):
        rig.bookies["A"].damage(entry_id)
    found, _ = read_with_origins(rig, 0, 19)
    assert {origin.bookie for _, origin in found} <= {"B", "C"}
