"""What keeps an agent from being ready, each partner by its name; and the page of metrics."""

import re
from pathlib import Path

import pytest

from liken_audio import agent
from liken_audio.graph.model import PipeWireSnapshot, Source
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.informer import Trouble
from liken_audio.parts import Parts
from liken_audio.probes import metrics_text
from liken_audio.settings import Settings


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """An agent that was built and doesn't run; its client never opens a connection."""
    settings = Settings(
        node="kitchen",
        plugin_dir=str(tmp_path),
        registry_dir="/registry",
        cdi_dir=str(tmp_path / "cdi"),
    )
    return agent.build(settings, KubernetesClient.from_kubeconfig("/no/such/file"))


@pytest.fixture
def ready(parts: Parts) -> Parts:
    """One that has all its partners."""
    parts.graph.replace(Source.PIPEWIRE, PipeWireSnapshot())
    for informer in (parts.slices, parts.sinks, parts.sources):
        informer._reflector.trouble = None
    parts.publisher.is_published = True
    parts.kubelet.told(is_registered=True, error="")
    return parts


def test_an_agent_with_all_its_partners_misses_nothing(ready: Parts) -> None:
    assert ready.missing() == []


def test_an_agent_that_just_started_misses_each_partner_by_name(parts: Parts) -> None:
    lines = parts.missing()
    beginnings = [line.partition(":")[0] for line in lines]
    assert beginnings == ["pipewire", *["api server"] * 4, "kubelet"]


def test_a_lost_pipewire_is_missed(ready: Parts) -> None:
    ready.graph.lose(Source.PIPEWIRE)
    (line,) = ready.missing()
    assert line.startswith("pipewire:")


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [(Trouble.NOT_SERVED, "manifests/crds"), (Trouble.FAILING, "the agent's log")],
)
def test_a_kind_that_cannot_be_followed_is_named_with_what_to_do(
    ready: Parts, trouble: Trouble, advice: str
) -> None:
    """U76 and U79."""
    ready.sinks._reflector.trouble = trouble
    (line,) = ready.missing()
    assert "sinks.audio.liken.sh" in line
    assert advice in line


def test_slices_that_are_not_published_are_missed(ready: Parts) -> None:
    ready.publisher.is_published = False
    (line,) = ready.missing()
    assert "ResourceSlice" in line


def test_a_kubelet_that_refused_is_quoted(ready: Parts) -> None:
    ready.kubelet.told(is_registered=False, error="plugin type is unknown")
    (line,) = ready.missing()
    assert line.startswith("kubelet:")
    assert line.endswith("plugin type is unknown")


def test_each_metric_has_one_head_and_each_sample_a_name_of_its_own(parts: Parts) -> None:
    text = metrics_text(parts.metrics())
    heads = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads))
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
    assert len(samples) == len(set(samples)) == len(parts.metrics())
    assert all(re.fullmatch(r"liken_audio_[a-z_]+(\{.*\})?", sample) for sample in samples)


def test_samples_of_one_metric_share_their_help(parts: Parts) -> None:
    helps: dict[str, set[str]] = {}
    for metric in parts.metrics():
        helps.setdefault(metric.name, set()).add(metric.help)
    assert all(len(texts) == 1 for texts in helps.values())


def test_metrics_follow_the_parts(parts: Parts) -> None:
    def value(name: str) -> float:
        return next(each.value for each in parts.metrics() if each.name == f"liken_audio_{name}")

    assert (value("pipewire_connected"), value("kubelet_registered")) == (0, 0)
    parts.graph.replace(Source.PIPEWIRE, PipeWireSnapshot())
    parts.kubelet.told(is_registered=True, error="")
    assert (value("pipewire_connected"), value("kubelet_registered")) == (1, 1)


def test_every_part_that_runs_is_among_the_loops(parts: Parts) -> None:
    """A loop that was built and forgotten would never be missed by any other test."""
    loops = parts.loops()
    owners = {loop.cr_frame.f_locals["self"] for loop in loops}
    for loop in loops:
        loop.close()
    fields = {name: getattr(parts, name) for name in parts.__slots__}
    runs = {name for name, part in fields.items() if hasattr(part, "run")}
    assert {name for name, part in fields.items() if part in owners} == runs - {"kubelet"}
