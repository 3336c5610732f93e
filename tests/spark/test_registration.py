"""How Spark finds the source."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyspark_bookie import DefaultSource


def test_it_registers_by_itself_and_refuses_options_with_the_nearest_name(spark):
    with pytest.raises(Exception, match=r"\[BOOKIE_OPTION\].* ledgrs: .* ledgers"):
        spark.read.format("bookkeeper").option("metadataServiceUri", "embedded://x").option("ledgrs", "5").load()


def test_it_can_be_registered_by_hand_too(spark):
    spark.dataSource.register(DefaultSource)
    with pytest.raises(Exception, match=r"\[BOOKIE_OPTION\] nothing"):
        spark.read.format("bookkeeper").option("metadataServiceUri", "embedded://x").load()


def test_there_are_no_paths_and_no_tables_of_a_catalogue(spark):
    reader = spark.read.format("bookkeeper").option("metadataServiceUri", "embedded://x")
    with pytest.raises(Exception, match=r"\[BOOKIE_OPTION\] no path"):
        reader.load("/some/where")
    view = "CREATE TEMPORARY VIEW"
    options = "OPTIONS (metadataServiceUri 'embedded://x', ledgers '5')"
    with pytest.raises(Exception, match=rf"\[BOOKIE_OPTION\] there .*{view}"):
        spark.sql(f"CREATE TABLE told USING bookkeeper {options}")
    spark.sql(f"CREATE TABLE untold (value BINARY) USING bookkeeper {options}")  # Spark does not ask
    try:
        with pytest.raises(Exception, match=rf"\[BOOKIE_OPTION\] .*hands .*{view}"):
            spark.table("untold").collect()
    finally:
        spark.sql("DROP TABLE untold")


def test_the_module_that_spark_imports_is_light_and_cannot_fail():
    """One broken module makes the sources of all packages vanish without a message."""
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_bookie;"
        "print(*sorted(name for name in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["pyspark_bookie"]
