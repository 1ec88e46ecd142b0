"""Options and fixtures of the whole suite."""

import importlib.util
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from nestree.model import Recognizer
from tests import tiny

settings.register_profile("no deadline", deadline=None)  # tests never assert on time
settings.load_profile("no deadline")
ROOT = Path(__file__).resolve().parent.parent


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell nobody hears Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    default = str(ROOT.parent / "shared")
    parser.addoption("--shared", metavar="DIR", default=default, help="real data (default: ../shared)")


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    """Sums depend on them, to the last bit: no test may leave others behind."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture
def record_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """record_calls(owner, name, describe): from now on, `describe(*arguments)` of every call of this method."""

    def record(owner: object, name: str, describe: Callable[..., Any]) -> list[Any]:
        method, calls = getattr(owner, name), []

        def recorded(*args: Any, **options: Any) -> Any:
            calls.append(describe(*args))
            return method(*args, **options)

        monkeypatch.setattr(owner, name, recorded)
        return calls

    return record


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Path:
    """The folder of real data; tests that ask for it are skipped where it is absent."""
    folder = Path(request.config.getoption("--shared"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; name its folder with --shared DIR")
    return folder


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of a bucket on an S3 server of this machine, which processes find through their environment."""
    pytest.importorskip("moto")
    fs = pytest.importorskip("pyarrow.fs")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    environment = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_DEFAULT_REGION": "us-east-1"}
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
    ):
        try:
            for name, value in {**environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
                patch.setenv(name, value)
            while server.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            endpoint = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
            fs.S3FileSystem(allow_bucket_creation=True, **endpoint).create_dir("bucket")
            yield "s3://bucket"
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def tiny_encoders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_encoders(family): the directory of an encoder with random weights. Not to be changed."""
    folder = tmp_path_factory.mktemp("tiny")
    return cache(lambda family: tiny.encoder(folder / family / "encoder", family))


@pytest.fixture(scope="session")
def tiny_encoder(tiny_encoders: Callable[[str], Path]) -> Path:
    return tiny_encoders("bert")


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the eight sentences. Not to be changed."""
    from nestree.data import formats

    path = tmp_path_factory.mktemp("tiny_data") / "data.jsonl"
    formats.write(tiny.DOCUMENTS, path)
    return path


@pytest.fixture(scope="session")
def learned(tiny_encoder: Path) -> Recognizer:
    """A model that has learned eight sentences, well enough to find something. Not to be changed."""
    return tiny.learned(tiny_encoder)


@pytest.fixture(scope="session")
def tiny_model(learned: Recognizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of this model. Not to be changed."""
    from nestree import checkpoint

    folder = tmp_path_factory.mktemp("tiny_model") / "model"
    checkpoint.save(learned, folder)
    return folder


@pytest.fixture(scope="session")
def small_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with weights in 8 bits, with which some processors also read in 8 bits. Not to be changed."""
    from nestree import checkpoint

    folder = tmp_path_factory.mktemp("small_model") / "model"
    checkpoint.quantize(tiny_model, folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        why = "no CUDA device"
    elif importlib.util.find_spec("triton") is None:
        why = "triton is not installed"
    else:
        return
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=why))
