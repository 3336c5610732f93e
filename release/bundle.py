"""The operator as a bundle of the Operator Lifecycle Manager (OLM), which installs it for all namespaces.

Everything is made of what the chart `podkeeper-operator` has: the definitions of `crds/`, the rules of `files/rbac/`,
the template of the Deployment, the annotations of Chart.yaml.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from release.building import yaml_text
from release.facts import AUTHORS, Address, project, version_of
from release.staging import ICON

PACKAGE: Final = "podkeeper"
CHANNEL: Final = "alpha"
ACCOUNT: Final = "podkeeper-operator"
CHART: Final = "charts/podkeeper-operator"
_LABELS: Final = {
    "app.kubernetes.io/name": "podkeeper-operator",
    "app.kubernetes.io/instance": "podkeeper",
    "app.kubernetes.io/component": "operator",
}
_FILLED: Final = "__VALUE__"
_MODES: Final = {"OwnNamespace": False, "SingleNamespace": False, "MultiNamespace": False, "AllNamespaces": True}
_DOCKERFILE: Final = """\
FROM scratch
{labels}
COPY manifests /manifests/
COPY metadata /metadata/
"""


def bundle(root: Path, address: Address) -> dict[str, str]:
    """The files of the bundle, by path."""
    annotations = {
        "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
        "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
        "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
        "operators.operatorframework.io.bundle.package.v1": PACKAGE,
        "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
        "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
    }
    labels = "\n".join(f'LABEL {key}="{value}"' for key, value in annotations.items())
    files = {
        f"manifests/{path.name}": path.read_text(encoding="utf-8") for path in sorted((root / "crds").glob("*.yaml"))
    }
    files[f"manifests/{PACKAGE}.clusterserviceversion.yaml"] = yaml_text(service_version(root, address))
    files["metadata/annotations.yaml"] = yaml_text({"annotations": annotations})
    files["Dockerfile"] = _DOCKERFILE.format(labels=labels)
    return files


def service_version(root: Path, address: Address) -> dict[str, Any]:
    """The ClusterServiceVersion."""
    about, chart = project(root), _chart(root)
    version = str(about["version"])
    image = address.image("podkeeper", version)
    notes = chart["annotations"]
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{version}",
            "annotations": {
                "alm-examples": json.dumps(yaml.safe_load(notes["artifacthub.io/crdsExamples"]), indent=2),
                "capabilities": notes["artifacthub.io/operatorCapabilities"],
                "categories": "Database, Storage",
                "containerImage": image,
                "description": about["description"],
                "repository": address.url,
                "support": AUTHORS,
            },
        },
        "spec": {
            "displayName": "Podkeeper",
            "description": _description(root),
            "version": version,
            "maturity": CHANNEL,
            "minKubeVersion": re.sub(r"[^\d.]", "", str(chart["kubeVersion"]).partition("-")[0]),
            "keywords": chart["keywords"],
            "links": [{"name": "Documentation", "url": address.page("docs", version)}],
            "maintainers": [{"name": AUTHORS, "url": address.url}],
            "provider": {"name": AUTHORS, "url": address.url},
            "icon": [
                {"base64data": base64.b64encode((root / ICON).read_bytes()).decode(), "mediatype": "image/svg+xml"}
            ],
            "installModes": [{"type": name, "supported": supported} for name, supported in _MODES.items()],
            "customresourcedefinitions": {"owned": _owned(notes["artifacthub.io/crds"])},
            "relatedImages": [
                {"name": "podkeeper", "image": image},
                {"name": "podkeeper-spark", "image": f"{image}-spark"},
            ],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [
                        {
                            "serviceAccountName": ACCOUNT,
                            "rules": [*rules(root, "clusters"), *rules(root, "cluster-read")],
                        }
                    ],
                    "permissions": [{"serviceAccountName": ACCOUNT, "rules": rules(root, "lease")}],
                    "deployments": [{"name": ACCOUNT, "label": _LABELS, "spec": deployment(root, address)}],
                },
            },
        },
    }


def rules(root: Path, name: str) -> list[dict[str, Any]]:
    """The rights of the operator, as the chart gives them."""
    text = (root / CHART / "files" / "rbac" / f"{name}.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load(text.replace("__NAME__", ACCOUNT)))


def deployment(root: Path, address: Address) -> dict[str, Any]:
    """`spec` of the Deployment, as the chart's with `clusterWide`."""
    values = yaml.safe_load((root / CHART / "values.yaml").read_text(encoding="utf-8"))
    image = address.image("podkeeper", version_of(root))
    template = _given(
        yaml.safe_load(_rendered((root / CHART / "templates" / "deployment.yaml").read_text(encoding="utf-8")))
    )
    pod = template["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["image"] = image
    container["args"] = ["run", "--all-namespaces", f"--lease-name={ACCOUNT}", f"--log-level={values['logLevel']}"]
    container["resources"] = values["resources"]
    given = {"PODKEEPER_IMAGE": address.registry, "PODKEEPER_OPERATOR_IMAGE": image}
    for variable in container["env"]:
        if variable["name"] in given:
            variable["value"] = given[variable["name"]]
    # OLM names the account, and the namespace gives users on OpenShift.
    pod["serviceAccountName"] = ACCOUNT
    container["imagePullPolicy"] = values["image"]["pullPolicy"]
    (spread,) = pod["topologySpreadConstraints"]
    spread["labelSelector"] = {"matchLabels": _LABELS}
    return {
        "replicas": values["replicas"],
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }


def _rendered(template: str) -> str:
    """A template without its control lines, and with `_FILLED` in place of each value."""
    lines = [line for line in template.splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}", line)]
    kept = [line for line in lines if not re.match(r"\s*- --.*\{\{", line)]
    return re.sub(r"\{\{.*?\}\}", _FILLED, "\n".join(kept))


def _given(template: Any) -> Any:
    """The template without what only values give."""
    if isinstance(template, dict):
        kept = {key: _given(value) for key, value in template.items()}
        return {key: value for key, value in kept.items() if value is not None and value != _FILLED}
    if isinstance(template, list):
        return [_given(each) for each in template]
    return template


def _chart(root: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((root / CHART / "Chart.yaml").read_text(encoding="utf-8")))


def _description(root: Path) -> str:
    """The table of what the operator does, from README.md."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("| you | the operator |") :].partition("\n\n")[0]
    return f"{project(root)['description']}.\n\n{table}\n"


def _owned(announced: str) -> list[dict[str, Any]]:
    return [
        {key: each[key] for key in ("name", "version", "kind", "displayName", "description")}
        for each in yaml.safe_load(announced)
    ]
