"""The command line says what it can do, and refuses with the right values."""

from pathlib import Path

import pytest
import yaml

from liken_audio import cli, settings
from tests.builders import KITCHEN_CARDS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_help_of_the_agent_names_every_option_and_its_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text, _ = run(capsys, "agent", "--help")
    assert status == 0
    for name, _, _ in settings.options():
        assert settings.flag(name) in text
        assert settings.variable(name) in text


def test_a_wrong_value_ends_with_status_2_and_the_right_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, text = run(capsys, "inventory", "--node", "Not_A_Node")
    assert status == 2
    assert "lower-case letters" in text


def test_no_command_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, text = run(capsys)
    assert status == 2
    assert "usage: liken-audio" in text


def test_the_inventory_is_printed_as_a_table_or_as_yaml(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text(KITCHEN_CARDS)
    status, text, _ = run(capsys, "inventory", "--node", "kitchen", "--virtual", str(file))
    assert status == 0
    assert "kitchen-pci-0000-00-1f-3-hdmi-0" in text
    status, text, _ = run(
        capsys, "inventory", "--node", "kitchen", "--virtual", str(file), "-o", "yaml"
    )
    assert yaml.safe_load(text)[0]["name"].startswith("kitchen-pci")


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, text = run(capsys, "inventory", "--node", "kitchen", "--virtual", "/no/such.yaml")
    assert status == 1
    assert "/no/such.yaml" in text


def test_an_inventory_of_nothing_says_what_to_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, text = run(capsys, "inventory", "--node", "kitchen", "--sys", str(tmp_path))
    assert status == 1
    assert f"no sound cards in {tmp_path}" in text
    assert "--virtual" in text
