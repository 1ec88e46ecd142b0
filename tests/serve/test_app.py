"""The application: answers equal those of the library, limits, access, headers."""

import base64
import json
import logging
import re
import threading

import pytest

import nestree
from nestree.pipeline import Pipeline
from nestree.serve import ServeOptions, create_app
from tests import tiny
from tests.serve.conftest import TestClient, until

TEXTS = [
    " ".join(tiny.SENTENCES[0].words) + ".",
    "",
    "😀 fans of the club in the north of Oslo sang. She left the Bank of Portugal \U0001f1f5\U0001f1f9.",
]


def post(client: TestClient, body: object, path: str = "/v1/entities", **headers: str):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers={"content-type": "application/json", **headers})


def error_of(response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert set(error) == {"code", "message"}
    return error["message"]


def rounded(value: object) -> object:
    """JSON with its floats in five digits."""
    return json.loads(json.dumps(value), parse_float=lambda number: round(float(number), 5))


def test_documents_equal_those_of_the_library(client: TestClient, pipeline: Pipeline):
    answer = post(client, {"texts": TEXTS}).json()
    expected = [pipeline(text).to_dict() for text in TEXTS]
    assert answer.keys() == {"model", "documents"}
    assert answer["model"] == "tiny"
    assert rounded(answer["documents"]) == rounded(expected)  # in one batch
    assert sum(len(document["entities"]) for document in expected) > 3
    text, document = TEXTS[0], pipeline(TEXTS[0])
    for options in ({"threshold": 0.9}, {"threshold": {"PER": 0.0}, "labels": ["PER", "GPE"]}, {"labels": []}):
        expected = [pipeline(text, **options).to_dict()]
        assert post(client, {"texts": [text], **options}).json()["documents"] == expected
    constraints = {"known": [(4, 9, "LOC", [4, 9])], "forbidden": [(13, 19), (0, 9, "GPE")]}
    given = pipeline(text, **constraints)
    spans = {name: [[], values] for name, values in constraints.items()}
    free, constrained = post(client, {"texts": [text, text], "trees": True, **spans}).json()["documents"]
    assert rounded(constrained) == rounded({**given.to_dict(), "tree": given.tree.to_dict()})  # another batch
    assert (4, 9, "LOC") in [(e["start"], e["end"], e["label"]) for e in constrained["entities"]]
    assert rounded(free) == rounded({**document.to_dict(), "tree": document.tree.to_dict()})
    assert len(free["tree"]["constituents"]) == 2 * len(document.words) - 1


def test_a_text_that_cannot_be_read_fails_alone(client: TestClient, pipeline: Pipeline):
    known = [[], [[0, 99]], [[0, 9, "PER"], [4, 12, "PER"]], [[0, 9]]]
    documents = post(client, {"texts": [TEXTS[0]] * 4, "known": known}).json()["documents"]
    assert rounded(documents[0]) == rounded(pipeline(TEXTS[0]).to_dict())
    assert documents[1]["error"]["message"].startswith("known (0, 99) ends after the text")
    assert "cross" in documents[2]["error"]["message"]
    assert documents[3] == pipeline(TEXTS[0], known=[(0, 9)]).to_dict()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "EOF"),
        (b'{"texts": ["a"', "EOF"),
        (b"[" * 100_000, "recursion"),
        (b'{"texts": ["a"], "threshold": ' + b"[" * 100_000, "recursion"),
        (b'{"texts": ["\\ud800"]}', "hex escape"),
        (b'{"texts": ["\xff"]}', "unicode"),
        (b'{"texts": ["a"], "threshold": NaN}', "threshold is nan"),
        (b'{"texts": ["a"], "threshold": 2}', "threshold is 2"),
        (b'{"texts": ["a"], "threshold": [1]}', "threshold is [1]"),
        (b'{"texts": ["a"], "threshold": {"nobody": 0.5}}', "no label 'nobody'"),
        (b'{"texts": ["a"], "labels": ["nobody"]}', "no label 'nobody'"),
        (b'{"texts": "a"}', 'texts is "a"'),
        (b'{"texts": [1]}', "texts[0] is 1"),
        (b'{"texts": ["a"], "known": [[], []]}', "known has 2 lists"),
        (b'{"texts": ["a"], "known": [[7]]}', "known[0][0] is 7"),
        (b'{"texts": ["a"], "tress": true}', "tress is true"),
        (b'{"texts": ["a"], "trees": 1}', "trees is 1"),
        (b'{"texts": ["a"], "known": [[[' + b"9" * 5_000 + b", 1]]]}", ""),
        (b"7", "The body is 7"),
    ],
)
def test_invalid_bodies(client: TestClient, body: bytes, message: str):
    response = post(client, body)
    if response.status_code == 200:
        assert message == ""  # the error of the text
        assert "error" in response.json()["documents"][0]
    else:
        assert message in error_of(response, 422, "invalid")
    assert post(client, {"texts": ["a"]}).status_code == 200


