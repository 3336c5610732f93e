"""Whatever the operator's source advises is tried by some test.

A clause that begins with what somebody is to do, or that names a command, has a row in `advice_table`, or a
test elsewhere that does it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click

import bookie_operator
from bookie_pod.cli.main import cli
from tests.unit.bookie_operator.planner.flows.advice_table import TABLE

ROOT = Path(bookie_operator.__file__).parent
SOURCES = [
    *sorted((ROOT / "planner").rglob("*.py")),
    *(ROOT / "status" / name for name in ("conditions.py", "job_reporting.py")),
    *sorted((ROOT / "reconcile").rglob("*.py")),
    *sorted((ROOT / "plugin").rglob("*.py")),
    ROOT / "builders" / "build.py",
]
VERBS = (
    "add annotate apply bring change correct create delete disable enable exclude find free give grow install lower"
    " leave look make mend move name place put raise remove renew replace restart restore run see set taint take tell"
    " uncordon upgrade use wait"
)
_VERB = "|".join(f"[{verb[0].upper()}{verb[0]}]{verb[1:]}" for verb in VERBS.split())
_BEGINS = r"^(?:or |and |then |so |if [^,]*, |to [^,]*? (?=set|annotate)|[Ww]hile [^,]* )*"
ADVISES = re.compile(rf"{_BEGINS}(?:{_VERB})\b|`[^`]+`|\?$")
LOOKS = re.compile(
    rf"{_BEGINS}(?:[Ss]ee|[Ff]ind what|look at|[Ww]ait)\b|`kubectl (?:describe|logs|explain)|shows (?:which|how)|\?$"
)
"""What only tells where to look, or to wait."""
FLOWS = "tests.unit.bookie_operator.planner.flows"
ADMIN = "tests.unit.bookie_operator.reconcile.test_admin_certificate"
BUILD = "tests.unit.bookie_operator.builders.test_build"
PLUGIN = "tests.unit.bookie_operator.plugin"
IN_PLACE = f"{PLUGIN}.test_migrate_in_place"
ELSEWHERE = {
    "tell the right bootstrap.instanceId": f"{FLOWS}.test_create:test_what_is_advised_lets_an_adoption_go_on",
    "or delete the claims that do not belong to it": f"{FLOWS}.test_create:test_what_is_advised_lets_an_adoption_go_on",
    "restore the claims of": f"{FLOWS}.test_create:test_what_is_advised_lets_an_adoption_go_on",
    "apply the right one": f"{FLOWS}.test_create:test_what_is_advised_lets_an_adoption_go_on",
    "tell bootstrap.instanceId": f"{FLOWS}.test_create:test_what_is_advised_lets_an_adoption_go_on",
    "remove its annotation": (
        "tests.unit.bookie_operator.reconcile.test_claims_by_name"
        ":test_one_that_no_bookie_mounts_is_not_adopted_and_holds_up_nothing"
    ),
    "set spec.bootstrap.mode to Adopt": (
        "tests.unit.bookie_operator.reconcile.test_endings:test_volumes_of_a_deleted_cluster_are_not_taken_over_unasked"
    ),
    "or delete the claims if their data are not needed": f"{FLOWS}.test_create:test_claims_that_nobody_needs_make_way",
    "remove what is left of it with `bookie cluster nuke`": f"{FLOWS}.test_create:test_a_root_that_is_cleared_is_taken",
    "and delete Job": f"{FLOWS}.test_create:test_a_root_that_is_cleared_is_taken",
    "to add bookies to that cluster on purpose set spec.bootstrap.instanceId": (
        f"{FLOWS}.test_create:test_bookies_join_another_cluster_only_where_it_is_named"
    ),
    "Give this one a root of its own": f"{FLOWS}.test_create:test_another_root_is_looked_at_anew",
    "lower {} to {}": f"{FLOWS}.test_tasks:test_what_a_decommission_waits_for_helps",
    "give what is there another name": (
        f"{ADMIN}:test_a_secret_of_the_metadata_services_name_that_somebody_else_made_is_left_alone"
    ),
    "remove the annotation podkeeper.dev/paused": f"{FLOWS}.test_delete:test_a_paused_cluster_is_not_deleted",
    "set the annotation podkeeper.dev/confirm-delete": (
        f"{FLOWS}.test_delete:test_nothing_stops_before_the_loss_of_data_is_confirmed"
    ),
    "set spec.storage.retention.whenDeleted to Retain": (
        f"{FLOWS}.test_delete:test_nothing_goes_while_ledgers_of_others_may_have_copies_here"
    ),
    "take these bookies out first": f"{FLOWS}.test_delete:test_data_go_when_nobody_else_may_need_them",
    "run `kubectl bookie adopt": (
        "tests.unit.bookie_operator.reconcile.test_claims_by_name"
        ":test_one_that_a_bookie_uses_is_reported_and_left_alone_until_it_is_adopted"
    ),
    "bring the metadata service back, or": f"{FLOWS}.test_delete:test_data_go_when_nobody_else_may_need_them",
    "if its node is lost, taint it": f"{FLOWS}.test_delete:test_a_pod_that_does_not_stop_is_told_with_the_remedy",
    "`bookie cluster nuke` does it by hand": (
        f"{FLOWS}.test_delete:test_a_metadata_service_that_is_gone_holds_up_nothing_but_volumes"
    ),
    "Put spec.metadataService.uri back": (
        "tests.unit.bookie_operator.reconcile.test_metadata_jobs:"
        "test_another_cluster_elsewhere_is_told_and_nothing_else_waits"
    ),
    "or name servers of the same service": (
        "tests.unit.bookie_operator.reconcile.test_metadata_jobs:test_a_place_that_does_not_answer_may_be_corrected"
    ),
    "or delete the Node": f"{FLOWS}.test_repair_doubts:test_a_volume_may_be_on_a_node_that_only_is_silent",
    "or give it the taint": f"{FLOWS}.test_repair_doubts:test_a_volume_may_be_on_a_node_that_only_is_silent",
    "replace it with a BookieTask of type Replace that names {}": (
        f"{FLOWS}.test_repair_doubts:test_who_may_not_look_at_nodes_asks_for_a_task"
    ),
    "so lower spec.replicas to take it away": f"{FLOWS}.test_no_room:test_fewer_replicas_lead_out",
    "find the admission webhook or the controller": (
        "tests.unit.bookie_operator.reconcile.test_drift:test_a_webhook_that_strips_an_annotation_holds_nothing_up"
    ),
    "and exclude what has the label": (
        "tests.unit.bookie_operator.reconcile.test_drift:test_a_webhook_that_strips_an_annotation_holds_nothing_up"
    ),
    "Give these another name": (
        "tests.unit.bookie_operator.reconcile.test_strangers:test_a_new_cluster_waits_until_the_name_is_free"
    ),
    "or delete them if they are not needed": (
        "tests.unit.bookie_operator.reconcile.test_strangers:test_a_new_cluster_waits_until_the_name_is_free"
    ),
    "or change spec.tls": f"{FLOWS}.test_support:test_what_is_advised_about_certificates_and_hands_helps",
    "change it back": f"{FLOWS}.test_support:test_what_is_advised_about_certificates_and_hands_helps",
    "or restart all bookies by a BookieTask": (
        f"{FLOWS}.test_newer_release:test_whoever_asks_gets_the_newest_template_bookie_by_bookie"
    ),
    "create it again if this one is to do it": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "name pods as `kubectl get pods` shows them": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "tell the ids whose loss is accepted": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "tell their pods in spec.bookies": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "make several": f"{FLOWS}.test_tasks:test_what_a_task_that_failed_asks_for_helps",
    "delete these,": f"{FLOWS}.test_volume_attributes:test_claims_without_a_volume_are_told_once_their_pod_waits",
    "delete it, or give the BookieJob another name": (
        "tests.unit.bookie_operator.planner.test_jobs:test_an_object_of_somebody_else_is_left_alone"
    ),
    "put it back, or make another BookieJob": (
        "tests.unit.bookie_operator.reconcile.test_job_flows:test_a_change_that_one_run_does_not_follow_is_told"
    ),
    "give requests of memory where data count": (
        "tests.unit.bookie_operator.status.test_conditions:test_what_is_advised_about_memory_helps"
    ),
    "Raise the quota, or mend what refuses them": (
        "tests.unit.bookie_operator.observe.test_faults:test_a_quota_that_refuses_the_first_job_is_told"
    ),
    "use that version, or mend the field": (
        "tests.unit.bookie_operator.reconcile.test_not_understood:"
        "test_an_operation_of_a_newer_operator_is_waited_for_and_told"
    ),
    "apply crds/*.yaml of this release": (
        "tests.unit.bookie_operator.reconcile.test_not_understood:"
        "test_a_definition_of_an_earlier_release_holds_nothing_up_and_is_told"
    ),
    "grow spec.storage.ledger.size": (
        "tests.unit.bookie_operator.planner.test_gates:test_what_it_stores_fits_with_headroom"
    ),
    "Take that back with `bookie cluster rename-bookie": (
        f"{FLOWS}.test_repair_doubts:test_nothing_of_a_bookie_that_was_renamed_goes"
    ),
    "install it": f"{BUILD}:test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps",
    "or give spec.tls.secretName": f"{BUILD}:test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps",
    "or disable this": f"{BUILD}:test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps",
    "or leave this out": f"{BUILD}:test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps",
    "upgrade to 1.34": f"{BUILD}:test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps",
    "or remove this": f"{BUILD}:test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps",
    "make it, with": f"{ADMIN}:test_a_secret_of_the_user_is_judged",
    "add what is missing": f"{ADMIN}:test_a_secret_of_the_user_is_judged",
    "make one that does": f"{ADMIN}:test_a_secret_of_the_user_is_judged",
    "correct it": f"{ADMIN}:test_a_secret_of_the_user_is_judged",
    "correct them": f"{ADMIN}:test_a_secret_of_the_user_is_judged",
    "renew it": f"{ADMIN}:test_one_that_is_over_or_not_valid_yet",
    "name an issuer that tells its authority": f"{ADMIN}:test_one_of_cert_manager_is_judged_once_it_is_there",
    "or give secretName, or set enabled to false": (
        f"{ADMIN}:test_an_authority_that_cannot_be_used_is_told_with_a_remedy_and_certificates_stay"
    ),
    "give secretName, or set enabled to false": (
        f"{ADMIN}:test_an_authority_that_cannot_be_used_is_told_with_a_remedy_and_certificates_stay"
    ),
    "give it another name": (
        "tests.unit.bookie_operator.reconcile.test_strangers:test_a_new_cluster_waits_until_the_name_is_free"
    ),
    "install the chart podkeeper-operator, or apply crds/*.yaml": f"{PLUGIN}.test_faults:test_no_definitions",
    "give another with -n": f"{PLUGIN}.test_faults:test_no_such_namespace",
    "set KUBECONFIG or give --kubeconfig": f"{PLUGIN}.test_faults:test_no_kubeconfig",
    "Give it again for another": f"{PLUGIN}.test_logs:test_one_pod_so_many_lines_and_the_container_before",
    "nothing is changed until `kubectl bookie resume": f"{PLUGIN}.test_tasks:test_pause_and_resume",
    "add --yes": f"{PLUGIN}.test_tasks:test_loss_is_not_accepted_by_accident",
    "remove its pod for good, then run it again": (
        f"{PLUGIN}.test_migrate:test_one_that_comes_back_is_not_drained_for_ever"
    ),
    "`kubectl bookie migrate run {}` goes on": f"{PLUGIN}.test_migrate:test_a_run_goes_on_with_what_nobody_works_on",
    "`kubectl bookie migrate undo {}` takes it back": (
        f"{PLUGIN}.test_migrate:test_undo_takes_back_what_is_not_taken_out_and_ends_a_run"
    ),
    "lower the spec.replicas of that one instead": (
        f"{PLUGIN}.test_migrate:test_bookies_of_another_resource_are_left_to_it"
    ),
    "is {}: raise it,": f"{PLUGIN}.test_migrate:test_what_is_advised_makes_it_possible",
    "set spec.config.{} to": f"{PLUGIN}.test_migrate:test_what_is_advised_makes_it_possible",
    "set spec.tls, with an authority": f"{PLUGIN}.test_migrate:test_what_is_advised_makes_it_possible",
    "to join that of other bookies set spec.metadataService.rootPath to it": (
        f"{FLOWS}.test_create:test_bookies_join_another_cluster_only_where_it_is_named"
    ),
    "`{}`, and the same number in the chart's values": (
        f"{PLUGIN}.test_migrate:test_one_after_the_other_is_drained_and_removed_by_its_owner"
    ),
    "then delete the claims of {}": (
        f"{PLUGIN}.test_migrate:test_one_after_the_other_is_drained_and_removed_by_its_owner"
    ),
    "move these bookies beside": (
        f"{PLUGIN}.test_migrate:test_one_after_the_other_is_drained_and_removed_by_its_owner"
    ),
    "move it beside": f"{PLUGIN}.test_migrate:test_one_after_the_other_is_drained_and_removed_by_its_owner",
    "leave --bookie and --at-once out": f"{IN_PLACE}:test_it_has_to_be_asked_for_in_the_right_words",
    "leave --bookie out": f"{IN_PLACE}:test_it_has_to_be_asked_for_in_the_right_words",
    "`kubectl bookie migrate run {} --in-place` takes them over once more": (
        f"{IN_PLACE}:test_undo_gives_all_back_and_it_goes_forward_again"
    ),
    "or delete the BookieCluster after `kubectl bookie resume {}`": (
        f"{IN_PLACE}:test_undo_gives_all_back_and_it_goes_forward_again"
    ),
    "`bookie cluster lost-delay set {}` puts it back": (
        f"{IN_PLACE}:test_undo_gives_all_back_and_it_goes_forward_again"
    ),
    "`kubectl bookie migrate {} {} --in-place`": (
        f"{IN_PLACE}:test_whoever_dies_at_whatever_request_is_followed_by_anybody"
    ),
    "set spec.storage.{}.size to {}": f"{IN_PLACE}:test_pods_and_claims_have_to_be_sound",
    "which would make it again: stop that operator first": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "set spec.replicas to {}": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "set spec.bootstrap.inPlace.{}.claim": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "set spec.bootstrap.inPlace.{}.mountPath": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "set spec.bootstrap.inPlace.{}.directories to it": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "set spec.config.ledgerStorageClass to it": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "give it that one first with `bookie cluster rename-bookie`": (
        f"{IN_PLACE}:test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible"
    ),
    "stop that one first": f"{IN_PLACE}:test_pods_and_claims_have_to_be_sound",
    "bring it up first": f"{IN_PLACE}:test_pods_and_claims_have_to_be_sound",
    "remove its ownerReferences first": f"{IN_PLACE}:test_pods_and_claims_have_to_be_sound",
    "and grow it afterwards": f"{IN_PLACE}:test_pods_and_claims_have_to_be_sound",
    "copy its bookie's data to another one first": f"{IN_PLACE}:test_pods_and_claims_have_to_be_sound",
    "Run `kubectl bookie migrate run": f"{IN_PLACE}:test_the_operator_waits_until_it_is_told",
    "`kubectl bookie migrate undo {} --in-place` ends that": f"{IN_PLACE}:test_a_run_ends_when_somebody_gives_back",
    "delete the claim if its data are not needed, or {}": (
        f"{IN_PLACE}:test_claims_that_were_given_back_keep_their_metadata_also_without_set_and_pods"
    ),
    "end it, or wait, at most": f"{IN_PLACE}:test_two_commands_at_once_are_refused",
    "stop {} for good, and remove its volumes": f"{PLUGIN}.test_migrate:test_bookies_without_a_statefulset_leave_too",
    "delete pod {} in namespace {} for good": f"{PLUGIN}.test_migrate:test_bookies_without_a_statefulset_leave_too",
    "delete the pods one at a time": (
        f"{FLOWS}.test_rollout:test_by_hand_the_template_is_staged_and_people_delete_the_pods"
    ),
}
"""What is advised where no simulation goes, and the test that does it."""


@functools.cache
def _texts(path: Path) -> tuple[str, ...]:
    return tuple(_strings(ast.parse(path.read_text())))


def _strings(tree: ast.Module) -> Iterator[str]:
    """Of a module, but its docstrings; `{}` where something is filled in."""
    nodes = list(ast.walk(tree))
    passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    passed |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) in passed:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\{\d?\}", "{}", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def advised() -> dict[str, str]:
    """Clause to the module that says it."""
    return {
        clause.strip(): path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for text in _texts(path)
        if " " in text.strip()
        for clause in re.split(r"(?<=[;:.?,])\s+|\) ", text)
        if ADVISES.search(clause.strip()) and not LOOKS.search(clause.strip())
    }


def _plain(words: str) -> str:
    """Without what is filled in, and without joints."""
    words = re.sub(
        r"c-bookie-\d+(?:\.[a-z-]+)*(?::\d+)?|podkeeper\.dev/[a-z-]+|spec\.storage\.\w+\.\w+|\b\d+\b", "{}", words
    )
    return re.sub(r"^(?:or |and |then |to |so |if [^,]*, )+|[,;.:]$", "", words.strip()).strip().lower()


@functools.cache
def _source(module: str) -> str:
    return (Path(__file__).parents[5] / f"{module.replace('.', '/')}.py").read_text()


@functools.cache
def tried() -> list[str]:
    words = (*(one.words for one in TABLE), *ELSEWHERE)
    return [_plain(part) for each in words for part in (each, *each.split(", "))]


def test_whatever_is_advised_is_tried() -> None:
    untried = [
        f"{path} advises, and no test does: {clause}"
        for clause, path in advised().items()
        if not any(each in _plain(clause) or _plain(clause) in each for each in tried())
    ]
    assert untried == []


def test_what_is_tried_elsewhere_is_there_and_is_advised() -> None:
    texts = [_plain(text) for path in SOURCES for text in _texts(path) if " " in text]
    for words, test in ELSEWHERE.items():
        module, _, name = test.partition(":")
        assert f"def {name}(" in _source(module), test
        plain = _plain(words)
        assert any(plain in text for text in texts), f"nobody advises any more: {words}"


_COMMAND = re.compile(r"`bookie ([^`]+)`")


def test_commands_that_are_advised_are_there() -> None:
    for command in {found for path in SOURCES for text in _texts(path) for found in _COMMAND.findall(text)}:
        known: click.Command = cli
        words = command.replace("{}", "name").split()
        while isinstance(known, click.Group):
            _, found, words = known.resolve_command(click.Context(known), words)
            assert found is not None, command
            known = found
        options = {option for each in known.params for option in each.opts}
        assert all(word in options for word in words if word.startswith("--")), command
