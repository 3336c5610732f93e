"""What the pod of a member of etcd tells of its volume."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.builders import etcd
from bookie_operator.crds import names
from bookie_operator.observe.members import member_view

ENDED = {"terminated": {"exitCode": etcd.EMPTY}}
RUNS: dict[str, Any] = {"running": {}}
WAITS: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}


def pod(look: dict[str, Any], member: dict[str, Any], **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "demo-metadata-1", "uid": "u", "annotations": annotations},
        "status": {
            "phase": "Pending",
            "initContainerStatuses": [{"name": etcd.LOOK, **look}],
            "containerStatuses": [{"name": etcd.NAME, **member}],
        },
    }


@pytest.mark.parametrize(
    ("look", "member", "waits"),
    [
        ({"state": ENDED}, {"state": WAITS}, True),
        ({"state": RUNS, "lastState": ENDED}, {"state": WAITS, "started": False}, True),
        # It runs for a moment with every volume, and another end is no answer.
        ({"state": RUNS}, {"state": WAITS}, False),
        ({"state": {"terminated": {"exitCode": 1}}}, {"state": WAITS}, False),
        ({"state": {"terminated": {"exitCode": 0}}}, {"state": WAITS}, False),
        # Of a pod whose sandbox was made again: its member has data since it found none.
        ({"state": RUNS, "lastState": ENDED}, {"state": WAITS, "lastState": {"terminated": {"exitCode": 137}}}, False),
        ({"state": {"terminated": {"exitCode": 0}}, "lastState": ENDED}, {"state": RUNS, "started": True}, False),
    ],
)
def test_a_volume_is_empty_only_if_the_pod_has_said_so_and_its_member_never_ran(
    look: dict[str, Any], member: dict[str, Any], waits: bool
) -> None:
    view = member_view(pod(look, member))
    assert view is not None
    assert (view.awaits_start, view.told_start) == (waits, False)


def test_a_pod_that_was_given_the_word_does_not_wait_for_it() -> None:
    view = member_view(pod({"state": ENDED}, {"state": WAITS}, **{names.ETCD_START: "existing"}))
    assert view is not None
    assert (view.awaits_start, view.told_start) == (False, True)
