"""The defaults of a stream's settings are those that the documentation tells."""

import re
from dataclasses import asdict
from pathlib import Path

from bookie_client.streams import StreamSettings
from bookie_protocol.digest import DigestType

PAGE = Path(__file__).parents[4] / "docs" / "streams.md"
UNITS = {"": 1, "GiB": 1024**3, "h": 3600, "min": 60}


def value(text):
    """As the page writes it: "50 000", "2 GiB", "4 h", "CRC32C", "none"."""
    if text == "none":
        return None
    number = re.fullmatch(r"(\d[\d ]*?) ?([A-Za-z]*)", text)
    return DigestType[text] if number is None else int(number[1].replace(" ", "")) * UNITS[number[2]]


def documented():
    """By setting, from the table of "Settings"; one default in a row of several settings is that of each."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Settings\n")
    found = {}
    for names, defaults in re.findall(r"^\| (`.*?`) \| (.*?) \|", section.partition("\n## ")[0], re.MULTILINE):
        settings, values = re.findall(r"`(\w+)`", names), [value(text) for text in defaults.split(", ")]
        found |= dict(zip(settings, values * len(settings) if len(values) == 1 else values, strict=True))
    return found


def test_every_default_is_documented_as_it_is():
    assert documented() == asdict(StreamSettings())


def test_ledgers_roll_where_those_of_a_pulsar_broker_do():
    """Of the reference: 50 000 entries, 2048 MB or 4 hours, but never within the first 10 minutes."""
    made = StreamSettings()
    assert (made.max_ledger_entries, made.max_ledger_bytes) == (50_000, 2048 * 1024 * 1024)
    assert (made.max_ledger_seconds, made.min_ledger_seconds) == (4 * 60 * 60, 10 * 60)
