"""Clusters of model bookies (faults on demand) and of served ones (real storage)."""

from __future__ import annotations

from tests.unit.bookie_client.replication.conftest import models, served  # noqa: F401 - fixtures
