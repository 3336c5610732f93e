"""Makes the parts of the charts that follow from others: copies of `crds/`, the schemas of `spec` and `jobs`, tables of
values; and of the charts the alerts that the operator makes rules of.

    python charts/generate.py            write them
    python charts/generate.py --check    exit code 1 if a file is not as it would be written

To be run in a work tree, after the definitions themselves were generated.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bookie_operator.crds.generate import keep

ROOT: Final = Path(__file__).resolve().parents[1]
DEFINITIONS: Final = "crds"
COPIES: Final = "charts/podkeeper-operator/files/crds"
VALUES_SCHEMA: Final = "charts/podkeeper-cluster/values.schema.json"
ALERTS: Final = "operator/bookie_operator/crds/alerts.json"
_ALERT_FILES: Final = "charts/podkeeper-cluster/alerts"
_CLUSTER: Final = "bookieclusters.podkeeper.dev.yaml"
_JOB: Final = "bookiejobs.podkeeper.dev.yaml"
_JOB_NAME: Final = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 40}
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_VALUES: Final = "## Values\n\n"
_KEY: Final = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z]\w*):(?P<value>.*)")


def generated() -> dict[str, str]:
    """Content by path below the root of the work tree."""
    files = {f"{COPIES}/{path.name}": path.read_text(encoding="utf-8") for path in definitions()}
    schema = json.loads((ROOT / VALUES_SCHEMA).read_text(encoding="utf-8"))
    schema["properties"]["spec"] = spec_schema()
    schema["properties"]["jobs"] = {"type": "array", "items": job_schema()}
    files[ALERTS] = json.dumps(cluster_alerts(), indent=2, ensure_ascii=False) + "\n"
    files[VALUES_SCHEMA] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    for readme in sorted((ROOT / "charts").glob("*/README.md")):
        prose, heading, _ = readme.read_text(encoding="utf-8").partition(_VALUES)
        table = values_table((readme.parent / "values.yaml").read_text(encoding="utf-8"))
        files[str(readme.relative_to(ROOT))] = prose + heading + table
    return files


def cluster_alerts() -> list[dict[str, Any]]:
    """For the operator, whose package has no files of a chart."""
    files = sorted((ROOT / _ALERT_FILES).glob("*.yaml"))
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]


def definitions() -> list[Path]:
    return sorted((ROOT / DEFINITIONS).glob("*.yaml"))


def spec_schema() -> dict[str, Any]:
    """Schema of `spec` in the values: that of the definition, with unknown keys refused rather than pruned."""
    schema = _closed(_defined(_CLUSTER))
    # The chart fills in its own version.
    schema["required"] = [name for name in schema["required"] if name != "version"]
    schema["properties"]["version"].pop("minLength", None)
    service = schema["properties"]["metadataService"]
    service["if"] = {"properties": {"type": {"enum": ["Embedded", "Etcd"]}}, "required": ["type"]}
    service["else"] = {"properties": {"uri": {"minLength": 1}}, "required": ["uri"]}
    return schema


def job_schema() -> dict[str, Any]:
    """Schema of an item of `jobs`: a name and `spec` of a BookieJob, without the cluster, which is the chart's."""
    schema = _closed(_defined(_JOB))
    properties = {key: each for key, each in schema["properties"].items() if key != "clusterRef"}
    schema["properties"] = {"name": _JOB_NAME, **properties}
    schema["required"] = ["name", *(name for name in schema["required"] if name != "clusterRef")]
    return schema


def _defined(definition: str) -> dict[str, Any]:
    """The schema of `spec`."""
    text = (ROOT / DEFINITIONS / definition).read_text(encoding="utf-8")
    (version,) = yaml.load(text, yaml.CSafeLoader)["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def _closed(node: Mapping[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if "properties" in schema:
        schema["properties"] = {name: _closed(child) for name, child in schema["properties"].items()}
        if not node.get(_OPEN):
            schema["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _closed(schema[key])
    return schema


def values_table(text: str) -> str:
    """Every value that has a comment `# -- ` above it, as a row."""
    given = yaml.safe_load(text)
    rows = ["| value | default | meaning |", "|---|---|---|"]
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            words = line.lstrip().removeprefix("#").strip()
            comment = [*comment, words.removeprefix("-- ")] if comment or words.startswith("-- ") else []
            continue
        if key := _KEY.match(line):
            path = [each for each in path if each[0] < len(key["indent"])] + [(len(key["indent"]), key["name"])]
            if comment:
                names = [name for _, name in path]
                meaning = " ".join(comment).replace("|", "\\|")
                rows.append(f"| `{'.'.join(names)}` | {_default(given, names)} | {meaning} |")
        comment = []
    return "\n".join(rows) + "\n"


def _default(given: Any, names: Sequence[str]) -> str:
    for name in names:
        given = given[name]
    return f"`{json.dumps(given)}`" if given != "" else "empty"


def main(arguments: Sequence[str]) -> int:
    files = generated()
    copies = (str(path.relative_to(ROOT)) for path in (ROOT / COPIES).glob("*.yaml"))
    surplus = [path for path in copies if path not in files]
    return keep(ROOT, files, surplus, check="--check" in arguments, command="python charts/generate.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
