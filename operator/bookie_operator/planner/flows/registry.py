"""Which flow an operation belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner.flows import Flow, decommission, delete, expand, repair, rollout, scale_up, tasks

FLOWS: Final[Mapping[OperationType, Flow]] = {
    OperationType.SCALE_UP: scale_up,
    OperationType.DECOMMISSION: decommission,
    OperationType.ROLLOUT: rollout,
    OperationType.EXPAND: expand,
    OperationType.REPLACE: repair,
    OperationType.AUDIT: tasks,
    OperationType.DELETE: delete,
}
