"""The configuration that production runs with, as far as a test says nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from bookie_pod.config.model import BookieConfig, sections


def production(**changes: Any) -> BookieConfig:
    """The defaults, with these fields of any section changed."""
    return changed(BookieConfig(), **changes)


def changed(config: BookieConfig, **changes: Any) -> BookieConfig:
    """The configuration, with these fields of any section changed."""
    for name, section in sections():
        own = {field.name: changes.pop(field.name) for field in fields(section) if field.name in changes}
        config = replace(config, **{name: replace(getattr(config, name), **own)})
    assert not changes, changes
    return config
