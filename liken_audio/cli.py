"""The command line: `liken-audio agent | claim-sockets | inventory | doctor | tone`."""

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import structlog
import yaml

import liken_audio
from liken_audio import settings
from liken_audio.settings import Settings, SettingsError

_INVENTORY_OPTIONS = ("node", "alsa", "sys", "dev", "virtual")
_DOCTOR_OPTIONS = (
    *("node", "kubeconfig", "virtual", "pipewire_remote"),
    *("registry_dir", "plugin_dir", "cdi_dir", "http_port"),
)
_SOCKETS_OPTIONS = ("pipewire_remote", "claims_dir", "control", "log_level")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status: 0 done, 1 failed, 2 asked for wrongly."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    try:
        chosen = settings.from_sources(given, os.environ, socket.gethostname())
    except SettingsError as error:
        parser.error(str(error))
    command: Callable[[Settings, dict[str, str]], int] = given["run"]
    set_up_logging(chosen.log_level)
    sys.exit(command(chosen, given))


def set_up_logging(level: str) -> None:
    """Write one JSON line a fact to standard error, from structlog and from libraries alike."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="liken-audio", description=liken_audio.__doc__)
    parser.add_argument("--version", action="version", version=liken_audio.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    agent = commands.add_parser("agent", help="the agent of a node: publishes, prepares, controls")
    _add_options(agent, [name for name, _, _ in settings.options()])
    agent.set_defaults(run=_run_agent)

    sockets = commands.add_parser(
        "claim-sockets", help="the agent's sidecar: holds the sockets that claims are given"
    )
    _add_options(sockets, _SOCKETS_OPTIONS)
    sockets.set_defaults(run=_run_claim_sockets)

    inventory = commands.add_parser(
        "inventory", help="print what this machine would publish; needs no cluster"
    )
    _add_options(inventory, _INVENTORY_OPTIONS)
    inventory.add_argument(
        "-o", "--output", choices=("table", "yaml"), default="table", help="default: table"
    )
    inventory.set_defaults(run=_run_inventory)
    _set_up_doctor(
        commands.add_parser(
            "doctor", help="say what this node lacks for sound in pods, and how to mend it"
        )
    )
    _set_up_tone(commands.add_parser("tone", help="play a short tone on a sink"))
    return parser


def _set_up_doctor(doctor: argparse.ArgumentParser) -> None:
    _add_options(doctor, _DOCTOR_OPTIONS)
    doctor.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: table"
    )
    doctor.set_defaults(run=_run_doctor)


def _set_up_tone(tone: argparse.ArgumentParser) -> None:
    tone.add_argument("sink", metavar="SINK", help="name of a Sink, or of a PipeWire node")
    tone.add_argument("--frequency", type=float, default=440.0, help="in Hz (default: 440)")
    tone.add_argument("--seconds", type=float, default=1.0, help="default: 1")
    _add_options(tone, ("pipewire_remote",))
    tone.set_defaults(run=_run_tone)


def _add_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    for name, default, help_text in settings.options():
        if name in names:
            shown = f"{help_text} [{settings.variable(name)}]"
            parser.add_argument(
                settings.flag(name), help=f"{shown} (default: {default})" if default else shown
            )


def _run_agent(chosen: Settings, _given: dict[str, str]) -> int:
    from liken_audio import agent

    return agent.main(chosen)


def _run_claim_sockets(chosen: Settings, _given: dict[str, str]) -> int:
    from liken_audio.sockets import holder

    return asyncio.run(holder.main(chosen.claims_dir, chosen.pipewire_remote, chosen.control))


def _run_inventory(chosen: Settings, given: dict[str, str]) -> int:
    from liken_audio import inventory

    try:
        found = inventory.cards(chosen)
    except (OSError, inventory.VirtualCardsError) as error:
        print(f"{chosen.virtual}: {error}", file=sys.stderr)
        return 1
    for failure in found.failures:
        print(f"not shown: {failure}; {inventory.ADVICE}", file=sys.stderr)
    devices = inventory.devices(found.cards, chosen.node)
    if not devices:
        print(inventory.nothing(chosen), file=sys.stderr)
        return 1
    if given["output"] == "yaml":
        print(yaml.safe_dump(inventory.as_objects(devices), sort_keys=False), end="")
    else:
        print(inventory.as_table(devices))
    return 0


def _run_doctor(chosen: Settings, given: dict[str, str]) -> int:
    from liken_audio.doctor import checks, report, visit

    findings = checks.diagnose(asyncio.run(visit.facts(chosen)))
    print(report.as_json(findings) if given["output"] == "json" else report.as_table(findings))
    return checks.exit_code(findings)


def _run_tone(chosen: Settings, given: dict[str, Any]) -> int:
    from liken_audio import tone

    try:
        wanted = tone.Tone(given["frequency"], given["seconds"])
        print(asyncio.run(tone.play(chosen.pipewire_remote, given["sink"], wanted)))
    except tone.ToneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
