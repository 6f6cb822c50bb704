"""The example for containers: what it starts exists and works, and no secret is in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict

from tests.postgres import binaries, fresh_url, server_url
from tests.support import wait_until
from tests.surfaces.support import environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/compose"
SECRETS = {"POSTGRES_PASSWORD": "pass", "QUEUECTL_TOKEN": "token-of-the-dashboard"}
TIMEOUT = 20.0

Service = dict[str, Any]


def services() -> dict[str, Service]:
    found: dict[str, Service] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]
    return found


def filled_in(value: str, variables: dict[str, str]) -> str:
    """A value as compose makes it: `${NAME:?why}` is the variable, `$$` a dollar."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: variables[found[1]], value).replace("$$", "$")


def dockerfile() -> list[tuple[str, str]]:
    """The steps: a word and the rest of its line."""
    lines = (FOLDER / "Dockerfile").read_text("utf-8").splitlines()
    steps = [line for line in lines if line and not line.startswith("#")]
    return [(step.partition(" ")[0], step.partition(" ")[2]) for step in steps]


class Started:
    """The command of a service as a program on this machine, with the service's environment."""

    def __init__(self, service: Service, url: str, folder: Path) -> None:
        variables = {name: filled_in(value, SECRETS) for name, value in service["environment"].items()}
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        variables |= {"PATH": path, "QUEUECTL_DATABASE_URL": url}
        self.variables = environment(folder / "home", **variables)
        self._log = folder / "log"
        folder.mkdir()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                _on_any_port(service["command"]),
                cwd=ROOT,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, event: str) -> dict[str, Any]:
        wait_until(lambda: f'"{event}"' in self.printed() or self.process.poll() is not None, TIMEOUT)
        assert self.process.poll() is None, self.printed()
        lines = [json.loads(line) for line in self.printed().split("\n")[:-1]]
        found: dict[str, Any] = next(line for line in lines if line["event"] == event)
        return found

    def printed(self) -> str:
        return self._log.read_text()

    def is_healthy(self, test: list[str], port: str = "8000") -> bool:
        kind, *words = [filled_in(word, SECRETS).replace(":8000/", f":{port}/") for word in test]
        words = ["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words
        done = subprocess.run(words, env=self.variables, capture_output=True, timeout=TIMEOUT, check=False)
        return done.returncode == 0

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT)


def _on_any_port(command: list[str]) -> list[str]:
    return ["0" if word == "8000" else word for word in command]


@contextmanager
def started(service: Service, url: str, folder: Path) -> Iterator[Started]:
    program = Started(service, url, folder)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()


@pytest.mark.postgres
def test_workers_and_dashboard_do_a_job_together_and_stop_in_order(tmp_path: Path) -> None:
    known = services()
    names = [name for name in known if name != "db"]
    assert names == ["worker-1", "worker-2", "dashboard"]
    with fresh_url() as url, ExitStack() as stack:
        programs = {name: stack.enter_context(started(known[name], url, tmp_path / name)) for name in names}
        port = programs["dashboard"].wait_for("server.started")["address"].rpartition(":")[2]
        for name in ("worker-1", "worker-2"):
            programs[name].wait_for("worker.started")
        client = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT, trust_env=False)
        )
        assert client.get("/api/tasks/stats").status_code == 401
        client.headers["Authorization"] = f"Bearer {SECRETS['QUEUECTL_TOKEN']}"
        assert client.get("/api/tasks/stats").json()["workers"] == 2
        sent = client.post("/api/tasks", json={"type": "greet", "payload": {"name": "Ada"}})
        assert sent.status_code == 201
        job = f"/api/tasks/{sent.json()['id']}"
        wait_until(lambda: client.get(job).json()["status"] == "completed", TIMEOUT)
        for name, program in programs.items():
            assert program.is_healthy(known[name]["healthcheck"]["test"], port), name
        assert programs["worker-1"].stop() == programs["worker-2"].stop() == 0
        # Nobody on this machine is heard of any more, and only the dashboard's own check still passes.
        assert not programs["worker-1"].is_healthy(known["worker-1"]["healthcheck"]["test"])
        assert programs["dashboard"].is_healthy(known["dashboard"]["healthcheck"]["test"], port)
        assert programs["dashboard"].stop() == 0


