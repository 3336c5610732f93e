"""The desired objects: all that a cluster should consist of, to be applied.

Invariants
- Every object bears the cluster's labels and its own hash; all but claims and the identity Secret have the cluster as
  their owner.
- Names and hashes for the planner (`desired`) and objects for the executor come from the same build.

Threads: values without I/O, for any thread. A manifest is never changed after it was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bookie_operator.builders.common import Manifest, key_of, object_hash, stamped
from bookie_operator.crds import names
from bookie_operator.planner.desired import Desired, DesiredDeployment, DesiredMembers, DesiredStatefulSet, Evictions


@dataclass(frozen=True)
class BookieSet:
    """One StatefulSet of bookies."""

    manifest: Manifest
    """The StatefulSet, with the replicas of `spec`."""
    zone: str
    """Empty: the cluster has no zones."""
    replicas: int
    template_hash: str
    volume_sizes: Mapping[str, str]
    inputs_hash: str
    """Hash of what people asked for, as far as the template depends on it."""
    volume_attributes: Mapping[str, str] | None = None
    """See `DesiredStatefulSet`."""
    volume_classes: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True)
class DesiredObjects:
    """The objects that `build` makes of a cluster."""

    sets: tuple[BookieSet, ...]
    support: tuple[Manifest, ...]
    """Other objects, in the order in which they are applied."""
    metadata_job: Manifest
    """Job that makes the cluster in the metadata service, if it is not there."""
    check_job: Manifest | None
    """Job that looks for it where it is to be from now on; None: it stays where it is."""
    moves_to: str
    """URI of that place."""
    destroy_job: Manifest
    """Removes it from there."""
    own_image: str
    """Image of the operator; empty: not known."""
    release: str
    """Release of the operator."""
    budgets: Mapping[Evictions, Manifest]
    """The PodDisruptionBudget for everything that it may allow; empty: there is none."""
    autorecovery: Manifest | None
    gateway: Manifest | None
    monitoring: tuple[Manifest, ...]
    dynamic_config: Mapping[str, str]
    given_config: frozenset[str]
    """Keys of `dynamic_config` that `spec.config` names."""
    settings: str
    """`ConfigMap/name` of what bookies take at their next start; `support` has it."""
    config_hash: str
    bookie_ids: Mapping[str, str]
    bookie_id_suffix: str
    issued: tuple[str, ...] = ()
    """Names of Secrets that pods mount and cert-manager fills."""
    backup: Manifest | None = None
    """CronJob that backs the metadata up."""
    backup_claim: Manifest | None = None
    missing: tuple[str, ...] = ()
    """Kinds that `spec` asks for and this Kubernetes does not know, each with its remedy."""
    members: DesiredMembers | None = None

    @cached_property
    def objects(self) -> Mapping[str, Manifest]:
        """The objects by `Kind/name`: all but the Job that destroys metadata; the budget as it is while all is well."""
        found = [*self.support, self.metadata_job, *(each.manifest for each in self.sets)]
        if self.budgets:
            found.append(self.budgets[max(self.budgets)])
        others = (self.check_job, self.autorecovery, self.gateway, self.backup_claim, self.backup)
        found += [each for each in others if each is not None]
        return {key_of(manifest): manifest for manifest in (*found, *self.monitoring)}

    def as_applied(self, key: str, annotations: Mapping[str, str]) -> Manifest | None:
        """Return what the object of this name with these annotations was given; None: another content.

        One that lost the annotation may have been given what is desired.
        """
        bookies = next((each for each in self.sets if key_of(each.manifest) == key), None)
        if bookies is not None:
            return bookies.manifest if annotations.get(names.TEMPLATE_HASH) == bookies.template_hash else None
        digest = annotations.get(names.OBJECT_HASH)
        made = [each for each in (*self.budgets.values(), *self.objects.values()) if key_of(each) == key]
        return next((each for each in made if digest in (None, object_hash(each))), None)

    def stateful_set(self, name: str, replicas: int, live: Manifest | None = None) -> Manifest:
        """Return the StatefulSet with so many replicas; raises KeyError if none of that name is desired.

        `live`: what there is of it. Its claim templates are kept as they are, because no update may change them: their
        content changes with a new StatefulSet.
        """
        manifest = {each.name: each.manifest for each in self.sets}[name]
        spec = {**manifest["spec"], "replicas": replicas}
        if live is not None:
            spec["volumeClaimTemplates"] = live["spec"]["volumeClaimTemplates"]
        return stamped({**manifest, "spec": spec})

    def desired(self) -> Desired:
        """Names and hashes, for the planner."""
        budget = self.budgets[max(self.budgets)] if self.budgets else None
        return Desired(
            stateful_sets=tuple(
                DesiredStatefulSet(
                    each.name,
                    each.zone,
                    each.replicas,
                    each.template_hash,
                    each.volume_sizes,
                    self.config_hash,
                    each.inputs_hash,
                    each.volume_attributes,
                    each.volume_classes,
                )
                for each in self.sets
            ),
            support={key_of(manifest): object_hash(manifest) for manifest in self.support},
            metadata_job=key_of(self.metadata_job),
            metadata_job_hash=object_hash(self.metadata_job),
            check_job=key_of(self.check_job) if self.check_job is not None else "",
            check_job_hash=object_hash(self.check_job) if self.check_job is not None else "",
            moves_to=self.moves_to,
            budget=key_of(budget) if budget is not None else "",
            budget_hashes={allowed: object_hash(manifest) for allowed, manifest in self.budgets.items()},
            autorecovery=_beside(self.autorecovery),
            gateway=_beside(self.gateway),
            backup=key_of(self.backup) if self.backup is not None else "",
            backup_hash=object_hash(self.backup) if self.backup is not None else "",
            backup_claim=key_of(self.backup_claim) if self.backup_claim is not None else "",
            monitoring={key_of(manifest): object_hash(manifest) for manifest in self.monitoring},
            dynamic_config=self.dynamic_config,
            given_config=self.given_config,
            settings=self.settings,
            bookie_ids=self.bookie_ids,
            bookie_id_suffix=self.bookie_id_suffix,
            issued=self.issued,
            missing=self.missing,
            members=self.members,
        )


def _beside(made: Manifest | None) -> DesiredDeployment:
    if made is None:
        return DesiredDeployment()
    inputs = str(made["metadata"]["annotations"][names.TEMPLATE_INPUTS])
    return DesiredDeployment(key_of(made), object_hash(made), inputs)
