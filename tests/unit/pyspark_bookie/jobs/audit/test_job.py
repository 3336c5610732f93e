"""Which placement policy an audit holds ensembles against."""

from __future__ import annotations

import pytest

from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.jobs.audit.job import AuditArguments, policy_held_against


@pytest.mark.parametrize(
    ("placed_by", "asked", "expected"),
    [
        ({}, None, "rack-aware"),
        ({"placement": "zone-aware"}, None, "zone-aware"),
        ({"placement": "zone-aware"}, "rack-aware", "rack-aware"),
        ({"placement": "zone-aware"}, "none", None),
    ],
)
def test_copies_are_held_against_what_places_them_unless_told_otherwise(
    placed_by: dict[str, str], asked: str | None, expected: str | None
) -> None:
    access = AccessOptions(metadata_service_uri="zk://one/ledgers", **placed_by)
    args = AuditArguments(metadata="zk://one/ledgers", placement=asked)
    assert policy_held_against(args, access) == expected