@pytest.mark.process
def test_a_dashboard_without_a_token_does_not_start(tmp_path: Path) -> None:
    service = services()["dashboard"]
    without = {name: value for name, value in service["environment"].items() if name != "QUEUECTL_TOKEN"}
    with started({**service, "environment": without}, "sqlite:///unused.db", tmp_path / "it") as program:
        assert program.process.wait(TIMEOUT) == 2
        assert "token" in program.printed()


@pytest.mark.postgres
def test_the_database_is_waited_for_by_a_program_that_the_server_brings() -> None:
    known = services()
    kind, program, *words = known["db"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "pg_isready")
    place = conninfo_to_dict(server_url())
    variables = {"PGHOST": str(place.get("host", "")), "PGPORT": str(place.get("port", 5432))}
    done = subprocess.run(
        [binaries() / program, *words], env=os.environ | variables, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert words[1] == words[3] == known["db"]["environment"]["POSTGRES_USER"]
    for name in known.keys() - {"db"}:
        assert known[name]["depends_on"] == {"db": {"condition": "service_healthy"}}


def test_both_workers_are_the_same_and_get_the_time_to_stop_in_order() -> None:
    known = services()
    assert known["worker-1"] == known["worker-2"]
    assert {known[name]["stop_grace_period"] for name in known if name != "db"} == {"45s"}


def test_no_secret_is_in_any_file() -> None:
    asked: set[str] = set()
    for name, service in services().items():
        for variable, value in service["environment"].items():
            if re.search("PASSWORD|TOKEN|SECRET", variable):
                found = re.fullmatch(r"\$\{(\w+):\?[^}]*\}", value)
                assert found is not None, f"{name}: {variable} has a value of its own"
                asked.add(found[1])
        assert not re.search(r"//[^/@]*:[^/@]*@", service["environment"].get("QUEUECTL_DATABASE_URL", ""))
    assert asked == SECRETS.keys()
    assert not [rest for word, rest in dockerfile() if word in ("ENV", "ARG") and re.search("PASS|TOK", rest)]
    assert ".env" in (FOLDER / ".gitignore").read_text("utf-8").split()


@pytest.mark.process
def test_the_line_of_the_readme_writes_a_file_that_fills_in_everything(tmp_path: Path) -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    [line] = [line for line in readme.splitlines() if line.endswith("> .env")]
    made_up = line.replace("openssl rand -hex", "echo made-up")
    subprocess.run(["/bin/sh", "-eu", "-c", made_up], cwd=tmp_path, check=True)
    written = dict(row.split("=", 1) for row in (tmp_path / ".env").read_text().splitlines())
    assert written.keys() == SECRETS.keys()
    assert all(written.values())


def test_the_ports_of_the_dashboard_are_open_to_this_machine_alone() -> None:
    known = services()
    assert known["dashboard"]["ports"] == ["127.0.0.1:8000:8000"]
    assert [name for name in known if "ports" in known[name]] == ["dashboard"]


def test_the_dockerfile_installs_as_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    [install] = [rest for word, rest in dockerfile() if word == "RUN" and rest.startswith("pip ")]
    *_, package = shlex.split(install)
    folder, _, extras = package.rstrip("]").partition("[")
    assert f"pip install '/path/to/this/folder[{extras}]'" in readme
    assert folder == dict(dockerfile())["WORKDIR"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    version = re.fullmatch(r"python:3\.(\d+)-slim", dict(dockerfile())["FROM"])
    assert version is not None
    assert f"Programming Language :: Python :: 3.{version[1]}" in project["classifiers"]


@pytest.mark.parametrize("step", [rest for word, rest in dockerfile() if word == "COPY"])
def test_what_the_dockerfile_copies_is_there_and_not_ignored(step: str) -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert ignored[0] == "*"
    for source in step.split()[:-1]:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_the_dockerfile_leaves_root_behind() -> None:
    assert [rest for word, rest in dockerfile() if word == "USER"] == ["queue"]


def test_compose_builds_from_the_folder_that_has_it_all() -> None:
    known = services()
    for name in known.keys() - {"db"}:
        build = known[name]["build"]
        assert (FOLDER / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
