"""Options as typed dataclasses: what is accepted, and what is told about the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import (
    at_least,
    camel_case,
    option,
    option_names,
    parse,
    pattern,
    seconds,
    size,
    size_at_most,
    words,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Options:
    target: str = option()
    min_partitions: int = option(1, read=at_least(1))
    ratio: float = option(0.5)
    is_quiet: bool = option(False)
    colour: Colour | None = option(None)
    rate: int | None = option(None, read=size, name="rateLimit.bytesPerSecond")
    place: str = option("here", variable="PODKEEPER_TEST_PLACE")
    others: Mapping[str, str] = option(factory=dict, prefix="client.")

    def __post_init__(self) -> None:
        if self.is_quiet and self.colour is Colour.RED:
            raise ValueError("isQuiet and colour=red exclude each other")


def test_names_are_compared_without_their_case_and_values_are_typed():
    raw = {
        "TARGET": "x",
        "minpartitions": "4",
        "Ratio": "0.25",
        "isQuiet": "TRUE",
        "colour": "Blue",
        "ratelimit.bytespersecond": "10m",
        "client.readTimeout": "3",
    }
    assert parse(raw, Options) == Options(
        target="x",
        min_partitions=4,
        ratio=0.25,
        is_quiet=True,
        colour=Colour.BLUE,
        rate=10 * 1024 * 1024,
        others={"readtimeout": "3"},
    )


def test_the_environment_counts_where_an_option_is_not_given(monkeypatch):
    monkeypatch.setenv("PODKEEPER_TEST_PLACE", "there")
    assert parse({"target": "x"}, Options).place == "there"
    assert parse({"target": "x", "place": "elsewhere"}, Options).place == "elsewhere"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({}, "target"),
        ({"provider": "bookkeeper", "target": "x"}, "catalogue"),
        ({"target": "x", "minPartition": "4"}, "minPartition: "),
        ({"target": "x", "rateLimit": "4"}, "rateLimit.bytesPerSecond"),
        ({"target": "x", "zzz": "4"}, "client.*, colour, isQuiet,"),
        ({"target": "x", "minPartitions": "0"}, "minPartitions=0"),
        ({"target": "x", "ratio": "half"}, "ratio=half"),
        ({"target": "x", "isQuiet": "yes"}, "isQuiet=yes"),
        ({"target": "x", "colour": "green"}, "colour=green"),
        ({"target": "x", "isQuiet": "true", "colour": "red"}, "colour=red"),
        ({"target": "x", "path": "/tmp"}, "no path"),
    ],
)
def test_bad_options_are_told_by_name_with_what_would_be_right(raw, told):
    with pytest.raises(PodkeeperSparkError, match=re.escape(told)) as caught:
        parse(raw, Options)
    assert str(caught.value).startswith("[BOOKIE_OPTION] ")


def test_a_password_is_refused_and_not_repeated():
    with pytest.raises(PodkeeperSparkError, match="passwordFile") as caught:
        parse({"target": "x", "password": "s3cret"}, Options)
    assert "s3cret" not in str(caught.value)


def test_names_of_all_options():
    assert option_names(Options)[:3] == ("target", "minPartitions", "ratio")
    assert option_names(Options)[-1] == "client.*"
    assert camel_case("max_bytes_per_partition") == "maxBytesPerPartition"


@pytest.mark.parametrize(
    ("text", "nbytes"), [("1", 1), ("64m", 64 << 20), ("1.5 k", 1536), ("2GiB", 2 << 30), ("1tb", 1 << 40)]
)
def test_sizes(text, nbytes):
    assert size(text) == nbytes


@given(st.integers(1, 2**60))
def test_plain_sizes_are_bytes(nbytes):
    assert size(str(nbytes // 2**10) + "k") == nbytes // 2**10 * 2**10 if nbytes >= 2**10 else size(str(nbytes))


@pytest.mark.parametrize("text", ["", "0", "-1", "m", "1x", "1 m b"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="bytes"):
        size(text)


def test_times_words_and_patterns():
    assert [seconds(text) for text in ("5", "500ms", "15m", "3d", "36500d")] == [5.0, 0.5, 900.0, 259200.0, 3.1536e9]
    assert words("a, b,c") == ("a", "b", "c")
    assert pattern("a.*").fullmatch("abc")
    for read, text in ((seconds, "soon"), (seconds, "36501d"), (seconds, "9" * 400), (words, "a,,b"), (pattern, "(")):
        with pytest.raises(ValueError, match=r"must be|is no"):
            read(text)


def test_a_size_may_have_an_upper_bound() -> None:
    assert size_at_most(512 << 20)("512m") == 512 << 20
    with pytest.raises(ValueError, match="536870912 bytes"):
        size_at_most(512 << 20)("513m")


@pytest.mark.parametrize("name", ["endingTimestamp", "assign", "subscribe", "kafka.bootstrap.servers"])
def test_option_of_sparks_kafka_source_is_told_what_serves_instead(name: str) -> None:
    with pytest.raises(PodkeeperSparkError, match="Kafka") as told:
        parse({"target": "x", name: "1"}, Options)
    assert "did you mean" not in str(told.value)
