"""The manifests among the examples are well-formed, agree with each other, and their probes work."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from tests.support.beats import leads
from tests.support.cases import together
from tests.support.processes import ROOT, Process, run_python
from tests.support.server import Server
from tests.support.waiting import eventually

EXAMPLES = ROOT / "examples"
BEAT = ["celery", "-A", "tasks", "beat", "-S", "redbeat_lite.Scheduler", "-l", "INFO"]

#: What systemd.service(5) and its like call the settings that the units use.
KNOWN = {
    "Unit": {"Description", "Documentation", "Wants", "After"},
    "Service": {
        "Type", "User", "WorkingDirectory", "Environment", "RuntimeDirectory", "ExecStart", "Restart", "RestartSec",
        "TimeoutStopSec", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp",
    },
    "Timer": {"OnActiveSec", "OnUnitActiveSec", "AccuracySec"},
    "Install": {"WantedBy"},
}  # fmt: skip


def compose() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / "compose" / "compose.yaml").read_text())  # type: ignore[no-any-return]


def kubernetes() -> dict[str, Any]:
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes" / "beat.yaml").read_text())
    return {document["kind"]: document for document in documents}


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """The settings of a unit; one may be given several times."""
    parsed: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in (EXAMPLES / "systemd" / name).read_text().splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            section = parsed.setdefault(line[1:-1], {})
        elif line and not line.startswith(("#", ";")):
            key, separator, value = line.partition("=")
            assert separator, line
            section.setdefault(key, []).append(value)
    return parsed


def environment(name: str) -> dict[str, str]:
    """What each manifest gives the beat."""
    if name == "compose":
        return compose()["services"]["beat"]["environment"]  # type: ignore[no-any-return]
    if name == "kubernetes":
        [container] = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
        return {each["name"]: each.get("value", "redis://from-a-secret/0") for each in container["env"]}
    return dict(each.split("=", 1) for each in unit("celery-beat.service")["Service"]["Environment"])


def probe(name: str) -> list[str]:
    """How each manifest asks for the beat's health."""
    if name == "compose":
        kind, *command = compose()["services"]["beat"]["healthcheck"]["test"]
        assert kind == "CMD"
        return command
    if name == "kubernetes":
        [container] = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
        return container["livenessProbe"]["exec"]["command"]  # type: ignore[no-any-return]
    [line] = unit("celery-beat-health.service")["Service"]["ExecStart"]
    shell, option, script = shlex.split(line)
    assert (shell, option) == ("/bin/sh", "-c")
    check, restart = script.split(" || ")
    assert restart == "systemctl try-restart celery-beat.service"
    return ["python", *shlex.split(check)[1:]]


MANIFESTS = pytest.mark.parametrize("name", ["compose", "kubernetes", "systemd"])


@MANIFESTS
def test_the_probe_asks_for_the_file_that_the_beat_is_told_to_write(name: str, tmp_path: Path) -> None:
    given = environment(name)
    assert all(isinstance(value, str) for value in given.values())
    # In a process of its own, because the tasks of an app show up in every other app of the process.
    script = (
        "import tasks; from redbeat_lite.settings import Settings; found = Settings.from_app(tasks.app); "
        "print(found.heartbeat_file, found.metrics_port, found.metrics_host)"
    )
    env = {**os.environ, **given, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES / 'compose'}"}
    (tmp_path / "shown.py").write_text(script)
    shown = run_python("shown.py", env=env, cwd=tmp_path)
    file, port, host = shown.stdout.split()
    assert port == "9540"
    assert not file.startswith("/tmp"), "where anybody might write"
    assert host == ("127.0.0.1" if name == "systemd" else "0.0.0.0"), "a container has an address of its own"
    python, *arguments = probe(name)
    assert python == "python"
    assert arguments == ["-m", "redbeat_lite", "health", file, "--limit", "30"]


