"""Settings are joined from flags, variables and defaults, and refuse what can't work."""

import pytest

from liken_audio import settings
from liken_audio.settings import SettingsError, from_sources


def test_a_flag_beats_its_variable_and_a_variable_beats_the_default() -> None:
    environ = {"LIKEN_AUDIO_CDI_DIR": "/from/variable", "LIKEN_AUDIO_CLAIMS_DIR": "/claims"}
    chosen = from_sources({"cdi_dir": "/from/flag"}, environ, "kitchen")
    assert chosen.cdi_dir == "/from/flag"
    assert chosen.claims_dir == "/claims"
    assert chosen.registry_dir == "/var/lib/kubelet/plugins_registry"


def test_the_node_is_the_host_name_in_lower_case_unless_named() -> None:
    assert from_sources({}, {}, "Kitchen.Example").node == "kitchen.example"
    assert from_sources({"node": "attic"}, {}, "kitchen").node == "attic"


def test_an_empty_flag_is_a_value_and_not_a_missing_one() -> None:
    chosen = from_sources({"kubeconfig": ""}, {"LIKEN_AUDIO_KUBECONFIG": "/file"}, "kitchen")
    assert chosen.kubeconfig == ""


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        pytest.param("node", "Kitchen_1", "lower-case letters", id="node-with-underscore"),
        pytest.param("node", "a" * 254, "--node", id="node-too-long"),
        pytest.param("http_port", "http", "0 to 65535", id="port-no-number"),
        pytest.param("http_port", "65536", "0 to 65535", id="port-too-high"),
        pytest.param("log_level", "loud", "debug", id="log-level"),
        pytest.param("alsa", "yes", "'auto', 'on', 'off'", id="alsa-neither-on-nor-off"),
        pytest.param("sys", "sys", "absolute path", id="relative-sys"),
        pytest.param("cdi_dir", "cdi", "absolute path", id="relative-path"),
        pytest.param("control", "", "--control", id="no-control-socket"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_flag_and_the_right_values(
    name: str, value: str, says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        from_sources({name: value}, {}, "kitchen")
    assert says in str(refused.value)
    assert settings.flag(name) in str(refused.value)


def test_every_option_has_a_help_text() -> None:
    assert all(help_text for _, _, help_text in settings.options())


def test_the_bus_of_bluetooth_is_the_systems_unless_it_is_named() -> None:
    system = {"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/media/bus"}
    assert from_sources({}, system, "kitchen").bluetooth_bus == "unix:path=/media/bus"
    own = system | {"LIKEN_AUDIO_BLUETOOTH_BUS": "none"}
    assert from_sources({}, own, "kitchen").bluetooth_bus == "none"
    assert from_sources({"bluetooth_bus": "unix:path=/b"}, own, "kitchen").bluetooth_bus == (
        "unix:path=/b"
    )


@pytest.mark.parametrize(
    ("alsa", "virtual", "has_alsa"),
    [
        ("auto", "", True),
        ("auto", "/cards.yaml", False),
        ("on", "/cards.yaml", True),
        ("off", "", False),
    ],
)
def test_the_machines_cards_are_published_unless_virtual_ones_are_given(
    alsa: str, virtual: str, has_alsa: bool
) -> None:
    chosen = from_sources({"alsa": alsa, "virtual": virtual}, {}, "kitchen")
    assert chosen.has_alsa is has_alsa
