"""`nestree serve` as a process: signals, kill -9, overload, broken clients."""

import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nestree.pipeline import Pipeline
from tests import tiny
from tests.serve.conftest import same, until
from tests.tiny import write_text

TEXTS = [" ".join(sentence.words) for sentence in tiny.SENTENCES]


class Process:
    """A running server and its address."""

    def __init__(self, model: Path, log: Path, *options: str, port: int = 0, **environment: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "nestree", "serve", "--model", str(model), "--port", str(port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **environment}
        with log.open("w") as file:
            command += ["--device", "cpu", "-v", *options]
            self.process = subprocess.Popen(command, stderr=file, env=environment)
        try:
            until(lambda: self.process.poll() is not None or "Serving" in log.read_text())
            self.port = int(re.search(r"Serving \S+ at http://[^:]+:(\d+)", log.read_text())[1])
            until(lambda: self.process.poll() is not None or self.get("/ready")[0] == 200)
        except BaseException:
            self.kill()
            raise

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        return response.status, json.loads(content) if content.startswith((b"{", b"[")) else content.decode()

    def get(self, path: str) -> tuple[int, Any]:
        return self.request("GET", path)

    def entities(self, *texts: str) -> tuple[int, Any]:
        body = json.dumps({"texts": texts}).encode()
        return self.request("POST", "/v1/entities", body, **{"Content-Type": "application/json"})

    def send(self, data: bytes, seconds: float = 20) -> bytes:
        """The answer to raw bytes, to the end of the connection or of its first answer."""
        with socket.create_connection(("127.0.0.1", self.port), seconds) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            answer = b""
            with suppress(ConnectionResetError):
                while chunk := connection.recv(65536):
                    answer += chunk
                    if answer.endswith(b"}}"):
                        break
        return answer

    def gauge(self, name: str) -> float:
        return float(re.search(rf"^nestree_{name} (\S+)$", self.get("/metrics")[1], re.MULTILINE)[1])

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(*arguments: Any, **options: Any) -> Iterator[Process]:
    server = Process(*arguments, **options)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def expected(pipeline: Pipeline) -> dict[str, Any]:
    return {text: pipeline(text, trees=False).to_dict() for text in TEXTS}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(tiny_model, tmp_path_factory.mktemp("serve") / "log", "--timeout", "2") as server:
        yield server


def test_broken_clients_get_4xx_and_the_next_is_served(server: Process, expected: dict[str, Any]):
    head = b"POST /v1/entities HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    half = head + b'Content-Length: 100\r\n\r\n{"texts": ['
    for data, status in (
        (b"nonsense\r\n\r\n", b"400"),
        (head + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n", b"4"),
        (head + b"Content-Length: x\r\n\r\n", b"400"),
        (head + b"Transfer-Encoding: chunked\r\n\r\nnonsense", b"4"),
        (b"POST /v1/entities HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"400"),
        (half, b"408"),
    ):
        answer = server.send(data)
        assert answer.startswith(b"HTTP/1.1 " + status), (data[:80], answer[:200])
        assert same(server.entities(TEXTS[0])[1]["documents"], [expected[TEXTS[0]]])
    for data in (half, half[:60], head + b"Content-Length: 20\r\n\r\n" + b'{"texts": ["a b c"]}'):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(data)  # and away
        assert same(server.entities(TEXTS[1])[1]["documents"], [expected[TEXTS[1]]])
    with socket.create_connection(("127.0.0.1", server.port)) as slow:  # never reads its answers
        body = json.dumps({"texts": TEXTS * 20, "trees": True}).encode()
        slow.sendall((head + b"Content-Length: %d\r\n\r\n" % len(body) + body) * 5)
        for _ in range(3):
            assert same(server.entities(TEXTS[2])[1]["documents"], [expected[TEXTS[2]]])
    large = b'{"texts": ["' + b"a " * 1_500_000 + b'"]}'
    status, answer = server.request("POST", "/v1/entities", large, **{"Content-Type": "application/json"})
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert server.process.poll() is None
    assert "Traceback" not in server.log.read_text()
    assert "mayor" not in server.log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux changes the limits of another process")
def test_clients_that_use_up_the_file_descriptors_wait(tiny_model: Path, tmp_path: Path):
    with running(tiny_model, tmp_path / "log") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (100, 100))
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
        until(lambda: "Too many open files: new connections wait" in server.log.read_text())
        for connection in connections:
            connection.close()
        assert server.entities(TEXTS[0])[0] == 200
        assert server.log.read_text().count("Too many open files") < 10  # each try, hundreds a second, had one
        assert "Traceback" not in server.log.read_text()


def test_sigterm_does_not_wait_for_a_body_that_never_arrives(tiny_model: Path, tmp_path: Path):
    head = b"POST /v1/entities HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with (
        running(tiny_model, tmp_path / "log", "--timeout", "3600") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent,
    ):
        silent.sendall(head + b'Content-Length: 100\r\n\r\n{"texts": [')
        assert server.entities(TEXTS[0])[0] == 200  # by now the server is reading that body
        server.process.send_signal(signal.SIGTERM)
        assert silent.recv(1000).startswith(b"HTTP/1.1 503")
        assert server.process.wait(60) == 0


def test_sigterm_answers_what_was_accepted(tiny_model: Path, tmp_path: Path, expected: dict[str, Any]):
    with running(tiny_model, tmp_path / "log", "--batch-words", "60") as server:
        texts = TEXTS * 40
        sent = threading.Barrier(9, timeout=30)
        results = []

        def call(number: int) -> None:
            body = json.dumps({"texts": texts[number:]}).encode()
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
                connection.request("POST", "/v1/entities", body, {"Content-Type": "application/json"})
                sent.wait()
                response = connection.getresponse()
                answer = json.loads(response.read())
            results.append((response.status, same(answer.get("documents", []), documents[number:])))

        documents = [expected[text] for text in texts]
        threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        sent.wait()
        until(lambda: server.gauge("queue_requests") >= 3)  # under load
        assert server.terminate() == 0
        for thread in threads:
            thread.join(60)
        assert results == [(200, True)] * 8
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")


def test_a_second_ctrl_c_ends_the_server_at_once(tiny_model: Path, tmp_path: Path):
    with running(tiny_model, tmp_path / "log", "--batch-words", "60") as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.entities, *TEXTS * 400)
        until(lambda: server.gauge("queue_requests") == 1)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert server.process.wait(60) == 130
        assert answer.exception(60) or answer.result()[0] == 500
        assert "Traceback" not in server.log.read_text()


