"""Frames of tests/golden/wire-*.json, as one flat list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenFrame:
    """One frame as it crossed the wire; `decoded` is the aid that stands beside it (or empty)."""

    source: str
    frame: bytes
    decoded: dict[str, Any]

    @property
    def body(self) -> bytes:
        return self.frame[4:]

    @property
    def is_v3(self) -> bool:
        return self.decoded.get("protocol") == "v3"

    def __repr__(self) -> str:
        return f"{self.source} {self.frame[:40].hex()}"


def load(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def exchanged(direction: str) -> list[GoldenFrame]:
    """What a client and a bookie, both Java, said to each other; TLS records are left out."""
    frames = []
    for path in sorted(GOLDEN.glob("wire-v*.json")):
        for step in load(path.name)["steps"]:
            frames += [
                GoldenFrame(f"{path.stem} {step['step']}", bytes.fromhex(item["frame"]), item["decoded"])
                for item in step["frames"]
                if item["direction"] == direction and "frame" in item
            ]
    return frames


def edge_cases(name: str = "wire-edge-cases.json") -> list[dict[str, Any]]:
    """Cases of hand-made frames, hex turned into bytes."""
    return [
        case
        | {
            "sent": [bytes.fromhex(frame) for frame in case["sent"]],
            "answers": [bytes.fromhex(frame) for frame in case["answers"]],
        }
        for case in load(name)["cases"]
    ]


def edge_case_answers() -> list[GoldenFrame]:
    """The bookie's answers to hand-made frames."""
    return [
        GoldenFrame(f"{name} {case['case']}", frame, decoded)
        for name in ("wire-edge-cases.json", "wire-edge-cases-unauthenticated.json")
        for case in edge_cases(name)
        for frame, decoded in zip(case["answers"], case["answersDecoded"], strict=True)
    ]
