"""Group, labels, annotations and finalizer: every name that is in objects of a cluster. See `docs/operator.md`."""

from __future__ import annotations

from typing import Final

GROUP: Final = "podkeeper.dev"
VERSION: Final = "v1alpha1"
FINALIZER: Final = f"{GROUP}/operator"

NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

INSTANCE_ID: Final = f"{GROUP}/instance-id"
"""Label of claims: the metadata service's id of the cluster that their data belong to."""
ZONE: Final = f"{GROUP}/zone"
"""Label of StatefulSets, pods and claims: the zone, where there are several."""
VOLUME: Final = f"{GROUP}/volume"
"""Label of claims: `journal`, `ledger` or `index`; `metadata` of those of the metadata service."""
RETIRED: Final = f"{GROUP}/retired"
"""Label of claims whose bookie was taken out, after the proof; the annotation of the same name has the proof."""

JOB: Final = f"{GROUP}/job"
"""Label of what belongs to a BookieJob, pods of its drivers and executors too: its name."""

TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""Annotation of pods: which template they were made of."""
TEMPLATE_INPUTS: Final = f"{GROUP}/template-inputs"
"""Annotation of StatefulSets and of the Deployment: what people asked for when they got their template; see
`builders.inputs`."""
OBJECT_HASH: Final = f"{GROUP}/object-hash"
"""Annotation of every object that is applied: which content it was given."""

CERTIFICATE_FOR: Final = f"{GROUP}/certificate-for"
"""Annotation of the Secret with the certificate that the operator made: the names in it."""
RENEW_AT: Final = f"{GROUP}/renew-at"
"""Annotation of Secrets with certificates that the operator made: the time at which it makes new ones, in seconds since
1970."""

NETWORK_LOCATION: Final = f"{GROUP}/network-location"
"""Annotation of pods of bookies: `/ZONE`, from the label of their node; empty if the node has no such label."""

ETCD_START: Final = f"{GROUP}/etcd-start"
"""Annotation of pods of etcd whose volume is empty: `new`, they are the first members; `existing`, they are members
that were added for a lost one. Without it nothing starts on an empty volume."""

TAKEN_OVER: Final = f"{GROUP}/taken-over"
"""Annotation of pods that an earlier StatefulSet made, and that were taken over in place: nothing of ours runs in
them."""
KEPT_BY_HELM: Final = "helm.sh/resource-policy"
"""Annotation with which Helm leaves alone what a release does not name any more."""

PAUSED: Final = f"{GROUP}/paused"
ADOPT: Final = f"{GROUP}/adopt"
"""Annotation of a claim: name of the cluster that takes it over."""
CONFIRM_DELETE: Final = f"{GROUP}/confirm-delete"
ACCEPT_LEDGER_LOSS: Final = f"{GROUP}/accept-ledger-loss"
ACCEPT_METADATA: Final = f"{GROUP}/accept-metadata"
SKIP_REPLICATION_CHECK: Final = f"{GROUP}/skip-replication-check"
RESTART: Final = f"{GROUP}/restart"
