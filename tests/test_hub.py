"""Models by name, there and back through a hub that the test plays; no network is ever asked."""

import base64
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import torch

from nestree import checkpoint, hub
from nestree.errors import InputError, ModelError
from nestree.model import Recognizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """As much of a hub as `huggingface_hub` asks for when it puts a model there and fetches it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, dict[str, bytes]] = {}  # of each model
        self.asked: list[str] = []  # methods and paths
        self.tokens: set[str | None] = set()  # of what changes something
        self.created: list[dict] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Silence."""

    def answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: object, code: int = 200, **headers: str) -> None:
        self.answer(json.dumps(value).encode(), code, Content_Type="application/json", **headers)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.note()
        if self.path == "/api/repos/create":
            value = json.loads(body)
            self.server.created.append(value)
            name = f"{value.get('organization') or 'me'}/{value['name']}"
            self.server.files.setdefault(name, {})
            self.json({"url": f"{self.server.address}/{name}", "id": name, "name": name})
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            how = {"uploadMode": "regular", "shouldIgnore": False}
            files = [{**each, **how} for each in json.loads(body)["files"]]
            self.json({"files": files})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[found[1]][line["value"]["path"]] = content
            self.json({"commitUrl": f"{self.server.address}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.json({"valid": True})

    def do_GET(self) -> None:
        self.note()
        path = self.path.partition("?")[0]
        for name, files in self.server.files.items():
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                names = [{"rfilename": file} for file in files]
                return self.json({"id": name, "sha": COMMIT, "siblings": names, "tags": [], "private": False})
            if path == f"/api/models/{name}/tree/{COMMIT}":
                sizes = {file: (len(content), etag(content)) for file, content in files.items()}
                listed = [{"path": file, "size": size, "oid": id} for file, (size, id) in sizes.items()]
                return self.json([{"type": "file", **each} for each in listed])
            for file, content in files.items():
                if path == f"/{name}/resolve/{COMMIT}/{file}":
                    return self.answer(content, ETag=f'"{etag(content)}"', X_Repo_Commit=COMMIT)
        return self.json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def note(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        if self.path.endswith(("/create", "/commit/main")):
            self.server.tokens.add(self.headers.get("Authorization"))


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def stub(monkeypatch, tmp_path) -> Iterator[Hub]:
    """A hub on this machine, and a cache of its own."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    url = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def names(paths, folder):
    return {path.relative_to(folder).as_posix() for path in paths if path.is_file()}


def test_there_and_back(tiny_model, tmp_path, stub):
    run = shutil.copytree(tiny_model, tmp_path / "run")
    (run / "training").mkdir()
    (run / "training" / "log.jsonl").write_text("{}\n")
    (run / ".hidden").write_text("mine")
    (run / "manifest.json").unlink()  # as of a run that is under way
    address = hub.push(run, "me/model", private=True, token="hf_secret", message="first")
    assert address.endswith(COMMIT)
    assert stub.created[0].get("visibility") == "private" or stub.created[0]["private"]
    assert stub.tokens == {"Bearer hf_secret"}
    sent = stub.files["me/model"]
    assert sent.keys() == names(checkpoint.model_files(tiny_model), tiny_model)
    assert not [name for name in sent if name.startswith("training")]

    folder = hub.resolve("me/model", token="hf_secret")
    assert names(folder.rglob("*"), folder) == sent.keys()
    before, after = checkpoint.load(tiny_model).state_dict(), checkpoint.load(folder).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_was_fetched_is_found_without_a_network(tiny_model, stub):
    hub.push(str(tiny_model), "me/model")
    folder = hub.resolve("me/model")
    asked = len(stub.asked)
    assert hub.resolve("me/model") == folder
    assert not [path for path in stub.asked[asked:] if "/resolve/" in path]  # nothing is fetched twice
    stub.shutdown()
    stub.server_close()
    assert hub.resolve("me/model") == folder
    with pytest.raises(ModelError, match=r"me/other is not a folder here, and cannot be fetched .*network"):
        hub.resolve("me/other")


def test_other_files_are_not_fetched(tiny_model, stub):
    hub.push(tiny_model, "me/model")
    others = ["pytorch_model.bin", "modeling.py", "model.safetensors"]
    inner = ["modeling.py", "tokenizer.pkl", "training_args.bin", "spiece.model", "merges.txt"]
    stub.files["me/model"] |= dict.fromkeys((*others, *(f"encoder/{name}" for name in inner)), b"x")
    folder = hub.resolve("me/model")
    whole = names(checkpoint.model_files(tiny_model), tiny_model)
    assert names(folder.rglob("*"), folder) == whole | {"encoder/spiece.model", "encoder/merges.txt"}


def test_as_methods_of_a_model(tiny_model, stub, tmp_path):
    model = Recognizer.from_pretrained(tiny_model)
    model.card = "# A card of mine\n"
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "README.md").read_text() == "# A card of mine\n"
    assert model.push_to_hub("me/again", token="t").endswith(COMMIT)
    again = Recognizer.from_pretrained("me/again", revision="main")
    assert again.labels == model.labels
    assert again.card == model.card
    assert not again.training
    ours, theirs = model.state_dict(), again.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(InputError, match=r"there is no device 'foo'\. Choose one of auto"):
        Recognizer.from_pretrained(tiny_model, device="foo")


def test_a_folder_wins_and_needs_no_hub(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = lambda *_, **__: pytest.fail("the hub was asked")  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", asked)
    assert hub.resolve(tiny_model) == hub.resolve(str(tiny_model)) == tiny_model
    shutil.copytree(tiny_model, tmp_path / "me" / "model")
    assert hub.resolve("me/model") == Path("me/model")
    assert hub.resolve("gum-minilm") == hub.resolve(None) == checkpoint.bundled_model()
    (tmp_path / "gum-minilm").mkdir()
    assert hub.resolve("gum-minilm") == Path("gum-minilm")  # one's own comes first
    for name in ("absent", "./absent", "/absent/model", "a/b/c", "../me/absent", "a b/c"):
        with pytest.raises(ModelError, match=r"does not exist\. Name a directory .*, or OWNER/NAME"):
            hub.resolve(name)
    for name in (5, b"box", ["a/b"], ""):
        with pytest.raises(ModelError, match="a model is named by a folder, gum-minilm or OWNER/NAME"):
            hub.resolve(name)


def test_what_the_hub_refuses_and_other_models_of_the_hub(stub):
    with pytest.raises(ModelError, match=r"me/nothing is not a folder here, and .*fetched .*: \S") as error:
        hub.resolve("me/nothing")
    assert "\n" not in str(error.value)
    stub.files["me/bert"] = {"config.json": b"{}", "README.md": b"# BERT"}
    with pytest.raises(ModelError, match=r"me/bert on the hub is not a nestree model: it has no labels.json"):
        hub.resolve("me/bert")


def test_half_a_model_is_not_put_there_and_a_hub_may_be_out_of_reach(tiny_model, tmp_path, stub):
    half = shutil.copytree(tiny_model, tmp_path / "half")
    (half / "weights.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights.safetensors"):
        hub.push(half, "me/half")
    assert stub.asked == []
    stub.shutdown()
    stub.server_close()
    with pytest.raises(ModelError, match=r"could not be uploaded to the hub as me/model: .*hf auth login"):
        hub.push(tiny_model, "me/model")
