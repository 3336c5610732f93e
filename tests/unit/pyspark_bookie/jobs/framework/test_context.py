"""The SparkSession that a job begins, and those that it leaves as they are."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from pyspark_bookie.jobs.framework.context import open_session

JAVA = "spark.driver.extraJavaOptions"


class Builder:
    """Notes what Spark would be told."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> Builder:
        return self.config("spark.app.name", name)

    def master(self, master: str) -> Builder:
        return self.config("spark.master", master)

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self

    def getOrCreate(self) -> MagicMock:
        return MagicMock()


@pytest.fixture
def builder(monkeypatch):
    made = Builder()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "builder", made)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setenv("PYTHONPATH", "")
    return made


def test_java_of_a_job_takes_no_time_to_optimise(builder):
    _, ours = open_session("podkeeper audit", None)
    assert ours
    assert builder.settings["spark.master"] == "local[*]"
    assert builder.settings[JAVA] == "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize("variable", ["PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"])
def test_what_somebody_else_configures_is_left_alone(builder, monkeypatch, variable):
    monkeypatch.setenv(variable, "pyspark-shell")
    open_session("podkeeper audit", None)
    assert builder.settings == {"spark.app.name": "podkeeper audit"}


def test_a_session_that_is_there_is_used(builder, monkeypatch):
    there = MagicMock()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: there)
    assert open_session("podkeeper audit", None) == (there, False)
    assert builder.settings == {}
