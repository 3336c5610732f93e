"""What a campaign did and found, as text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.campaign.history import History


def report(history: History, replay: str, memory: Mapping[str, int]) -> str:
    """`replay`: the command that runs it again; `memory`: the largest resident set of each bookie, in KB."""
    lines = ["", "faults"]
    lines += [f"  {count:6}  {kind}" for kind, count in sorted(history.faults.items())]
    lines += ["", "done and judged"]
    lines += [f"  {count:9}  {what}" for what, count in sorted(history.counts.items())]
    lines += ["", "largest resident sets"]
    lines += [f"  {kb // 1024:6} MB  {name}" for name, kb in memory.items()]
    lines += ["", f"breaches: {len(history.breaches)}"]
    lines += [f"  {count:6}  {rule}" for rule, count in sorted(history.rules.items())]
    lines += ["", *history.breaches[:40]]
    lines += [
        "",
        f"replay: {replay}",
        "(the seed draws the same faults at the same times; processes run as they will)",
        "",
    ]
    return "\n".join(lines)
