"""Rules by their text. What they refuse, and with which words, is tested against an API server: `tests/e2e`."""

from __future__ import annotations

import re

import pytest

from bookie_operator.crds.config_keys import RESERVED
from bookie_operator.crds.definitions import KINDS, resource_schema
from bookie_operator.crds.rules import CLUSTER_RULES, TASK_RULES, Rule, node_at, with_rules
from tests.support.structural_schemas import nodes

_ALL = [(kind, rule) for kind in KINDS for rule in kind.rules]
_IDS = [f"{kind.kind}:{rule.path}:{number}" for number, (kind, rule) in enumerate(_ALL)]
_SCHEMAS = {kind.kind: resource_schema(kind) for kind in KINDS}
_WORDS = re.compile(r"\b(?:self|oldSelf)((?:\.[a-zA-Z]+)+)(\()?")


@pytest.mark.parametrize(("kind", "rule"), _ALL, ids=_IDS)
def test_what_a_rule_names_is_there(kind, rule: Rule) -> None:
    node = node_at(_SCHEMAS[kind.kind], rule.path)
    known = {path for path, _ in nodes(node)}
    for words, call in _WORDS.findall(rule.rule + " " + rule.expression):
        parts = words[1:].split(".")
        path = ".".join(parts[:-1] if call else parts)
        assert not path or path in known, f"{path} of {rule.path}"
    if rule.field:
        assert rule.field in known


@pytest.mark.parametrize(("kind", "rule"), _ALL, ids=_IDS)
def test_it_is_in_the_schema_and_its_message_says_what_is_wrong_in_one_line(kind, rule: Rule) -> None:
    assert 20 < len(rule.message) < 300
    assert "\n" not in rule.message
    assert "\n" not in rule.rule, "the API server refuses rules of several lines without message, and people read one"
    for text in (rule.rule, rule.expression):
        assert text.count("(") == text.count(")")
        assert text.count("'") % 2 == 0
    assert rule.rendered() in node_at(_SCHEMAS[kind.kind], rule.path)["x-kubernetes-validations"]


def test_optional_fields_are_asked_for_before_they_are_read() -> None:
    """A missing one would make the rule itself fail, with words that help nobody."""
    for kind, rule in _ALL:
        schema = node_at(_SCHEMAS[kind.kind], rule.path)
        for words, _ in re.findall(r"\bself((?:\.[a-zA-Z]+)+)(\()?", rule.rule):
            parts, node, path = words[1:].split("."), schema, "self"
            for part in parts:
                if part not in node.get("properties", {}):
                    break
                child = node["properties"][part]
                path += f".{part}"
                there = "default" in child or part in node.get("required", ()) or path == "self.metadata.name"
                there = there or part in ("metadata", "name")
                assert there or f"has({path})" in rule.rule, f"{path} in {rule.rule}"
                node = child


def test_a_rule_on_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError):
        with_rules({"type": "object", "properties": {}}, (Rule("spec.nowhere", "true", "never seen"),))


def test_the_rules_know_every_key_that_the_operator_sets() -> None:
    (rule,) = [rule for rule in CLUSTER_RULES if rule.path == "spec.config"]
    for key in RESERVED:
        assert f"'{key}'" in rule.rule
        assert f"'{key}'" in rule.expression


def test_no_rule_is_there_twice() -> None:
    for rules in (CLUSTER_RULES, TASK_RULES):
        assert len({(rule.path, rule.rule) for rule in rules}) == len(rules)
