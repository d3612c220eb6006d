"""Manifests, units and boards are what they say: their command lines run, their probes answer, their queries exist."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from tests.engine import tiny
from tests.page.site import served
from tests.server.process import ServerProcess

from headrace.cli.app import run
from headrace.server import run as server_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MODEL = "smollm2-135m"
UNIT = EXAMPLES / "systemd/headrace.service"


def compose() -> dict:
    return yaml.safe_load((EXAMPLES / "docker/docker-compose.yaml").read_text())


def manifests() -> dict[str, dict]:
    return {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes/headrace.yaml").read_text())}


def container() -> dict:
    return manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


def dockerfile() -> list[str]:
    return (EXAMPLES / "docker/Dockerfile").read_text().splitlines()


def image_command() -> list[str]:
    words = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in dockerfile() if line.startswith(("ENTRY", "CMD"))}
    assert json.loads(words["ENTRYPOINT"]) == ["headrace"]
    return json.loads(words["CMD"])


COMMANDS = {
    "compose": lambda: compose()["services"]["headrace"]["command"],
    "kubernetes": lambda: container()["args"],
    "systemd": lambda: shlex.split(unit()["Service"]["ExecStart"])[1:],
    "docker": image_command,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_line_is_understood_as_it_is_written(name, monkeypatch):
    seen = []
    monkeypatch.setenv("HEADRACE_API_KEY", "secret")
    monkeypatch.setattr(server_run, "serve", lambda asked, settings: seen.append((asked, settings)) or 0)
    assert run(COMMANDS[name]()) == 0
    ((asked, settings),) = seen
    server_run.check_settings(settings)
    assert asked.model == MODEL and settings.port == 8000 and settings.api_keys == ("secret",)


@pytest.mark.parametrize("name", ["kubernetes", "compose"])
def test_a_command_line_serves_and_its_probes_answer(name, tmp_path):
    """With a small model, on this machine's own address; everything else as it is written."""
    words = COMMANDS[name]()
    assert words[:2] == ["serve", MODEL]
    folder = str(tiny.write(tmp_path / "tiny"))
    flags = [*words[2:], "--host", "127.0.0.1"]
    flags[flags.index("--port") : flags.index("--port") + 2] = []
    with ServerProcess(folder, tmp_path, *flags, env={"HEADRACE_API_KEY": "secret"}) as server:
        for path in probes(name):
            assert server.get(path).status_code == 200, path
        assert server.get("/metrics").status_code == 401
        assert httpx.get(server.url + "/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200


def probes(name: str) -> set[str]:
    if name == "kubernetes":
        return {container()[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    check = " ".join(compose()["services"]["headrace"]["healthcheck"]["test"])
    return {re.search(r"http://127\.0\.0\.1:8000(/\w+)", check)[1]}


def test_kubernetes_parts_fit_together():
    found = manifests()
    pod = found["Deployment"]["spec"]["template"]
    main = container()
    assert found["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert main["ports"][0] == {"name": "http", "containerPort": 8000}
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == "http"
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in main["volumeMounts"]} == volumes
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [found["PersistentVolumeClaim"]["metadata"]["name"]]
    drain_s = float(main["args"][main["args"].index("--shutdown-timeout") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain_s


def test_the_image_copies_what_exists_and_the_composition_mounts_what_exists():
    for line in dockerfile():
        if line.startswith("COPY") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
    folder = EXAMPLES / "docker"
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            if volume.startswith("."):
                assert (folder / volume.split(":")[0]).exists(), volume
    assert (folder / compose()["services"]["headrace"]["build"]["context"]).resolve() == ROOT


def test_prometheus_asks_the_composed_server_with_its_key():
    (job,) = yaml.safe_load((EXAMPLES / "docker/prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics" and job["static_configs"][0]["targets"] == ["headrace:8000"]
    secret = Path(job["authorization"]["credentials_file"])
    assert secret.name in compose()["services"]["prometheus"]["secrets"] and secret.name in compose()["secrets"]


def test_systemd_takes_the_unit(tmp_path):
    service = unit()["Service"]
    drain_s = float(re.search(r"--shutdown-timeout (\d+)", service["ExecStart"])[1])
    assert float(service["TimeoutStopSec"]) > drain_s and service["Restart"] == "on-failure"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    there = tmp_path / "headrace.service"
    there.write_text(UNIT.read_text().replace("/opt/headrace/bin/headrace", os.path.realpath(sys.executable)))
    done = subprocess.run(["systemd-analyze", "verify", str(there)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "headrace.service" not in done.stderr, done.stderr


def queries(board: dict) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_query_of_the_board_names_metrics_and_labels_that_the_server_has():
    board = json.loads((EXAMPLES / "grafana/headrace.json").read_text())
    with served() as site:
        body = {"messages": [{"role": "user", "content": "hello"}]}
        assert httpx.post(f"{site.url}/v1/chat/completions", json=body).status_code == 200
        metrics = httpx.get(f"{site.url}/metrics").text
    labels: dict[str, str] = {}
    for name, found in re.findall(r"^([\w:]+)\{(.*)\} ", metrics, re.MULTILINE):
        labels[name] = found
    assert len(queries(board)) >= 20
    for query in queries(board):
        named = re.findall(r"((?:vllm|headrace):\w+)(\{[^}]*\})?", query)
        assert named, query
        for name, chosen in named:
            assert name in labels, f"{name} in {query}"
            grouped = re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query)))
            for label in [*re.findall(r"(\w+)=~?\"", chosen), *grouped]:
                assert f'{label}="' in labels[name], f"{label} of {name} in {query}"
    assert "vllm:num_requests_running" in board["templating"]["list"][1]["query"]["query"]


def test_grafana_is_provisioned_with_the_source_and_the_board_that_exist():
    folder = EXAMPLES / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/headrace.yaml").read_text())["providers"]
    mounted = " ".join(compose()["services"]["grafana"]["volumes"])
    assert source["url"] == "http://prometheus:9090" and provider["options"]["path"] in mounted
