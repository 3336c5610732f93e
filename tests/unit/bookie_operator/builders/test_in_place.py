"""Bookies that were taken over in place keep their ids, claims and directories."""

from __future__ import annotations

import json
from typing import Any

from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.identity import identity
from bookie_operator.crds import names
from bookie_operator.observe.volumes import claim_view
from bookie_operator.observe.workloads import stateful_set_view
from tests.support.admission_cases import IN_PLACE
from tests.support.operator_clusters import MINIMAL, Spec, cluster

TAKEN: Spec = {**MINIMAL, "bootstrap": {"mode": "Adopt", "instanceId": "i", "inPlace": IN_PLACE}}


def test_what_cookies_and_kubernetes_know_them_by_stays() -> None:
    view = cluster(TAKEN)
    made = build(view, BuildContext())
    name, owner = f"{view.name}-bookie", made.sets[0].manifest
    suffix = f".{name}.{view.namespace}.svc.cluster.local"
    assert made.desired().bookie_id(f"{name}-7") == f"{name}-7{suffix}:3181"
    pod = owner["spec"]["template"]["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in pod["env"]}
    assert env["BK_advertisedAddress"] == f"$(POD_NAME){suffix}"
    mounts = {each["name"]: each["mountPath"] for each in pod["volumeMounts"]}
    assert mounts["pulsar-bookie-journal"] == "/pulsar/data/bookkeeper/journal"
    assert mounts["pulsar-bookie-ledgers"] == "/pulsar/data/bookkeeper"
    file = next(each for each in made.support if each["kind"] == "ConfigMap" and "bookie.conf" in each["data"])
    lines = file["data"]["bookie.conf"].splitlines()
    assert "journalDirectories=/pulsar/data/bookkeeper/journal" in lines
    both = "/pulsar/data/bookkeeper/ledgers-0,/pulsar/data/bookkeeper/ledgers-1"
    assert f"ledgerDirectories={both}" in lines
    claims = json.loads(identity(view, made.sets)["bookies"])[f"{name}-0"]["claims"]
    assert claims == [f"pulsar-bookie-{kind}-{name}-0" for kind in ("journal", "ledgers")]
    assert owner["metadata"]["annotations"][names.KEPT_BY_HELM] == "keep"


def test_its_claims_are_known_again_by_their_labels() -> None:
    view = cluster(TAKEN)
    owner: dict[str, Any] = build(view, BuildContext()).sets[0].manifest
    live = {**owner, "metadata": {**owner["metadata"], "uid": "u", "resourceVersion": "1"}}
    assert stateful_set_view(live).volume_sizes == {
        kind: view.spec.storage.model_dump()[kind]["size"] for kind in ("journal", "ledger")
    }
    pod = f"{view.name}-bookie-12"
    templates = owner["spec"]["volumeClaimTemplates"]
    for kind, template in zip(("journal", "ledger"), templates, strict=True):
        metadata = {**template["metadata"], "name": f"{template['metadata']['name']}-{pod}", "uid": "u"}
        found = claim_view({"metadata": metadata, "spec": template["spec"], "status": {"phase": "Bound"}}, view)
        assert found is not None
        assert not found.foreign
        assert (found.bookie, found.ordinal, found.volume) == (pod, 12, kind)
        for name in (f"{template['metadata']['name']}-other-bookie-12", f"restored-{metadata['name']}"):
            assert claim_view({"metadata": {**metadata, "name": name}, "spec": template["spec"]}, view) is None
