"""What users of Spark see of an error: its text."""

from __future__ import annotations

import pickle

import pytest

from bookie_protocol.errors import BookieUnavailable, MetadataUnavailable, NoSuchLedger, Unauthorized
from pyspark_bookie.common.errors import PodkeeperSparkError, code_of, spark_error, told


def test_a_code_stands_in_front_and_the_thing_is_named_once():
    assert str(spark_error(NoSuchLedger("ledger 7 does not exist"), "ledger 7")) == (
        "[BOOKIE_NO_SUCH_LEDGER] ledger 7 does not exist"
    )
    assert str(spark_error(BookieUnavailable("no answer"), "ledger 7")).endswith("] ledger 7: no answer")
    assert str(spark_error(BookieUnavailable("ledger 77 is away"), "ledger 7")).endswith("ledger 7: ledger 77 is away")


def test_remedies():
    assert "passwordFile" in str(spark_error(Unauthorized("ledger 7 has another password")))
    assert "metadataServiceUri" in str(spark_error(MetadataUnavailable("gone")))


def test_it_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(PodkeeperSparkError("DATA_LOSS", "ledger 7")))
    assert (error.code, str(error)) == ("DATA_LOSS", "[BOOKIE_DATA_LOSS] ledger 7")
    assert code_of(NoSuchLedger()) == "NO_SUCH_LEDGER"


def test_other_errors_pass_untouched():
    with pytest.raises(ZeroDivisionError), told():
        raise ZeroDivisionError
    with pytest.raises(PodkeeperSparkError) as caught, told("ledger 7"):
        raise NoSuchLedger("gone")
    assert caught.value.__suppress_context__
