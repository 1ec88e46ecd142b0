"""Ray: real clusters of two nodes, killed for real. `python -m benchmarks.ray kill` is the long form."""

import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from nestree.errors import InputError
from tests import tiny
from tests.cli.run import nestree, process, refuse, succeed
from tests.integrations.mortal_worker import make_workers_mortal

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks.ray import COMMAND, compare, log_entries, outputs, run_killed, two_nodes  # noqa: E402
from nestree.data.object_store import ObjectStore  # noqa: E402
from nestree.integrations.ray import Recognize, entities_type, put_model, start_ray  # noqa: E402
from nestree.pipeline import load  # noqa: E402
from tests.cli.test_object_store import objects  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and its dependencies
ROOT = Path(__file__).parents[2]
TEXTS = ["The mayor of Lisbon met the president.", "Police in Oslo arrested him. She left.", "It rained."]


@pytest.fixture(scope="module")
def cluster(s3):
    """Two nodes with one CPU each, which know the S3 server. Commands in this process use it."""
    with two_nodes() as nodes:
        workers = {"worker_process_setup_hook": make_workers_mortal, "env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(nodes.address, log_to_driver=False, logging_level="CRITICAL", runtime_env=workers)
        yield nodes
        ray.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Small files, one without a word, and one that is too large for one worker."""
    folder = tmp_path_factory.mktemp("ray") / "texts"
    folder.mkdir()
    draw = random.Random(5)
    sentences = [" ".join(s.words) for s in tiny.SENTENCES]
    for number in range(30):
        text = ". ".join(draw.choices(sentences, k=draw.randrange(1, 9)))
        (folder / f"{number:02}.txt").write_text(f"{text}.\n")
    (folder / "blank.txt").write_text("\n")
    with open(folder / "large.jsonl", "w") as file:
        for number in range(500):
            text = ". ".join(draw.choices(sentences, k=draw.randrange(1, 5))) + "."
            file.write(json.dumps({"text": text, "doc_id": str(number)}) + "\n")
    return folder


@pytest.fixture(scope="module")
def expected(tiny_model, source, tmp_path_factory) -> dict[str, bytes]:
    """What the command without Ray writes, in another process, on two threads."""
    out = tmp_path_factory.mktemp("local") / "out"
    done = process("predict", source, "--out", out, *options(tiny_model), env={"OMP_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
    return outputs(out)


def options(model: Path) -> list[object]:
    return ["--model", model, "--device", "cpu", "--batch-words", "200"]


def test_addresses_that_do_not_answer(tiny_model, source, tmp_path):
    for address in ("127.0.0.1:9", "no.such.host.invalid:6379"):
        with pytest.raises(InputError, match=f"^no Ray cluster answers at {address}: "):
            start_ray(address, workers=0)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # which is not a cluster
        Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(InputError, match="another program listens there"):
            start_ray(f"127.0.0.1:{server.server_port}", workers=0)
    arguments = ["predict", source, "--out", tmp_path / "out", "--model", tiny_model]
    for address in ("head", "ray://127.0.0.1:9", ""):
        assert f"--ray {address}: this is no address" in refuse(*arguments, f"--ray={address}")
    assert not (tmp_path / "out").exists()


def test_the_bytes_are_those_of_the_local_command(cluster, tiny_model, source, expected, tmp_path):
    out = tmp_path / "out"
    done = succeed("predict", source, "--out", out, *options(tiny_model), "--ray")
    assert outputs(out) == expected
    assert "of 32 files; " in done.stderr
    done = nestree("predict", source, "--out", out, *options(tiny_model), "--ray", "--resume")
    assert "(32 done before)" in done.stderr


def test_one_worker_that_does_not_see_the_folders(cluster, tiny_model, source, expected, tmp_path, monkeypatch):
    """It answers that the files are not there; the documents are sent to it."""
    from nestree.integrations import ray as integration

    monkeypatch.setattr(integration, "lock_owner", lambda path: " (of a machine far away)")
    command = ["predict", source, "--out", tmp_path / "out", *options(tiny_model)]
    succeed(*command, "--ray", "--workers", "1")
    assert outputs(tmp_path / "out") == expected


def test_workers_write_to_an_object_store(cluster, s3, tiny_model, source, expected, monkeypatch):
    """Each small file by the worker that read it; what this process writes is the log, and the large file."""
    uploads = []
    upload = ObjectStore.upload
    monkeypatch.setattr(ObjectStore, "upload", lambda *args: uploads.append(args) or upload(*args))
    arguments = ["predict", source, "--out", f"{s3}/ray", *options(tiny_model), "--ray"]
    succeed(*arguments)
    assert objects(f"{s3}/ray") == expected
    assert sum(len(args) == 2 for args in uploads) == 1  # others are logs, which have names
    assert "(32 done before)" in nestree(*arguments, "--resume").stderr


def test_brat_files_of_long_names(cluster, tiny_model, tmp_path):
    """Workers that write at the same time do not share a temporary folder."""
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(12):
        (source / f"annual report of the department of finance {number}.txt").write_text(TEXTS[number % 3])
    arguments = ["predict", source, *options(tiny_model), "--to", "brat", "--out"]
    succeed(*arguments, tmp_path / "local")
    succeed(*arguments, tmp_path / "ray", "--ray")
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "local")


@pytest.mark.parametrize("victim", ["actor", "node", "driver"])
def test_killed_and_resumed(cluster, tiny_model, source, expected, tmp_path, victim):
    draw = random.Random(victim)
    out = tmp_path / "out"
    moment = draw.randrange(1, 32)  # files that are done
    arguments = [source, *options(tiny_model)]
    row = run_killed(victim, cluster, arguments, out, lambda: len(log_entries(out)) >= moment, draw)
    assert row["killed"], row
    assert row["code"] == 0, row
    assert compare(out, expected) == {"lost": 0, "doubled": 0, "identical": True}


def test_poison_fails_alone(cluster, tiny_model, tmp_path):
    """10 MB without a space, half a surrogate pair, NUL, broken JSON, and a document that kills its worker."""
    source, clean = tmp_path / "in", tmp_path / "clean"
    bad = ["x" * 10_000_000, "\ud800 Oslo", "Oslo \0 Lisbon"]
    lines = [json.dumps({"text": text}) for text in (TEXTS[0], *bad, TEXTS[1])]
    for folder in (source, clean):
        folder.mkdir()
        (folder / "a.txt").write_text(TEXTS[0])
        (folder / "b.txt").write_text(TEXTS[1])
        (folder / "c.txt").write_bytes(b"Oslo \xff")
        (folder / "d.jsonl").write_text("\n".join([*lines, "{"]))
        killer = [json.dumps({"text": "Killer of Oslo."})] * (folder is source)
        (folder / "e.jsonl").write_text("\n".join([lines[0], *killer, lines[-1]]))
    how = [*options(tiny_model), "--skip-bad"]
    assert nestree("predict", clean, "--out", tmp_path / "expected", *how).exit_code == 1
    done = nestree("predict", source, "--out", tmp_path / "out", *how, "--ray")
    assert done.exit_code == 1
    why = f"{source / 'e.jsonl'}, document 2: it was left out, because its worker died 3 times over it, perhaps for "
    assert done.stderr.splitlines()[-1] == f"  {why}lack of memory."
    assert "4 skipped:" in done.stderr, done.stderr
    found, expected = outputs(tmp_path / "out"), outputs(tmp_path / "expected")
    for name in ("a.jsonl", "b.jsonl", "d.jsonl"):
        assert found[name] == expected[name]
    texts = [json.loads(line)["text"] for line in found["d.jsonl"].splitlines()]
    assert texts == [TEXTS[0], bad[0], bad[2], TEXTS[1]]
    assert [json.loads(line)["text"] for line in found["e.jsonl"].splitlines()] == TEXTS[:2]


def as_rows(model: Path, text: str) -> list[dict]:
    rows = []
    for e in load(model, "cpu")(text):
        place = {"start": e.start, "end": e.end, "head_start": e.head.start, "head_end": e.head.end}
        for label, score in zip(e.labels, e.scores, strict=True):
            row = {"label": label, "score": pytest.approx(score, abs=1e-5), "depth": e.depth}
            rows.append({**place, **row})
    return rows


def test_ray_data(cluster, tiny_model, tmp_path):
    """Parquet, JSON lines and text in; Parquet and JSON lines out; the model is gone from the disk meanwhile."""
    rows = [{"text": text, "id": number} for number, text in enumerate([*TEXTS, "", None])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    recognize = {"fn_constructor_args": [put_model(tiny_model)], "batch_format": "pyarrow", "batch_size": 2}
    recognize |= {"num_cpus": 1, "compute": ray.data.ActorPoolStrategy(size=1)}
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_parquet(str(tmp_path / "in.parquet"))
    data = data.union(ray.data.read_json(str(tmp_path / "in.jsonl")))
    data.map_batches(Recognize, **recognize).write_parquet(str(tmp_path / "parquet"))
    found = pq.read_table(tmp_path / "parquet")
    assert found.schema.field("entities").type == entities_type()
    assert found.schema.field("error").type == pa.string()
    expected = [as_rows(tiny_model, text) for text in TEXTS]
    by_id = sorted(found.to_pylist(), key=lambda row: row["id"])
    assert [row["entities"] for row in by_id] == [x for rows in [*expected, [], None] for x in (rows, rows)]
    assert "a text must be a string" in by_id[-1]["error"]
    assert {row["error"] for row in by_id[:8]} == {None}
    lines = ray.data.read_text(str(tmp_path / "in.txt")).map_batches(Recognize, **recognize)
    lines.write_json(str(tmp_path / "json"))
    rows = [json.loads(x) for path in (tmp_path / "json").iterdir() for x in path.read_text().splitlines()]
    assert sorted(row["text"] for row in rows) == sorted(TEXTS)
    assert all(row["entities"] == as_rows(tiny_model, row["text"]) for row in rows)


def test_recognize_words_and_other_batches(tiny_model, cluster):
    """Outside an actor, `Recognize` is a function of batches."""
    recognize = Recognize(tiny_model, device="cpu", labels=["GPE"], threshold=0.1)
    table = recognize({"words": [["Oslo", "Lisbon"], ["", "x"]], "id": [1, 2]})
    assert table.column_names == ["words", "id", "entities", "error"]
    first, second = table.to_pylist()
    (sentence,) = load(tiny_model, "cpu").words([["Oslo", "Lisbon"]], labels=["GPE"], threshold=0.1)
    assert [(e["start"], e["end"], e["label"], e["head_start"], e["head_end"]) for e in first["entities"]] == [
        (e.start, e.end, "GPE", e.head, e.head + 1) for e in sentence.entities
    ]
    assert sentence.entities
    assert second["entities"] is None
    assert "is empty" in second["error"]
    wrong = recognize({"words": ["Oslo", "Lisbon"], "error": [np.eye(2), np.eye(2)]}).to_pylist()
    assert [row["entities"] for row in wrong] == [None, None]
    assert wrong[0]["error"] == "words are 'Oslo'; they must be a list of words."
    surrogate = recognize({"text": ["\ud800 Oslo", "Lisbon"]})
    assert surrogate.to_pylist()[1]["entities"]
    with pytest.raises(Exception, match="'text' or 'words' is missing"):
        recognize({"body": ["Oslo"]})


def run_patched(patch: str, *arguments: object, cwd: Path) -> str:
    """The sentence with which the command, in a process where Ray was changed, refuses to work."""
    code = f"import ray, functools; {patch}; from nestree.cli import app; app()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    *notes, error = done.stderr.splitlines()
    assert all(note.startswith("Done: 0 of ") for note in notes), done.stderr
    return error.removeprefix("Error: ")


def test_other_versions_and_workers_without_the_package(cluster, tiny_model, source, tmp_path):
    arguments = ["predict", source, "--out", tmp_path / "out", "--model", tiny_model]
    arguments += ["--ray", cluster.address]
    here = f"Ray {ray.__version__} and Python {platform.python_version()}"
    assert run_patched("ray.__version__ = '1.2.3'", *arguments, cwd=tmp_path) == (
        f"the cluster at {cluster.address} runs {here}, this machine {here.replace(ray.__version__, '1.2.3')}. "
        "Install the same versions."
    )
    missing = "raise ModuleNotFoundError(\"No module named 'nestree'\", name='nestree')"
    (tmp_path / "nestree.py").write_text(missing)
    without = f"ray.init = functools.partial(ray.init, runtime_env={{'env_vars': {{'PYTHONPATH': {str(tmp_path)!r}}}}})"
    repository = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})"
    assert run_patched(f"{repository}; {without}", *arguments, cwd=tmp_path / "..").startswith(
        "a worker of the cluster has no package nestree. Install nestree"
    )


def test_ray_starts_here_and_says_nothing(tiny_model, source, expected, tmp_path):
    """The terminal shows the summary alone, even if a worker dies."""
    out = tmp_path / "out"
    command = [source, "--out", out, *options(tiny_model), "--ray", "--workers", "2"]
    command = [*COMMAND, *map(str, command)]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while driver.poll() is None and len(log_entries(out)) < 3:
        time.sleep(0.01)
    assert driver.poll() is None, driver.communicate()
    raylets = [pid for pid in children(driver.pid) if "raylet/raylet" in command_line(pid)]
    assert len(raylets) == 1
    started = [*children(driver.pid), *children(raylets[0])]
    workers = [pid for pid in started if command_line(pid).startswith("ray::Worker")]
    os.kill(workers[0], signal.SIGKILL)
    said = driver.communicate()[1]
    assert driver.returncode == 0
    (summary,) = [line for line in said.splitlines() if "/32 files  " not in line]  # of progress
    assert summary.endswith("s, loading included")
    assert outputs(out) == expected


def test_the_cluster_ends(tiny_model, source, expected, tmp_path):
    """The command says so and how to go on, before Ray ends it."""
    folder, out = tmp_path / "texts", tmp_path / "out"
    shutil.copytree(source, folder)
    for number in range(12):  # so that the command is not done before its cluster ends
        shutil.copyfile(source / "large.jsonl", folder / f"more-{number}.jsonl")
    expected = expected | {f"more-{number}.jsonl": expected["large.jsonl"] for number in range(12)}
    command = [*COMMAND, folder, "--out", out, *options(tiny_model)]
    driver = subprocess.Popen([*map(str, command), "--ray"], stderr=subprocess.PIPE, text=True)
    raylets: list[int] = []
    while not raylets and driver.poll() is None:
        raylets = [pid for pid in children(driver.pid) if "raylet/raylet" in command_line(pid)]
    while driver.poll() is None and not log_entries(out):
        time.sleep(0.001)
    workers = [pid for pid in children(raylets[0]) if command_line(pid).startswith("ray::")]
    for worker in workers:  # nor before it notices
        os.kill(worker, signal.SIGSTOP)
    os.kill(raylets[0], signal.SIGKILL)
    driver.wait(timeout=300)
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    said = driver.communicate()[1]
    assert driver.returncode == 2, said
    assert "Continue with the same command and --resume.\nError: Ray does not answer any more" in said
    assert process(*command[len(COMMAND) - 1 :], "--resume").returncode == 0
    assert outputs(out) == expected


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found
