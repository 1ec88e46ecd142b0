"""A real Label Studio uses the server: `make test-label-studio` starts one in a virtual environment of its own."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from nestree.data import formats
from nestree.data.formats.tasks import label_config
from nestree.pipeline import Pipeline
from tests import tiny
from tests.serve.conftest import until
from tests.serve.test_processes import running
from tests.tiny import write_text

PROGRAM = os.environ.get("NESTREE_LABEL_STUDIO")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="no Label Studio: make test-label-studio")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
PORT = 8497
TEXTS = ["😀🎉 the mayor of Lisbon met the president", "she left the Bank of Portugal"]


def call(method: str, path: str, body: object = None, timeout: float = 60) -> Any:
    request = urllib.request.Request(
        f"http://localhost:{PORT}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Token {TOKEN}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read()[:1000]!r}") from None


@pytest.fixture(scope="module")
def label_studio(tmp_path_factory: pytest.TempPathFactory):
    assert PROGRAM
    folder = tmp_path_factory.mktemp("label-studio")
    command = [
        PROGRAM, "start", "--no-browser", "--data-dir", str(folder), "--port", str(PORT),
        "--internal-host", "127.0.0.1",
        "--username", "test@example.org", "--password", "a-long-password", "--user-token", TOKEN,
        "--enable-legacy-api-token",
    ]  # fmt: skip
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "COLLECT_ANALYTICS": "False",
        "LATEST_VERSION_CHECK": "False",
        "SENTRY_DSN": "",
        "FRONTEND_SENTRY_DSN": "",
        "ML_BLOCK_LOCAL_IP": "False",  # the backend, and the events for it, go to localhost
        "SSRF_PROTECTION_ENABLED": "False",
    }
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=folder)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            return call("GET", "/api/current-user/whoami", timeout=5)["email"] == "test@example.org"
        except OSError:
            return False

    try:
        until(answers, seconds=300)
        yield log
    finally:
        process.kill()
        process.wait()


def regions(result: list[dict]) -> set[tuple[int, int, str]]:
    return {(r["value"]["start"], r["value"]["end"], r["value"]["labels"][0]) for r in result}


def test_predictions_appear_in_label_studio(label_studio: Path, tiny_model: Path, pipeline: Pipeline, tmp_path: Path):
    environment = {"NESTREE_API_KEY": "s3cret"}
    with running(tiny_model, tmp_path / "log", **environment) as server:
        config = label_config(tiny.LABELS)
        project = call("POST", "/api/projects", {"title": "nestree", "label_config": config})
        call("POST", f"/api/projects/{project['id']}/import", [{"text": text} for text in TEXTS])
        backend = {
            "url": f"http://127.0.0.1:{server.port}/label-studio",
            "project": project["id"],
            "title": "nestree",
            "is_interactive": True,
            "auth_method": "BASIC_AUTH",
            "basic_auth_user": "label-studio",
            "basic_auth_pass": "wrong",
        }
        with pytest.raises(AssertionError, match="authentication"):
            call("POST", "/api/ml/", backend)
        backend["basic_auth_pass"] = "s3cret"
        backend = call("POST", "/api/ml/", backend)
        assert call("GET", f"/api/ml/{backend['id']}")["readable_state"] == "Connected"
        assert call("GET", f"/api/ml/{backend['id']}/versions") == {"versions": [tiny_model.name]}
        tasks = call("GET", f"/api/tasks?project={project['id']}&fields=all")["tasks"]
        body = {"ordering": [], "selectedItems": {"all": True, "excluded": []}}
        call("POST", f"/api/dm/actions?id=retrieve_tasks_predictions&project={project['id']}", body)

        def predictions() -> dict[str, Any]:
            found = call("GET", f"/api/predictions?project={project['id']}")
            texts = {task["id"]: task["data"]["text"] for task in tasks}
            return {texts[each["task"]]: each for each in found}

        until(lambda: len(predictions()) == 2)
        for text, prediction in predictions().items():
            expected = {(e.start, e.end, label) for e in pipeline(text).entities for label in e.labels}
            assert regions(prediction["result"]) == expected
            assert prediction["model_version"] == tiny_model.name

        # a prediction is accepted, and the project exported
        accepted = predictions()[TEXTS[1]]
        call("POST", f"/api/tasks/{accepted['task']}/annotations/", {"result": accepted["result"]})
        exported = write_text(
            tmp_path / "export.json", json.dumps(call("GET", f"/api/projects/{project['id']}/export?exportType=JSON"))
        )
        (document,) = formats.read(exported, "label-studio")
        found = {(e.start, e.end, label) for e in document.entities for label in e.labels}
        assert found == regions(accepted["result"])

        # interactive: a region is drawn
        text, task = TEXTS[0], next(task["id"] for task in tasks if task["data"]["text"] == TEXTS[0])
        start, end = text.index("the mayor"), text.index(" of")
        value = {"start": start, "end": end, "text": text[start:end], "labels": ["PER"]}
        drawn = {"id": "a1", "from_name": "label", "to_name": "text", "type": "labels", "value": value}
        context = {"task": task, "context": {"result": [drawn]}}
        answer = call("POST", f"/api/ml/{backend['id']}/interactive-annotating", context)
        given = pipeline(text, known=[(start, end, "PER")])
        expected = {(e.start, e.end, e.label) for e in given.entities if (e.start, e.end) != (start, end)}
        assert regions(answer["data"]["result"]) == expected
        status = server.request("GET", "/metrics", Authorization="Bearer s3cret")[1]
        assert 'path="/label-studio/predict",status="200"' in status
