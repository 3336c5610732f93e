"""The basis of the typed sources of all custom resources: the base model, and bounded types.

Invariant: nothing here is without a bound.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MESSAGE_LENGTH: Final = 4096
"""Characters of a message in `status`; longer ones end in an ellipsis."""
WHOLE: Final[dict[str, Any]] = {"x-kubernetes-map-type": "atomic"}
"""A map that is applied as one value. The API server leaves null, which no schema takes, where an apply takes the last
key of any other map away."""
Quantity = Annotated[str, Field(max_length=32)]
"""Bytes as Kubernetes writes them, such as `100Gi`; always a string."""
Name = Annotated[str, Field(max_length=63)]
Words = Annotated[str, Field(max_length=253)]
Text = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=40)]
"""RFC 3339, UTC."""
ConfigValue = Annotated[str, Field(max_length=4096)]
Labels = Annotated[dict[str, Words], Field(max_length=64)]
Annotations = Annotated[dict[str, ConfigValue], Field(max_length=64)]
Freeform = Annotated[
    dict[str, Any], Field(max_length=64, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A part of Kubernetes' own API that is handed through as it is."""


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def shortened(text: str, length: int) -> str:
    return text[: length - 1] + "…" if len(text) > length else text


def _shortened(text: Any) -> Any:
    return shortened(text, MESSAGE_LENGTH) if isinstance(text, str) else text


class Model(BaseModel):
    """Names in the resource are in camel case; unknown ones are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        alias_generator=_camel_case,
        use_attribute_docstrings=True,
    )


class StatusModel(Model):
    """Unknown fields are left out, not refused: an older operator may read what a newer one wrote."""

    model_config = ConfigDict(extra="ignore")


def by_name(key: str) -> dict[str, Any]:
    """A list whose items are known by one of their fields, so that several owners may apply items of their own."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


Message = Annotated[str, BeforeValidator(_shortened), Field(max_length=MESSAGE_LENGTH)]