def test_clients_that_retry_lose_nothing_when_the_server_is_killed(
    tiny_model: Path, tmp_path: Path, expected: dict[str, Any]
):
    with running(tiny_model, tmp_path / "log") as first:
        finish, give_up = threading.Event(), threading.Event()
        failures = [0]

        def call(number: int) -> int:
            done = 0
            while not finish.is_set():
                text = TEXTS[(number + done) % len(TEXTS)]
                while not give_up.is_set():
                    try:
                        status, answer = first.entities(text)
                    except (OSError, http.client.HTTPException):
                        status, answer = 0, None
                    if status == 200:
                        break
                    assert status in (0, 429, 503)
                    failures[0] += 1
                    time.sleep(0.05)
                assert same(answer["documents"], [expected[text]])
                done += 1
            return done

        with ThreadPoolExecutor(8) as pool:
            try:
                calls = [pool.submit(call, number) for number in range(8)]
                time.sleep(0.5)
                first.kill()
                with running(tiny_model, tmp_path / "second", port=first.port):
                    time.sleep(0.5)
                    finish.set()
                    assert all(call.result(60) > 1 for call in calls)
            finally:
                finish.set()
                give_up.set()
        assert failures[0] > 0


def test_overload_gives_429_and_clients_that_go_away_are_dropped(
    tiny_model: Path, tmp_path: Path, expected: dict[str, Any]
):
    options = "--max-waiting-requests", "4", "--batch-words", "20"
    with running(tiny_model, tmp_path / "log", *options) as server, ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: server.entities(*TEXTS), range(200)))
        assert {status for status, _ in answers} == {200, 429}
        for status, answer in answers:
            if status == 200:
                assert same(answer["documents"], [expected[text] for text in TEXTS])
            else:
                assert "Try again in about" in answer["error"]["message"]
        assert server.entities(TEXTS[0])[0] == 200
        assert server.gauge("queue_requests") == 0

        # clients that go away are dropped before they are predicted
        body = json.dumps({"texts": TEXTS * 60}).encode()
        head = "POST /v1/entities HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connections = []
        for _ in range(3):
            connections.append(socket.create_connection(("127.0.0.1", server.port)))
            connections[-1].sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: server.gauge("queue_requests") == 3)
        for connection in connections:
            connection.close()
        until(lambda: server.gauge("queue_requests") == 0)
        assert server.gauge("abandoned_total") > 600  # of 1,440
        assert server.terminate() == 0
        assert "exception" not in server.log.read_text()


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (["--host", "0.0.0.0"], {}, "--insecure"),
        (["--host", "0.0.0.0"], {"NESTREE_API_KEY": " "}, "NESTREE_API_KEY is empty"),
        (["--api-key-file", "/nowhere/key"], {}, "/nowhere/key"),
        (["--api-key-file", sys.executable], {}, "is empty or not printable; write one line"),
        (["--model", "/nowhere"], {}, "/nowhere does not exist"),
        (["--host", "256.0.0.1", "--insecure"], {}, "cannot listen on 256.0.0.1"),
        (["--device", "cuda:99"], {}, "PyTorch finds no cuda:99 device on this machine."),
        (["--model", "BROKEN"], {}, "Error: "),  # found while the model is loaded
    ],
)
def test_what_is_unsafe_or_impossible_is_refused(tiny_model: Path, tmp_path, options, environment, message):
    is_loaded = "BROKEN" in options
    if is_loaded:
        shutil.copytree(tiny_model, tmp_path / "broken")
        for weights in (tmp_path / "broken").rglob("*.safetensors"):
            weights.write_bytes(weights.read_bytes()[:1_000])
        options = ["--model", str(tmp_path / "broken")]
    model = [] if "--model" in options else ["--model", str(tiny_model)]
    command = [sys.executable, "-m", "nestree", "serve", *model, "--port", "0", *options]
    environment = {**os.environ, **environment}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert result.returncode == 2
    assert message in result.stderr
    assert ("Serving" in result.stderr) == is_loaded
    assert "Traceback" not in result.stderr


def test_key_of_a_file_and_port_in_use(tiny_model: Path, tmp_path: Path, server: Process):
    key = write_text(tmp_path / "key", "s3cret\n")
    with running(tiny_model, tmp_path / "log", "--host", "0.0.0.0", "--api-key-file", str(key)) as other:
        assert other.get("/info")[0] == 401
        assert other.request("GET", "/info", Authorization="Bearer s3cret")[0] == 200
    with pytest.raises(TypeError):  # no address
        Process(tiny_model, tmp_path / "again", port=server.port)
    assert "Address already in use" in (tmp_path / "again").read_text()


def test_sigterm_while_the_model_loads_ends_with_exit_code_0(tmp_path):
    log = tmp_path / "log"
    for delay in (0.0, 0.2, 0.6):
        with log.open("w") as file:
            command = [sys.executable, "-m", "nestree", "serve", "--port", "0", "--device", "cpu"]
            process = subprocess.Popen(command, stderr=file)
        until(lambda process=process: process.poll() is not None or "Serving" in log.read_text())
        time.sleep(delay)
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
