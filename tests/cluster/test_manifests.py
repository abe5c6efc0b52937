"""The manifests as `kubectl apply -k` takes them, against a real API server and our command line."""

import re
from collections.abc import Iterator, Mapping

import pytest
import yaml

import liken_audio
from liken_audio import cli, settings
from liken_audio.api import GROUP
from tests.harness.cluster import Cluster, Json
from tests.harness.node import TREE

OVERLAYS = ("generic", "generic-bluetooth", "liken", "liken-bluetooth", "virtual")
SIDECARS = ["folders", "pipewire", "wireplumber", "claim-sockets"]
MANIFESTS = TREE / "manifests"
RUN = "/run/audio.liken.sh"
USER = 42800


@pytest.fixture(scope="module")
def overlays(cluster: Cluster) -> Mapping[str, list[Json]]:
    """The objects of each overlay."""
    return {
        name: [
            each
            for each in yaml.safe_load_all(
                cluster.kubectl("kustomize", str(MANIFESTS / "overlays" / name))
            )
            if each
        ]
        for name in OVERLAYS
    }


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, overlays: Mapping[str, list[Json]]) -> list[Json]:
    """The objects of one overlay."""
    return overlays[request.param]


def daemon_set(objects: list[Json]) -> Json:
    (found,) = [each for each in objects if each["kind"] == "DaemonSet"]
    return found


def pod(objects: list[Json]) -> Json:
    spec: Json = daemon_set(objects)["spec"]["template"]["spec"]
    return spec


def containers(objects: list[Json]) -> list[Json]:
    spec = pod(objects)
    return [*spec["initContainers"], *spec["containers"]]


def named(objects: list[Json], name: str) -> Json:
    (found,) = [each for each in containers(objects) if each["name"] == name]
    return found


