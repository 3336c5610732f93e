"""A shelf of ledgers and an archive, as for the offload."""

from __future__ import annotations

from tests.unit.pyspark_bookie.jobs.offload.conftest import shelf, target  # noqa: F401 - fixtures
