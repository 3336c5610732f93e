"""The build of a cluster: all objects that its `spec` asks for.

Pure: the same cluster and context make the same objects. What the metadata service must have given first (the instance
id) is taken from `status`: until it is there, claims are not labelled with it and the identity Secret is left out.

Threads: any thread; `Builds` on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bookie_operator.builders import in_place, naming
from bookie_operator.builders.backup import backup_claim, cron_job
from bookie_operator.builders.beside import autorecovery, disruption_budgets, gateway
from bookie_operator.builders.claims import volume_kinds
from bookie_operator.builders.common import Manifest, key_of, service_account
from bookie_operator.builders.config import config_map
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.desired_objects import BookieSet, DesiredObjects
from bookie_operator.builders.etcd import etcd, members
from bookie_operator.builders.identity import identity_secret
from bookie_operator.builders.metadata import check_job, destruction_job, embedded_service, initialisation_job
from bookie_operator.builders.metadata_uri import moves_to
from bookie_operator.builders.monitoring import pod_monitor, prometheus_rule, unknown_alerts
from bookie_operator.builders.network import (
    certificates,
    client_service,
    gateway_service,
    headless_service,
    issued_secrets,
    network_policies,
)
from bookie_operator.builders.settings import dynamic_config, given_config, settings_map
from bookie_operator.builders.statefulset import bookie_sets, budgets
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.world.model import ClusterView


def build(cluster: ClusterView, context: BuildContext) -> DesiredObjects:
    """Build all objects of a valid `spec`."""
    file, settings = config_map(cluster), settings_map(cluster)
    config_name = str(file["metadata"]["name"])
    sets = bookie_sets(cluster, context, config_name)
    support = (
        service_account(cluster),
        identity_secret(cluster, sets),
        file,
        settings,
        headless_service(cluster),
        client_service(cluster),
        gateway_service(cluster),
        *disruption_budgets(cluster),
        *network_policies(cluster, context),
        *certificates(cluster, context),
        *embedded_service(cluster, context),
        *etcd(cluster, context),
    )
    suffix = in_place.id_suffix(cluster)
    return DesiredObjects(
        sets=sets,
        support=_present(*support),
        metadata_job=initialisation_job(cluster, context, config_name),
        check_job=check_job(cluster, context, config_name),
        moves_to=moves_to(cluster),
        destroy_job=destruction_job(cluster, context, config_name),
        own_image=context.own_image,
        release=context.release,
        budgets=budgets(cluster),
        autorecovery=autorecovery(cluster, context, config_name),
        gateway=gateway(cluster, context, config_name),
        backup=cron_job(cluster, context, config_name),
        backup_claim=backup_claim(cluster),
        monitoring=_present(pod_monitor(cluster, context), prometheus_rule(cluster, context)),
        dynamic_config=dynamic_config(cluster),
        given_config=frozenset(given_config(cluster)),
        settings=key_of(settings),
        config_hash=config_name.rpartition("-")[2],
        bookie_ids={pod: f"{pod}{suffix}" for pod in _pods(cluster, sets)},
        bookie_id_suffix=suffix,
        issued=issued_secrets(cluster),
        missing=tuple(_missing(cluster, context)),
        members=members(cluster, context),
    )


class Builds:
    """The last objects of each cluster.

    Most passes find the same cluster once more, and ask for the same objects.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[ClusterView, BuildContext, DesiredObjects]] = {}
        """Last build by UID of the cluster."""

    def of(self, cluster: ClusterView, context: BuildContext) -> DesiredObjects:
        """Return what `build` returns; raises what that raises."""
        seen, last = _seen(cluster), self._last.get(cluster.uid)
        if last is None or last[:2] != (seen, context):
            last = self._last[cluster.uid] = seen, context, build(seen, context)
        return last[2]

    def forget(self, namespace: str, name: str) -> None:
        """Forget the cluster of this name: there is none any more."""
        kept = {uid: each for uid, each in self._last.items() if (each[0].namespace, each[0].name) != (namespace, name)}
        self._last = kept


def _seen(cluster: ClusterView) -> ClusterView:
    """The cluster without what changes with every pass and makes no objects."""
    status = cluster.status
    known = BookieClusterStatus(
        instance_id=status.instance_id,
        recorded_replicas=status.recorded_replicas,
        metadata_service_uri=status.metadata_service_uri,
        metadata_protected=status.metadata_protected,
    )
    return replace(cluster, status=known, generation=0, deleting=False, has_finalizer=True, created_at=0.0)


def _missing(cluster: ClusterView, context: BuildContext) -> Iterator[str]:
    spec = cluster.spec
    if spec.tls.enabled and spec.tls.issuer_ref is not None and not context.has_cert_manager:
        yield "spec.tls.issuerRef: there is no cert-manager here; install it, or give spec.tls.secretName"
    if spec.tls.admin_api.enabled and spec.tls.admin_api.issuer_ref is not None and not context.has_cert_manager:
        yield "spec.tls.adminApi.issuerRef: there is no cert-manager here; install it, or leave this out"
    if spec.monitoring.pod_monitor.enabled and not context.has_pod_monitors:
        yield "spec.monitoring.podMonitor: there is no Prometheus operator here; install it, or disable this"
    if spec.monitoring.prometheus_rule.enabled and not context.has_prometheus_rules:
        yield "spec.monitoring.prometheusRule: there is no such definition here; install it, or disable this"
    if not context.has_volume_attributes:
        for kind, volume in volume_kinds(spec.storage).items():
            if volume.volume_attributes_class_name is not None:
                yield (
                    f"spec.storage.{kind}.volumeAttributesClassName: this Kubernetes has no VolumeAttributesClass;"
                    " upgrade to 1.34, or remove this"
                )
    for name in unknown_alerts(cluster):
        yield f"spec.monitoring.prometheusRule.disabled: there is no alert {name}; docs/runbooks lists them"


def _present(*manifests: Manifest | None) -> tuple[Manifest, ...]:
    return tuple(manifest for manifest in manifests if manifest is not None)


def _pods(cluster: ClusterView, sets: tuple[BookieSet, ...]) -> list[str]:
    """Return the pods that should be, and those that the operator has made."""
    counts = {each.name: each.replicas for each in sets}
    for name, replicas in cluster.status.recorded_replicas.items():
        counts[name] = max(replicas, counts.get(name, 0))
    return [naming.pod(name, ordinal) for name, replicas in counts.items() for ordinal in range(replicas)]
