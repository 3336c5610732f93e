"""Files of network locations."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.placement.sources import parse_locations
from bookie_protocol.errors import BadRequest


def test_a_table_of_hosts_and_racks():
    text = """
    # host        rack
    10.0.0.1      /rack-1   # the first
    bk-2.example  /east/rack-2

    bk-3          /default-rack
    """
    assert parse_locations("racks.table", text) == {
        "10.0.0.1": ("rack-1",),
        "bk-2.example": ("east", "rack-2"),
        "bk-3": None,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bk-1", "line 2: expected `host /location`, not 'bk-1'"),
        ("bk-1 rack", "line 2: expected"),
        ("bk-1 /rack more", "line 2: expected"),
        ("bk-0 /other", "bk-0 is listed"),
    ],
)
def test_a_malformed_table_is_refused(line, message):
    with pytest.raises(BadRequest, match=message):
        parse_locations("t", f"bk-0 /rack\n{line}\n")


YAML = """
zones:
  zone-a: [bookie-0, bookie-1]
  zone-b:
    domain-1: [bookie-2]
  zone-c:
bookies:
  "10.0.0.7:3181": /zone-c/domain-9
"""
LOCATIONS = {
    "bookie-0": ("zone-a",),
    "bookie-1": ("zone-a",),
    "bookie-2": ("zone-b", "domain-1"),
    "10.0.0.7:3181": ("zone-c", "domain-9"),
}


def test_zones_and_bookies_in_yaml_and_json():
    assert parse_locations("zones.yaml", YAML) == parse_locations("zones.yml", YAML) == LOCATIONS
    document = {
        "zones": {"zone-a": ["bookie-0", "bookie-1"], "zone-b": {"domain-1": ["bookie-2"]}},
        "bookies": {"10.0.0.7:3181": "/zone-c/domain-9"},
    }
    assert parse_locations("zones.json", json.dumps(document)) == LOCATIONS
    assert parse_locations("empty.yaml", "") == {}


def test_the_rack_configuration_of_pulsar():
    document = {"default": {"bk-1:3181": {"rack": "/rack0", "hostname": "bk-1"}}, "other": {"bk-2:3181": {"rack": "r"}}}
    assert parse_locations("bookies.json", json.dumps(document)) == {"bk-1:3181": ("rack0",), "bk-2:3181": ("r",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "be read"),
        ("bookies: {b: 2001-99-99}", "month"),
        ("[" * 1_000, "be read"),
        ("- a\n- b", "list"),
        ("zones: [a]", "mapping"),
        ("zones: {a: bookie-0}", "'bookie-0'"),
        ("zones: {a: [1]}", "quotes"),
        ("zones: {a: [b], c: [b]}", "listed"),
        ("bookies: {b: 3}", "not 3"),
        ("group: {b: {}}", "of b"),
        ("group: {b: 1}", "group/b"),
    ],
)
def test_a_malformed_document_is_refused_in_one_line(text, message):
    with pytest.raises(BadRequest, match=message) as refused:
        parse_locations("t.yaml", text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "1" * 5000])
def test_json_that_nobody_can_read_is_refused(text):
    with pytest.raises(BadRequest, match=r"t\.json .*read"):
        parse_locations("t.json", text)


@given(name=st.sampled_from(["t", "t.json", "t.yaml"]), text=st.text())
def test_any_text_is_read_or_refused(name, text):
    with suppress(BadRequest):
        assert all(location is None or location for location in parse_locations(name, text).values())