@pytest.fixture(scope="module")
def namespaced(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with the namespace, which a dry run of the rest needs."""
    account = str(MANIFESTS / "rights")
    cluster.kubectl("apply", "-k", account)
    yield cluster
    cluster.kubectl("delete", "-k", account)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_api_server_takes_every_object_of_an_overlay_and_knows_every_field(
    namespaced: Cluster, name: str
) -> None:
    where = str(MANIFESTS / "overlays" / name)
    flags = ["--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts"]
    said = namespaced.kubectl("apply", "-k", where, *flags)
    assert "daemonset.apps/liken-audio serverside-applied" in said


@pytest.mark.parametrize("name", ["talos", "other-paths"])
def test_an_example_with_other_paths_has_them_inside_outside_and_in_the_agents_settings(
    namespaced: Cluster, name: str
) -> None:
    where = str(MANIFESTS / "examples" / name)
    flags = ["--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts"]
    namespaced.kubectl("apply", "-k", where, *flags)
    objects = list(yaml.safe_load_all(namespaced.kubectl("kustomize", where)))
    agent = named(objects, "agent")
    variables = {each["name"]: each.get("value", "") for each in agent["env"]}
    told = settings.from_sources({"node": "any"}, variables, "any")
    outside = {
        each["name"]: each["hostPath"]["path"]
        for each in pod(objects)["volumes"]
        if "hostPath" in each
    }
    inside = {each["name"]: each["mountPath"] for each in agent["volumeMounts"]}
    for volume, path in (
        ("kubelet-plugins", told.plugin_dir),
        ("kubelet-registry", told.registry_dir),
        ("cdi", told.cdi_dir),
    ):
        assert outside[volume] == inside[volume] == path
    default = settings.Settings(node="any")
    changed = (told.plugin_dir, told.registry_dir, told.cdi_dir)
    assert changed != (default.plugin_dir, default.registry_dir, default.cdi_dir)


def test_the_example_of_an_overlay_of_ones_own_changes_what_it_says(namespaced: Cluster) -> None:
    where = str(MANIFESTS / "examples" / "overlay")
    flags = ["--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts"]
    namespaced.kubectl("apply", "-k", where, *flags)
    objects = list(yaml.safe_load_all(namespaced.kubectl("kustomize", where)))
    spec = pod(objects)
    assert [each["name"] for each in spec["initContainers"]] == SIDECARS
    assert {each["image"] for each in containers(objects)} == {
        f"images.example.org/liken-audio:{liken_audio.__version__}"
    }
    assert {"nodeSelector", "tolerations", "priorityClassName"} <= spec.keys()


def test_what_the_install_page_applies_is_there_and_taken(namespaced: Cluster) -> None:
    page = (TREE / "docs" / "install.md").read_text()
    named_paths = set(re.findall(r"manifests/[a-z0-9./-]*[a-z0-9]", page))
    assert named_paths
    assert all((TREE / each).exists() for each in named_paths), named_paths
    applied = set(re.findall(r"^\$ kubectl apply (-[kf]) (\S+)$", page, re.MULTILINE))
    assert {path for flag, path in applied if flag == "-k"} >= {
        f"manifests/overlays/{each}" for each in ("generic", "liken", "virtual")
    }
    for flag, path in applied:
        namespaced.kubectl("apply", flag, str(TREE / path), "--dry-run=server")
    assert {name for name in OVERLAYS if f"`manifests/overlays/{name}`" in page} == set(OVERLAYS)
    assert f"localhost/liken-audio:{liken_audio.__version__}" in page


def test_the_containers_start_in_their_order_and_the_daemons_stay(overlay: list[Json]) -> None:
    spec = pod(overlay)
    assert [each["name"] for each in spec["initContainers"]] == SIDECARS
    assert [each.get("restartPolicy") for each in spec["initContainers"]] == [None, *["Always"] * 3]
    assert [each["name"] for each in spec["containers"]] == ["agent"]


def test_no_capability_no_writable_root_and_the_runtimes_system_call_filter(
    overlay: list[Json],
) -> None:
    spec = pod(overlay)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in containers(overlay):
        context = each["securityContext"]
        assert context["readOnlyRootFilesystem"] is True, each["name"]
        if not context.get("privileged"):
            assert context["capabilities"] == {"drop": ["ALL"]}, each["name"]
            assert context["allowPrivilegeEscalation"] is False, each["name"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & spec.keys()


def test_only_the_generic_overlays_have_privileged_containers_and_only_those_that_open_cards(
    overlays: Mapping[str, list[Json]],
) -> None:
    for name, objects in overlays.items():
        found = [
            each["name"]
            for each in containers(objects)
            if each["securityContext"].get("privileged")
        ]
        expected = ["pipewire", "agent"] if name.startswith("generic") else []
        assert found == expected, name
        for each in found:
            mounts = {mount["mountPath"] for mount in named(objects, each)["volumeMounts"]}
            assert "/dev/snd" in mounts


def test_the_daemons_are_no_root_and_the_agent_has_their_group(
    overlays: Mapping[str, list[Json]],
) -> None:
    for name, objects in overlays.items():
        context = pod(objects)["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (USER, USER)
        assert context["runAsNonRoot"] is True
        roots = {
            each["name"]
            for each in containers(objects)
            if each["securityContext"].get("runAsUser") == 0
        }
        expected = {"folders", "agent"} | ({"pipewire"} if name.startswith("generic") else set())
        assert roots == expected, name
        assert all("runAsGroup" not in each["securityContext"] for each in containers(objects))


def test_only_the_agent_has_a_token_and_only_it_sees_the_kubelets_folders(
    overlay: list[Json],
) -> None:
    (account,) = [each for each in overlay if each["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False
    assert pod(overlay)["automountServiceAccountToken"] is False
    for each in containers(overlay):
        mounts = {mount["name"] for mount in each.get("volumeMounts", ())}
        if each["name"] != "agent":
            assert mounts <= {"run", "cards", "system-bus"}, each["name"]
        else:
            assert {"token", "kubelet-plugins", "kubelet-registry", "cdi"} <= mounts


def test_every_container_that_stays_is_probed_and_has_a_limit_of_memory(
    overlay: list[Json],
) -> None:
    for each in containers(overlay):
        assert each["resources"]["requests"].keys() == {"cpu", "memory"}, each["name"]
        assert each["resources"]["limits"].keys() == {"memory"}, each["name"]
        if each["name"] == "folders":
            continue
        assert {"startupProbe", "livenessProbe"} <= each.keys(), each["name"]
        if each["name"] != "agent":
            asked = each["livenessProbe"]["exec"]["command"]
            assert asked == ["node-sound", "probe", each["name"]]


def test_the_flags_and_variables_are_the_command_lines_own(
    overlay: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {settings.variable(name) for name, _, _ in settings.options()}
    commands: list[str] = []
    monkeypatch.setattr(cli, "set_up_logging", lambda _level: None)
    for name in ("_run_agent", "_run_claim_sockets"):
        monkeypatch.setattr(cli, name, lambda chosen, _given: commands.append(chosen.node) or 0)
    for each in containers(overlay):
        variables = {entry["name"] for entry in each.get("env", ())}
        assert variables <= known, each["name"]
        if "args" in each:
            with pytest.raises(SystemExit) as ended:
                cli.main(each["args"])
            assert ended.value.code == 0, each["args"]
    assert len(commands) == 2


def test_paths_are_those_that_the_agent_takes_unless_told(overlay: list[Json]) -> None:
    default = settings.Settings(node="any")
    agent, volumes = named(overlay, "agent"), pod(overlay)["volumes"]
    paths = {each["name"]: each["hostPath"]["path"] for each in volumes if "hostPath" in each}
    mounts = {each["name"]: each["mountPath"] for each in agent["volumeMounts"]}
    for volume, path in (
        ("kubelet-plugins", default.plugin_dir),
        ("kubelet-registry", default.registry_dir),
        ("cdi", default.cdi_dir),
        ("run", RUN),
    ):
        assert paths[volume] == path
        assert mounts[volume] == path
    for path in (default.pipewire_remote, default.claims_dir, default.control):
        assert path.startswith(f"{RUN}/")


def test_every_host_path_is_explained_in_the_manifest() -> None:
    for file in MANIFESTS.rglob("*.yaml"):
        lines = file.read_text().splitlines()
        for place, line in enumerate(lines):
            if "hostPath: {" in line:
                before = lines[max(0, place - 3) : place]
                assert any(each.strip().startswith("#") for each in before), (file, line)


def test_two_agents_overlap_in_an_update_where_no_claim_keeps_the_cards_for_one(
    overlays: Mapping[str, list[Json]],
) -> None:
    for name, objects in overlays.items():
        strategy = daemon_set(objects)["spec"]["updateStrategy"]["rollingUpdate"]
        surge = {"maxSurge": 1, "maxUnavailable": 0}
        one = {"maxSurge": 0, "maxUnavailable": 1}
        assert strategy == (one if name.startswith("liken") else surge), name


def test_all_containers_have_the_image_of_this_version(overlay: list[Json]) -> None:
    images = {each["image"] for each in containers(overlay)}
    assert images == {f"localhost/liken-audio:{liken_audio.__version__}"}
    assert all("imagePullPolicy" not in each for each in containers(overlay))


def test_the_image_has_what_the_manifests_name() -> None:
    text = (TREE / "Containerfile").read_text()
    assert f"--uid {USER} --gid {USER}" in text
    assert f"USER {USER}:{USER}" in text
    assert f"XDG_RUNTIME_DIR={RUN}/pipewire" in text
    copied = re.findall(r"^COPY (?:--from=\S+ )?(.+) \S+$", text, re.MULTILINE)
    for source in (each for line in copied for each in line.split()):
        assert source.startswith("/") or (TREE / source).exists(), source


def test_the_claims_of_the_liken_overlay_are_the_pods_own_and_reach_the_containers_that_need_them(
    overlays: Mapping[str, list[Json]],
) -> None:
    def users(objects: list[Json], claim: str) -> list[str]:
        return [
            each["name"]
            for each in containers(objects)
            if {"name": claim} in each["resources"].get("claims", ())
        ]

    both = overlays["liken-bluetooth"]
    templates = {
        each["metadata"]["name"] for each in both if each["kind"] == "ResourceClaimTemplate"
    }
    claims = {each["resourceClaimTemplateName"] for each in pod(both)["resourceClaims"]}
    assert claims == templates
    for objects in (overlays["liken"], both):
        assert users(objects, "cards") == ["pipewire", "agent"]
    assert users(both, "media-bus") == ["wireplumber", "agent"]


def test_the_overlays_install_the_kinds_and_the_rights(overlay: list[Json]) -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in overlay}
    assert {
        ("CustomResourceDefinition", f"{kind}.{GROUP}") for kind in ("sinks", "sources")
    } < names
    assert ("ValidatingAdmissionPolicy", "liken-audio-own-node") in names
