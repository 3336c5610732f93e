"""Options of the source."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from bookie_protocol.digest import DigestType
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.traffic_class import TrafficClass
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.source.options import ReadMode, SourceOptions
from pyspark_bookie.source.positions import Positions, positions
from pyspark_bookie.source.schema import check_schema, full_schema

URI = {"metadataServiceUri": "embedded://127.0.0.1:1/ledgers"}


def parsed(**raw):
    return parse({**URI, **raw}, SourceOptions)


def test_defaults_and_everything_given():
    options = parsed(ledgers="5")
    assert (options.min_partitions, options.max_bytes_per_partition) == (1, 128 << 20)
    assert options.fail_on_data_loss
    assert not options.has_metadata_column
    options = parsed(
        scope="ALL",
        readMode="bookie:bookie-1:3181",
        digestType="hmac",
        failOnDataLoss="false",
        locality="none",
        batchRead="false",
        batchMaxBytes="64k",
        **{"client.readTimeout": "2.5", "rateLimit.bytesPerSecond": "10m", "tls.caFile": "/ca"},
    )
    assert options.read_mode == ReadMode("bookie", "bookie-1:3181")
    assert options.digest_type is DigestType.MAC
    assert options.has_corrupt_column
    client = options.client_options()
    assert (client.batch_reads, client.batch_read_bytes, client.reorder_reads) == (False, 65536, False)
    assert client.read_timeout == 2.5
    assert client.tls is not None
    assert client.tls.ca_file == "/ca"
    assert hash(client) == hash(options.client_options())


def test_reads_are_of_the_class_batch_unless_somebody_waits_for_them():
    assert parsed(scope="all").client_options().traffic_class is TrafficClass.BATCH
    assert parsed(scope="all", trafficClass="Online").client_options().traffic_class is TrafficClass.ONLINE
    jobs = parse({**URI, "trafficClass": "online"}, AccessOptions)
    assert [each.client_options().reads_are_batch for each in (parse(URI, AccessOptions), jobs)] == [True, False]
    sink = parse({**URI, "stream": "orders"}, SinkOptions)
    assert sink.client_options().reads_are_batch


def test_the_metadata_service_is_reached_as_the_keys_of_a_configuration_say(tmp_path):
    files = {"metadataServiceTrustStorePath": "/ca", "metadataServiceTokenFile": "/token"}
    given = parsed(scope="all", metadataServiceTlsEnable="true", **files).client_options().metadata_service
    assert (given.tls, given.token_file) == (MetadataTls(ca_file="/ca"), "/token")
    (tmp_path / "login").write_text("user:secret")
    login = {"zkAuthCredentialsPath": str(tmp_path / "login"), "zkAuthScheme": "sasl"}
    with_login = parsed(scope="all", metadataServiceTlsEnable="true", **login).client_options().metadata_service
    assert (with_login.tls, with_login.sasl.username) == (MetadataTls(), "user")
    assert parsed(scope="all").client_options().metadata_service.tls is None
    with pytest.raises(PodkeeperSparkError, match="certificate"):
        parsed(scope="all", metadataServiceTlsEnable="true", metadataServiceKeyPath="/key").client_options()
    with pytest.raises(PodkeeperSparkError, match=r"metadataServiceTlsEnable=false: .*TLS"):
        parsed(scope="all", metadataServiceTrustStorePath="/ca").client_options()


def test_options_travel_to_tasks_and_carry_no_password(tmp_path):
    (tmp_path / "secret").write_text("s3cret\n")
    options = parsed(stream="orders", passwordFile=str(tmp_path / "secret"))
    data = pickle.dumps(options)
    assert pickle.loads(data) == options
    assert b"s3cret" not in data
    assert options.password.read() == b"s3cret"


def test_the_password_may_be_in_the_environment(tmp_path, monkeypatch):
    assert parsed(stream="orders").password.read() == b""
    monkeypatch.setenv("BOOKIE_LEDGER_PASSWORD", "of the environment")
    (tmp_path / "secret").write_text("of the file\n")
    assert parsed(stream="orders").password.read() == b"of the environment"
    assert parsed(stream="orders", passwordFile=str(tmp_path / "secret")).password.read() == b"of the file"
    assert parsed(stream="orders", recordedPasswords="true").password.read() is None


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({}, "selected"),
        ({"ledgers": "5", "stream": "x"}, "exclude"),
        ({"ledgers": "5-"}, "5,7,100-200"),
        ({"ledgerPattern": "application"}, "KEY=PATTERN"),
        ({"streamPattern": "("}, "expression"),
        ({"scope": "some"}, "scope=some"),
        ({"scope": "all", "readMode": "bookie:"}, "bookie:<id>"),
        ({"scope": "all", "startingPosition": "now"}, "earliest"),
        ({"scope": "all", "recordedPasswords": "true", "passwordFile": "/x"}, "exclude"),
        ({"scope": "all", "table": "ledger"}, "fragments"),
        ({"scope": "all", "trafficClass": "bulk"}, "trafficClass=bulk"),
        ({"scope": "all", "traficClass": "batch"}, "traficClass"),
        ({"stream": "x", "table": "ledgers"}, "table=ledgers"),
        ({"scope": "all", "decode": "pulsar", "readMode": "replica"}, "readMode=quorum"),
        ({"scope": "all", "decode": "dlog", "readMode": "bookie:b"}, "readMode=quorum"),
        ({"scope": "all", "digestType": "md5"}, "digest"),
    ],
)
def test_bad_options(raw, told):
    with pytest.raises(PodkeeperSparkError, match=re.escape(told)):
        parsed(**raw)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("client.readTimeouts", "3", "client.readtimeouts: "),
        ("client.zzz", "3", "client.zzz: "),
        ("client.readTimeout", "soon", "float"),
        ("client.readTimeout", "-1", "read_timeout"),
        ("zkAuthCredentialsPath", "/nowhere", "No such"),
        ("tls.keyFile", "/key", "needs certificate_file"),
        ("authTokenFile", "/nowhere", "authTokenFile=/nowhere: No such"),
        ("saslJaasConfigFile", "/nowhere", "saslJaasConfigFile=/nowhere: No such"),
        ("saslJaasConfigFile", "/dev/null", "saslJaasConfigFile=/dev/null"),
    ],
)
def test_bad_options_of_the_client(name, value, told):
    with pytest.raises(PodkeeperSparkError, match=re.escape(told)):
        parsed(scope="all", **{name: value}).client_options()


def test_a_password_file_that_is_not_there_is_told_with_the_machine():
    with pytest.raises(PodkeeperSparkError, match=r"passwordFile=/nowhere: No such .*every"):
        parsed(scope="all", passwordFile="/nowhere").password.read()


def test_the_first_token_of_a_file_that_bookies_have_too_is_shown(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("# of people\nsecret viewer spark\nother admin\n")
    assert parsed(ledgers="5", **{"admin.tokenFile": str(tokens)}).admin_token() == "secret"
    assert parsed(ledgers="5").admin_token() is None
    tokens.write_text("s\u00e9cret")
    with pytest.raises(PodkeeperSparkError, match="tokens"):
        parsed(ledgers="5", **{"admin.tokenFile": str(tokens)}).admin_token()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10)), min_size=1, max_size=8))
def test_ids_and_ranges_of_ids(spans):
    text = ", ".join(f"{first}-{first + more}" if more else str(first) for first, more in spans)
    found = parsed(ledgers=text).ledgers
    expected = {number for first, more in spans for number in range(first, first + more + 1)}
    assert {number for number in range(100) if number in found} == expected
    assert list(found.spans) == sorted(found.spans)


def test_positions():
    assert positions("Latest") == Positions(-1)
    chosen = positions('{"5": 100, "7": -1, "8": -2}')
    assert [chosen.of(ledger, 150, -2) for ledger in (5, 7, 8, 9)] == [100, 150, 0, 0]
    assert [chosen.of(ledger, 50, -1) for ledger in (5, 7, 8, 9)] == [50, 50, 0, 50]
    for text in ('{"5": -3}', '{"x": 1}', "[]", '{"5": true}', ""):
        with pytest.raises(ValueError, match="earliest"):
            positions(text)


def test_columns_follow_from_the_options():
    assert full_schema(parsed(ledgers="1")).names == ["ledger_id", "entry_id", "value", "length", "lac", "stream"]
    assert full_schema(parsed(ledgers="1", failOnDataLoss="false")).names[-1] == "_corrupt"
    assert full_schema(parsed(ledgers="1", readMode="replica")).names[-2:] == ["_metadata", "_corrupt"]
    options = parsed(ledgers="1")
    assert check_schema(full_schema(options), options) == full_schema(options)


@pytest.mark.parametrize(
    ("name", "kind", "nullable", "why"),
    [
        ("key", StringType(), True, "key: "),
        ("entry_id", IntegerType(), True, "entry_id"),
        ("entry_id", LongType(), False, "NOT NULL"),
    ],
)
def test_columns_that_a_read_cannot_give_are_refused(name, kind, nullable, why):
    options = parsed(ledgers="1")
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_SCHEMA\].*{why}"):
        check_schema(StructType().add(name, kind, nullable), options)


def test_logins_to_bookies(tmp_path):
    (tmp_path / "token").write_text("a-token-of-the-cluster")
    (tmp_path / "jaas").write_text('Client { Digest required username="app" password="s3cret"; };')
    by_token = {"authTokenFile": str(tmp_path / "token")}
    by_sasl = {"saslJaasConfigFile": str(tmp_path / "jaas"), "saslJaasClientSectionName": "Client"}
    options = [parsed(scope="all", **given).client_options() for given in (by_token, by_token, by_sasl, by_sasl, {})]
    assert [each.auth and each.auth.plugin_name for each in options] == ["podkeeper-token"] * 2 + ["sasl"] * 2 + [None]
    assert len(set(options)) == 3  # so that tasks share their clients
    with pytest.raises(PodkeeperSparkError, match="exclude"):
        parsed(scope="all", **by_token, **by_sasl).client_options()
