"""Pieces of a recovery."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.command import write_report
from pyspark_bookie.jobs.framework.result import ResultRow
from pyspark_bookie.jobs.recover.job import LEDGER_COST, of_findings, pieces, read_findings
from pyspark_bookie.jobs.recover.ledger_recovery import LedgerWork
from pyspark_bookie.jobs.replicas.findings import Finding, FindingsSpool, Verdict


@given(st.lists(st.integers(0, 10**8), max_size=60), st.integers(1, 10**8), st.integers(1, 8))
def test_pieces_are_balanced_and_hold_each_ledger_once(sizes, max_bytes, least):
    works = [LedgerWork(ledger_id, nbytes) for ledger_id, nbytes in enumerate(sizes)]
    made = pieces(works, max_bytes, least)
    assert sorted(work.ledger_id for piece in made for work in piece.works) == list(range(len(sizes)))
    assert len(made) >= min(least, len(sizes))
    assert all(piece.works for piece in made)
    assert [piece.nbytes for piece in made] == sorted((piece.nbytes for piece in made), reverse=True)
    loads = [sum(work.nbytes + LEDGER_COST for work in piece.works) for piece in made]
    if made:
        # Each ledger went to the piece that was lightest then.
        assert max(loads) - min(loads) <= max(sizes) + LEDGER_COST


def finding(ledger_id, bookie, verdict=Verdict.MISSING, first=3):
    return Finding(ledger_id, 0, first, first + 1, 2, bookie, 1, verdict, "why")


def table(*findings) -> pa.Table:
    with FindingsSpool() as spool:
        spool.add(findings)
        return spool.table()


def test_a_report_comes_back_as_the_work_to_do(tmp_path):
    old, new = ResultRow("audit"), ResultRow("audit")
    write_report(table(finding(1, "a")), str(tmp_path), old.started)
    lost = [finding(7, "a"), finding(7, "b", Verdict.DAMAGED), finding(9, "c", Verdict.DIVERGENT)]
    others = [finding(8, "a", Verdict.UNREACHABLE), finding(10, "", Verdict.UNKNOWN), finding(7, "c", Verdict.EXTRA)]
    folder = write_report(table(*lost, *others), str(tmp_path), new.started)
    found = read_findings(str(tmp_path))
    assert found == lost == read_findings(folder)
    works = list(of_findings(found, None))
    assert [(work.ledger_id, work.named) for work in works] == [(7, {"a", "b"}), (9, {"c"})]
    assert [work.ledger_id for work in of_findings(found, [9, 100])] == [9]


def test_what_is_no_report_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="nothing"):
        read_findings(str(tmp_path / "nowhere"))
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(UsageError, match="report") as caught:
        read_findings(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_report_with_findings_that_nobody_makes_is_refused_in_one_line(tmp_path):
    good = table(finding(1, "a"))
    of_numbers = good.set_column(good.schema.get_field_index("verdict"), "verdict", pa.array([1]))
    for bad in (of_numbers, good.drop_columns("detail"), pa.table({})):
        pq.write_table(bad, tmp_path / "part.parquet")
        with pytest.raises(UsageError, match="report"):
            read_findings(str(tmp_path))
