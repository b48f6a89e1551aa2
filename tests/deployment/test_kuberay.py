"""The manifests against the schema of KubeRay, and against the rest of the project."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from project import ROOT

FOLDER = ROOT / "deploy/kuberay"
MANIFESTS = sorted(FOLDER.glob("ray*-*.yaml"))
IN_OBJECT_STORE = FOLDER / "rayjob-s3.yaml"
RELEASE = "v1.7.0"
# A folder with ray.io_rayclusters.yaml and ray.io_rayjobs.yaml.
CRDS = os.environ.get("KUBERAY_CRDS")

needs_schema = pytest.mark.skipif(
    CRDS is None,
    reason="needs KUBERAY_CRDS, the path of ray-operator/config/crd/bases in "
    f"https://github.com/ray-project/kuberay at {RELEASE}",
)


def _strict(schema: Any) -> Any:
    """The schema as the API server applies it: unknown fields are refused, quantities may be both.

    JSON Schema alone would let unknown fields pass.
    """
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made


@cache
def _schema(kind: str) -> Any:
    assert CRDS is not None
    text = (Path(CRDS) / f"ray.io_{kind.lower()}s.yaml").read_text()
    # Ten times as fast as safe_load, and a megabyte long.
    definition = yaml.load(text, yaml.CSafeLoader)
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1")
    schema = _strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _faults(manifest: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(_schema(manifest["kind"]))
    return [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(manifest)]


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _cluster(manifest: Any) -> Any:
    return manifest["spec"].get("rayClusterSpec", manifest["spec"])


def _pods(manifest: Any) -> Iterator[Any]:
    cluster = _cluster(manifest)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]["spec"]


@needs_schema
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid(path: Path) -> None:
    assert _faults(_load(path)) == []


@needs_schema
@pytest.mark.parametrize(
    ("field", "value"),
    [("rayVersio", "2.60.0"), ("authOptions", {"mode": "tokens"}), ("rayVersion", 2)],
)
def test_a_wrong_field_is_found(field: str, value: object) -> None:
    manifest = _load(FOLDER / "raycluster-cpu.yaml")
    manifest["spec"][field] = value
    assert len(_faults(manifest)) == 1


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_are_safe_and_bounded(path: Path) -> None:
    manifest = _load(path)
    assert _cluster(manifest)["authOptions"] == {"mode": "token"}
    for pod in _pods(manifest):
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["resources"]["limits"] == container["resources"]["requests"]
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
            assert {"livenessProbe", "readinessProbe"} <= container.keys()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_versions_are_those_that_are_locked(path: Path) -> None:
    lines = (ROOT / "envs/requirements.txt").read_text().splitlines()
    assert f"ray=={_cluster(_load(path))['rayVersion']}" in lines


@pytest.mark.parametrize(
    "path", [path for path in MANIFESTS if path != IN_OBJECT_STORE], ids=lambda path: path.name
)
def test_pods_share_the_volume_of_the_claim(path: Path) -> None:
    claims = list(yaml.safe_load_all((FOLDER / "storage.yaml").read_text()))
    (claim,) = (each for each in claims if each["kind"] == "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in _pods(_load(path)):
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_with_an_object_store_only_the_head_has_a_volume_and_all_pods_have_credentials() -> None:
    claim = _load(FOLDER / "storage-s3.yaml")
    head, *workers = _pods(_load(IN_OBJECT_STORE))
    claims = [volume.get("persistentVolumeClaim") for volume in head["volumes"]]
    assert {"claimName": claim["metadata"]["name"]} in claims
    assert workers
    for pod in workers:
        assert all("emptyDir" in volume for volume in pod["volumes"])
    for pod in (head, *workers):
        (container,) = pod["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "moray-s3"}}]
        scratch = {each["name"]: each["value"] for each in container["env"]}["TMPDIR"]
        assert scratch in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_what_a_user_must_fill_in_is_listed() -> None:
    """Placeholders are in capitals; the guide has each."""
    guide = (ROOT / "docs/deploy.md").read_text()
    placeholder = re.compile(r"\b(?:REGISTRY|NFS_SERVER|NFS_PATH|BUCKET)\b")
    used = {name for path in FOLDER.iterdir() for name in placeholder.findall(path.read_text())}
    assert used == {"REGISTRY", "NFS_SERVER", "NFS_PATH"}
    assert all(f"`{name}`" in guide for name in used)


def test_the_values_of_the_chart_are_those_of_the_manifests() -> None:
    values = _load(FOLDER / "values.yaml")
    cpu, gpu = (_cluster(_load(FOLDER / f"raycluster-{kind}.yaml")) for kind in ("cpu", "gpu"))
    head = cpu["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert f"{values['image']['repository']}:{values['image']['tag']}" == head["image"]
    assert values["head"]["rayVersion"] == cpu["rayVersion"]
    assert values["head"]["resources"] == head["resources"]
    groups = {"cpu": values["worker"], **values["additionalWorkerGroups"]}
    for kind, cluster in {"cpu": cpu, "gpu": gpu}.items():
        (group,) = cluster["workerGroupSpecs"]
        (container,) = group["template"]["spec"]["containers"]
        assert groups[kind]["resources"] == container["resources"]
        assert groups[kind]["volumes"] == group["template"]["spec"]["volumes"]
        assert groups[kind]["volumeMounts"] == container["volumeMounts"]
        assert groups[kind]["maxReplicas"] == group["maxReplicas"]
        assert not groups[kind]["securityContext"]["allowPrivilegeEscalation"]
