"""docs/configuration.md follows the code."""

from __future__ import annotations

import json
from pathlib import Path

from bookie_pod.config.document import DIFFERENT, configuration_page, field_texts
from bookie_pod.config.keys import MIB, keys_of, render
from bookie_pod.config.model import all_keys, sections

PAGE = Path(__file__).parents[4] / "docs" / "configuration.md"
APACHE = Path(__file__).parents[3] / "golden" / "apache-defaults.json"


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), (
        "run: bookie config docs --write docs/configuration.md"
    )


def test_every_key_is_documented() -> None:
    page = configuration_page()
    assert [name for name in all_keys() if f"`{name}`" not in page] == []


def test_every_field_has_a_docstring_and_numbers_name_their_unit() -> None:
    units = {"_ms": " ms", "_seconds": "second", "_s": "second", "_mb": "MiB", "_kb": "KiB", "_bytes": "byte"}
    for _, section in sections():
        texts = field_texts(section)
        for field, declared in keys_of(section):
            text = texts[field.name]
            for suffix, unit in units.items():
                if field.name.endswith(suffix) and str(field.type) == "int":
                    unit = "MiB" if declared.unit == MIB else unit
                    assert unit in text.lower() or unit in text, f"{section.__name__}.{field.name}: {text}"
                    break


def test_keys_whose_defaults_differ_from_apaches_are_listed_all_of_them() -> None:
    """`tests/golden/apache-defaults.json`: what Apache BookKeeper takes for each of its keys that is not set."""
    theirs: dict[str, str] = json.loads(APACHE.read_text(encoding="utf-8"))
    keys = [declared for _, section in sections() for _, declared in keys_of(section) if not declared.own]
    ours = {
        each.name: (each.derived or render(each.default)).replace("`memoryBudgetMb`", "direct memory") for each in keys
    }
    assert sorted(theirs) == sorted(ours)
    differing = {name: default for name, default in theirs.items() if default != ours[name]}
    assert differing == {name: default for name, (default, _) in DIFFERENT.items()}