@MANIFESTS
def test_the_command_starts_our_beat(name: str) -> None:
    if name == "compose":
        command = compose()["services"]["beat"]["command"]
    elif name == "kubernetes":
        [container] = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
        command = container["command"]
    else:
        [line] = unit("celery-beat.service")["Service"]["ExecStart"]
        program, *words = shlex.split(line)
        assert Path(program).is_absolute(), "systemd wants it so"
        command = [Path(program).name, *words]
    assert command == BEAT


def test_two_replicas_run_and_one_may_go_at_a_time() -> None:
    found = kubernetes()
    deployment, budget = found["Deployment"], found["PodDisruptionBudget"]
    spec = deployment["spec"]
    assert spec["replicas"] == compose()["services"]["beat"]["deploy"]["replicas"] == 2
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["minAvailable"] == 1
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    file = environment("kubernetes")["HEARTBEAT_FILE"]
    assert Path(file).parent == Path(container["volumeMounts"][0]["mountPath"]), "the rest of the disk is read-only"


def test_the_compose_file_builds_what_it_names() -> None:
    found = compose()
    build = found["services"]["beat"]["build"]
    assert found["services"]["worker"]["build"] == build
    context = (EXAMPLES / "compose" / build["context"]).resolve()
    assert context == ROOT
    dockerfile = (context / build["dockerfile"]).read_text()
    copied = re.findall(r"^COPY (\S+) ", dockerfile, re.MULTILINE)
    ignored = (context / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored, "nothing else goes to the builder, .git and environments least of all"
    assert all((context / each).exists() for each in {*copied, *kept})
    declared = configparser.ConfigParser()
    declared.read(context / "setup.cfg")
    read = {declared["metadata"][name].removeprefix("file: ") for name in ("long_description", "license_files")}
    assert kept == {*copied, *read, "pyproject.toml", "setup.cfg", "redbeat_lite"} - {"."}
    volumes = {volume.split(":")[0] for service in found["services"].values() for volume in service.get("volumes", ())}
    assert volumes == found["volumes"].keys()


@together("path", sorted((EXAMPLES / "systemd").glob("celery-beat*")), ids=lambda path: path.name)
def test_the_units_hold_known_settings_only(path: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(path)
    found = unit(path.name)
    assert parser.sections() == [*found]
    for section, settings in found.items():
        assert settings.keys() <= KNOWN[section]
        assert all(value for values in settings.values() for value in values)


def test_the_beat_may_write_its_file_and_is_stopped_in_time() -> None:
    service = unit("celery-beat.service")["Service"]
    [directory] = service["RuntimeDirectory"]
    assert Path(environment("systemd")["HEARTBEAT_FILE"]).parent == Path("/run") / directory
    assert [int(value) for value in service["TimeoutStopSec"]] == [10]


@pytest.fixture
def example(server: Server, tmp_path: Path, owned: ExitStack) -> Callable[[], Process]:
    """Starts the app of the examples as the manifests do."""

    def start() -> Process:
        program, *words = BEAT
        env = {"BROKER_URL": server.url, "HEARTBEAT_FILE": str(tmp_path / "heartbeat")}
        env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{EXAMPLES / 'compose'}"
        return owned.enter_context(Process([sys.executable, "-m", program, *words], env, cwd=tmp_path))

    return start


def test_the_example_runs_and_its_probe_tells_whether_it_does(
    example: Callable[[], Process], client: redis.Redis, tmp_path: Path
) -> None:
    file = str(tmp_path / "heartbeat")
    _, *words = [file if word.endswith("heartbeat") else word for word in probe("kubernetes")]

    def asked() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert asked().returncode == 1
    beat = example()
    leads(beat, client)
    assert asked().returncode == 0
    eventually(lambda: asked().stdout.startswith(f"leader (pid {beat.pid}): alive"), what="the leader's file")
    assert not list(tmp_path.glob("celerybeat*")), "it writes nothing else"
    beat.stop()
    assert asked().returncode == 1