def test_content_types_paths_and_methods(client: TestClient):
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    latin = {"content-type": "application/json; charset = ISO-8859-1"}
    for headers in ({"content-type": "text/plain"}, {"content-type": ""}, packed, latin):
        response = client.post("/v1/entities", content=b"{}", headers=headers)
        assert "application/json" in error_of(response, 415, "wrong_content_type")
    assert client.post("/v1/entities", json={"texts": []}, headers={"content-encoding": "identity"}).status_code == 200
    assert "/nowhere" in error_of(client.get("/nowhere"), 404, "not_found")
    assert "DELETE" in error_of(client.delete("/v1/entities"), 405, "method_not_allowed")
    assert post(client, {"texts": ["a"], "trees": None, "known": None, "labels": None}).status_code == 200
    assert [client.head(path).status_code for path in ("/", "/health", "/nowhere")] == [200, 200, 404]
    assert post(client, b'\xef\xbb\xbf{"texts": ["a"]}').status_code == 200
    in_utf8 = {"content-type": 'Application/JSON;charset="UTF-8"'}
    assert client.post("/v1/entities", content=b'{"texts": ["a"]}', headers=in_utf8).status_code == 200
    for path in ("/static/../app.py", "/static/%2e%2e/app.py"):
        assert client.get(path).status_code == 404


def test_a_slash_at_the_end_of_a_path_changes_nothing(client: TestClient):
    body = {"texts": ["Ann left."]}
    answer = post(client, body, "/v1/entities/")
    assert (answer.json(), answer.history) == (post(client, body).json(), [])
    assert client.get("/health/").status_code == client.get("/").status_code == 200
    assert client.get("/static/").status_code == client.get("/static").status_code == 404


def test_limits_of_a_request(serve):
    with serve(max_body_bytes=1_000, max_request_words=50) as client:
        assert post(client, {"texts": ["a b c d e"] * 10}).status_code == 200
        without_blanks = ["a.,b.,c.,d.,e.," * 10]
        for texts in (["a b c d e"] * 10 + ["f"], [""] * 51, without_blanks):
            assert " words and texts or more" in error_of(post(client, {"texts": texts}), 413, "too_many_words")
        assert "1,000 bytes" in error_of(post(client, {"texts": ["a" * 1_000]}), 413, "body_too_large")
        assert post(client, {"texts": ["a"]}).status_code == 200
    with serve(timeout=60) as client:
        message = error_of(post(client, {"texts": ["a.b-" * 499_000]}), 413, "too_many_words")
        counted = int(re.search(r"[\d,]+", message)[0].replace(",", ""))
        assert 20_000 < counted < 200_000 < 4 * 499_000  # a part of it was split
        assert post(client, {"texts": ["x" * 300_000]}).status_code == 200  # one word
    with serve() as client:
        many = {"texts": ["the mayor"], "known": [[[0, 3]] * 2_001]}
        error_of(post(client, many), 413, "too_many_spans")


def test_information(client: TestClient, pipeline: Pipeline):
    answer = client.get("/v1/labels").json()
    assert answer["threshold"] == pipeline.model.settings.decoding.threshold
    assert [label["label"] for label in answer["labels"]] == list(pipeline.labels)
    assert set(answer["labels"][0]) == {"label", "description", "color"}
    info = client.get("/info").json()
    assert info["model"] == "tiny"
    assert info["version"] == nestree.__version__
    assert info["precision"] in ("int8", "float32")
    assert info["limits"]["max_request_words"] == 20_000
    assert client.get("/health").json() == {"status": "ok"}
    schema = client.get("/openapi.json").json()
    assert "texts" in json.dumps(schema["paths"]["/v1/entities"]["post"]["requestBody"])
    page = client.get("/docs").text
    assert [part in page for part in ("/v1/entities", "<script", "style=")] == [True, False, False]
    assert ".nestree" in client.get("/static/shared.css").text


