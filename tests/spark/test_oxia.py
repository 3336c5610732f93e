"""Spark on a cluster whose metadata are in Oxia."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.spark.test_etcd import read_and_write
from tests.support.oxia import OxiaServer
from tests.support.serve_cluster import ServeCluster


@pytest.mark.oxia
def test_ledgers_and_streams_are_read_and_written(spark, oxia: OxiaServer, tmp_path: Path) -> None:
    read_and_write(spark, ServeCluster(tmp_path, oxia.uri(f"/spark-{uuid.uuid4().hex[:8]}")))