def test_metrics_are_in_the_format_of_prometheus(serve):
    with serve() as client:
        post(client, {"texts": TEXTS})
        post(client, b"{")
        client.get("/made-up-by-a-client")
        text = client.get("/metrics").text
    sample = re.compile(r'nestree_\w+(\{(\w+="[^"\\]*",?)+\})? [0-9.e+-]+')
    for line in text.splitlines():
        assert line.startswith(("# HELP nestree_", "# TYPE nestree_")) or sample.fullmatch(line), line
    assert 'nestree_requests_total{path="/v1/entities",status="200"} 1' in text
    assert 'nestree_requests_total{path="other",status="404"} 1' in text
    assert 'nestree_rejected_total{code="invalid"} 1' in text
    assert 'nestree_batch_words_bucket{le="+Inf"} 1' in text
    assert "nestree_queue_words 0" in text


def test_headers_hosts_and_origins(client: TestClient, serve):
    for response in (client.get("/health"), client.get("/nowhere"), post(client, b"{")):
        assert response.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in response.headers
    for host in ("evil.example", "localhost.evil.example:8000", "", "[::2]:8000"):
        error_of(client.get("/health", headers={"host": host}), 400, "wrong_host")
    for host in ("127.0.0.1", "[::1]:8000", "LOCALHOST:8000"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    for origin in ("https://evil.example", "null", "http://localhost:8001", "http://["):
        error_of(post(client, {"texts": []}, origin=origin), 403, "wrong_origin")
    assert post(client, {"texts": []}, origin="http://localhost:8000").status_code == 200
    with serve(allowed_hosts=("localhost", "ner.example"), cors_origins=("https://app.example",)) as client:
        client.base_url = "http://ner.example"
        response = post(client, {"texts": []}, origin="https://app.example")
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        preflight = client.options("/v1/entities", headers=headers)
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        error_of(post(client, {"texts": []}, origin="https://evil.example"), 403, "wrong_origin")


def test_api_key(serve):
    with serve(api_key="s3crét") as client:
        basic = base64.b64encode("anyone:s3crét".encode()).decode()
        no_password = "Basic " + base64.b64encode(b"x").decode()
        for value in ("", "Bearer", "Bearer wrong", "Basic !", b"Basic \xff", no_password, "s3cret"):
            response = post(client, {"texts": []}, authorization=value)
            assert "key" in error_of(response, 401, "wrong_key")
            assert response.headers["www-authenticate"] == 'Bearer realm="nestree"'
        page = client.get("/docs", headers={"accept": "text/html"})
        assert page.headers["www-authenticate"].startswith("Basic")
        for value in (b"Bearer " + "s3crét".encode(), f"Basic {basic}".encode()):
            response = client.get("/info", headers=[(b"authorization", value)])
            assert response.status_code == 200
        for path in ("/metrics", "/info", "/v1/labels", "/label-studio/health"):
            assert client.get(path).status_code == 401
        for path in ("/health", "/ready", "/static/shared.css"):
            assert client.get(path).status_code == 200
        assert client.post("/label-studio/webhook", json={}).status_code == 200


def test_loading_and_draining_answer_503(pipeline: Pipeline):
    loaded = threading.Event()

    def load() -> Pipeline:
        loaded.wait()
        return pipeline

    app = create_app(load, ServeOptions())
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/health").status_code == 200
        for response in (client.get("/ready"), client.get("/info"), post(client, {"texts": ["a"]})):
            error_of(response, 503, "loading")
            assert response.headers["retry-after"]
        loaded.set()
        until(lambda: client.get("/ready").status_code == 200)
        app.state.service.queue.draining = True
        error_of(post(client, {"texts": ["a"]}), 503, "draining")
        error_of(client.get("/ready"), 503, "draining")
        assert client.get("/ready").headers["Connection"] == "close"  # so that clients go elsewhere at once


def test_texts_are_never_logged(serve, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    with serve() as client:
        post(client, {"texts": ["Xanadu is a secret place."]})
        post(client, {"texts": ["Xanadu"], "known": [[[0, 99]]]})
        post(client, {"texts": "Xanadu"})

        secret = "no memory for Xanadu"

        def fail(*args, **options):
            raise RuntimeError(secret)

        monkeypatch.setattr(Pipeline, "predict_documents", fail)
        answer = post(client, {"texts": ["Xanadu lies", "in Xanadu"]}).json()["documents"]
        message = "This text could not be read: RuntimeError."
        assert answer[0]["error"] == {"code": "failed", "message": message}
        monkeypatch.setattr(Pipeline, "prepare", fail)
        error_of(post(client, {"texts": ["Xanadu"]}), 500, "internal")
    assert "RuntimeError" in caplog.text
    assert "Xanadu" not in caplog.text
