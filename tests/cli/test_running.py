"""How every command runs, as a new user meets it: in another process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nestree import __version__
from nestree.cli import app

COMMAND = [sys.executable, "-m", "nestree"]
COUNTED = Path(__file__).parent.parent / "data" / "fixtures" / "commands" / "counted.jsonl"
ENVIRONMENT = {**os.environ, "PYTHONIOENCODING": "utf-8"}


def nestree(*arguments: str | Path, **more) -> subprocess.CompletedProcess[str]:
    environment = ENVIRONMENT | more.pop("env", {})
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
        encoding="utf-8",
        env=environment,
        **more,
    )


def test_help_imports_nothing_heavy():
    """So it comes at once; how fast, only a benchmark can tell."""
    code = (
        "import sys\n"
        "from nestree.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'numba', 'safetensors', 'accelerate', 'spacy', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_tells_of_all_commands_and_exit_codes():
    said = nestree("--help").stdout
    for name in (
        "convert",
        "check",
        "stats",
        "split",
        "evaluate",
        "formats",
        "demo",
        "--version",
        "-q",
        "-v",
    ):
        assert name in said
    assert "Exit codes: 0" in said


@pytest.mark.parametrize("command", ["convert", "check", "stats", "split", "evaluate", "formats", "demo"])
def test_every_command_explains_itself(command):
    done = CliRunner().invoke(app, [command, "--help"], prog_name="nestree")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: nestree {command} ")


def test_version():
    assert nestree("--version").stdout == f"nestree {__version__}\n"


def test_completion_of_shells():
    script = (
        nestree("--show-completion", "bash") if False else nestree(env={"_NESTREE_COMPLETE": "source_bash"})
    )
    assert "complete" in script.stdout
    words = {"_NESTREE_COMPLETE": "complete_bash", "COMP_WORDS": "nestree conv", "COMP_CWORD": "1"}
    assert nestree(env=words).stdout.split() == ["convert"]
    words = {"COMP_WORDS": "nestree convert a b --from pro", "COMP_CWORD": "5"}
    assert nestree(env={"_NESTREE_COMPLETE": "complete_bash"} | words).stdout.split() == ["prodigy"]
    words = {"COMP_WORDS": "nestree convert a b --to ge", "COMP_CWORD": "5"}
    assert nestree(env={"_NESTREE_COMPLETE": "complete_bash"} | words).stdout.split() == []  # only read


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_can_be_installed(tmp_path):
    in_bash = ["bash", "-c", f'"{sys.executable}" -m nestree --install-completion; exit $?']
    done = subprocess.run(
        in_bash, env={**ENVIRONMENT, "HOME": str(tmp_path)}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_NESTREE_COMPLETE=" in text for text in written)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chekc"], "chekc"),
        (["stats"], "Missing argument"),
        (["stats", COUNTED, "--formt", "json"], "--formt"),
        (["stats", COUNTED, "--format", "xml"], "xml"),
        (["check", COUNTED, "--long-sentence", "no"], "--long-sentence"),
        (["stats", "missing.jsonl"], "Error: missing.jsonl does not exist."),
        (["stats", "-", "-", "--from", "jsonl"], "standard input can be read once"),
        (["stats", COUNTED, COUNTED], "is named twice"),
    ],
)
def test_bad_usage_is_told_in_a_sentence(arguments, said):
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_quiet_and_verbose_before_and_after_the_name_of_the_command(tmp_path):
    out = tmp_path / "a.data"

    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, str(COUNTED), str(out)])
        assert (done.exit_code, done.stdout) == (0, "")
        return done.stderr

    assert "read " in said("convert")
    for arguments in (["-q", "convert"], ["convert", "-q"], ["convert", "--quiet"]):
        assert said(*arguments) == ""
    assert "done in" not in said("convert")  # it was quiet only once
    assert "done in" in said("-v", "convert")
    assert "is written as triplets" in said("convert", "-v")


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> Path:
    """Data, with odd entities and many labels, of which every command has more to say than a pipe holds."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    entities = [
        [{"start": 0, "end": 2, "label": f"L{k}"}, {"start": 1, "end": 3, "label": "X"}] for k in range(3000)
    ]
    path.write_text(
        "".join(
            json.dumps({"doc_id": f"d{k}", "tokens": ["a", "b", "c"], "entities": e}) + "\n"
            for k, e in enumerate(entities)
        )
    )
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "BIG", "-", "--to", "jsonl"],
        ["convert", "BIG", "-", "--to", "columns"],
        ["stats", "BIG"],
        ["check", "BIG", "--all"],
        ["check", "BIG", "--format", "json"],
        ["evaluate", "BIG", "BIG"],
        ["evaluate", "BIG", "BIG", "--format", "json"],
        ["show", "BIG"],
        ["predict", "BIG", "-q"],
        ["UNBUFFERED", "stats", "BIG"],  # as in many containers
    ],
    ids=" ".join,
)
def test_a_reader_that_has_seen_enough(big, arguments):
    unbuffered = "1" if arguments[0] == "UNBUFFERED" else ""
    with subprocess.Popen(
        [*COMMAND, *(str(big) if each == "BIG" else each for each in arguments if each != "UNBUFFERED")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["stats", "--help"], ["formats"], ["--version"]], ids=" ".join
)
def test_no_reader_at_all(arguments):
    nobody, pipe = os.pipe()
    os.close(nobody)
    done = subprocess.run(
        [*COMMAND, *arguments], stdout=pipe, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False
    )
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
@pytest.mark.parametrize(
    "arguments",
    [
        "stats DATA",
        "check DATA",
        "show DATA",
        "evaluate DATA DATA",
        "convert DATA - --to jsonl",
        "--help",
        "formats",
    ],
)
def test_closed_streams(arguments):
    def run(closed: str) -> subprocess.CompletedProcess[str]:
        command = f"exec '{sys.executable}' -m nestree {arguments.replace('DATA', str(COUNTED))} {closed}"
        return subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, check=False
        )

    usual = run("")
    without_messages = run("2>&-")
    assert (without_messages.returncode, without_messages.stdout) == (usual.returncode, usual.stdout)
    done = run(">&-")
    assert (done.returncode, done.stderr) == (2, "Error: standard output: Bad file descriptor.\n")
    assert run(">&- 2>&-").returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no such shell")
def test_a_result_in_a_file_needs_no_standard_output(tmp_path):
    command = f"exec '{sys.executable}' -m nestree convert '{COUNTED}' '{tmp_path / 'a.jsonl'}' -q >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "a.jsonl").is_file()


STEERING = "\x1b]0;title\x07\x1b[8m\x9b31m\x7f\u202e"  # a title, invisible, red, delete, from right to left


@pytest.fixture(scope="module")
def steering(tmp_path_factory) -> Path:
    """A folder of files with characters that steer terminals in words, labels, ids and names."""
    folder = tmp_path_factory.mktemp("steering")
    entities = [{"start": 0, "end": 2, "label": f"A{STEERING}"}, {"start": 1, "end": 3, "label": "B"}]
    document = {"doc_id": f"d{STEERING}", "tokens": ["a", f"b{STEERING}", "c"], "entities": entities}
    (folder / "a.jsonl").write_text(
        "".join(json.dumps(document | {"doc_id": f"{k}"}) + "\n" for k in range(20))
    )
    (folder / f"bad{STEERING}.jsonl").write_text(json.dumps(document) + "\n{\n")
    (folder / "a.txt").write_text(f"Anna {STEERING} of Lisbon met Bob{STEERING}.", encoding="utf-8")
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="no such terminals")
@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "a.jsonl"],
        ["stats", "a.jsonl", "--format", "json"],
        ["stats", f"bad{STEERING}.jsonl"],
        ["check", "a.jsonl"],
        ["check", f"bad{STEERING}.jsonl"],
        ["convert", "a.jsonl", "-", "--to", "columns"],
        ["convert", f"bad{STEERING}.jsonl", "-", "--to", "jsonl", "--skip-bad"],
        ["split", "a.jsonl", "parts"],
        ["evaluate", "a.jsonl", "a.jsonl"],
        ["show", "a.jsonl"],
        ["predict", "a.txt"],
        ["predict", "a.txt", "--to", "columns"],
        ["predict", f"bad{STEERING}.jsonl", "--skip-bad"],
        [f"no-command{STEERING}"],
    ],
    ids=ascii,
)
def test_data_cannot_steer_a_terminal(steering, arguments):
    import pty

    terminal, end = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=end,
        cwd=steering,
        env=environment,
    ):
        os.close(end)
        said = b""
        with suppress(OSError):  # when the other end is closed
            while part := os.read(terminal, 2**16):
                said += part
    os.close(terminal)
    text = said.decode()
    assert [each for each in ("\x1b]", "\x07", "\x1b[8m", "\x9b", "\x7f", "\u202e") if each in text] == []
    assert "Traceback" not in text
    assert "title" in text


def test_data_in_a_pipe_stay_as_they_are(steering):
    done = nestree("convert", "a.jsonl", "-", "--to", "columns", "-q", cwd=steering)
    assert f"b{STEERING}" in done.stdout
    said = nestree("stats", "a.jsonl", cwd=steering).stdout
    assert "A\\u001b]0;title\\u0007\\u001b[8m\\u009b31m\\u007f\\u202e" in said
    report = json.loads(nestree("stats", "a.jsonl", "--format", "json", cwd=steering).stdout)
    assert report["a"]["labels"] == {f"A{STEERING}": 20, "B": 20}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["predict", "a.txt", "--batch-words", "0"],
            "--batch-words is 0; it should be greater than or equal to 1.",
        ),
        (["predict", "a.txt", "--threshold=abc"], "--threshold is abc; it should be a valid number."),
        (
            ["stats", COUNTED, "--format", "foo"],
            "--format is foo; 'foo' is not one of 'text', 'markdown', 'json'.",
        ),
    ],
)
def test_an_option_that_does_not_fit_is_a_sentence_with_its_value(arguments, said):
    done = nestree(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"Error: {said}\n")


def test_what_is_missing_is_told_with_how_a_command_is_used():
    done = nestree("stats")
    assert done.returncode == 2
    assert "Usage: nestree stats" in done.stderr
    assert "Missing argument" in done.stderr


def test_a_full_disk(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "stats", str(COUNTED)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "Error: standard output: No space left on device.\n")
    done = nestree("convert", COUNTED, "/dev/full", "--to", "jsonl")
    assert (done.returncode, done.stderr) == (
        2,
        "Error: /dev/full cannot be written: No space left on device. Make room, or choose another place.\n",
    )


def test_a_folder_that_cannot_be_made():
    done = nestree("convert", COUNTED, COUNTED / "below" / "a.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"Error: {COUNTED / 'below' / 'a.jsonl'} cannot be written: Not a directory"
    )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_no_permission(tmp_path):
    secret = tmp_path / "a.jsonl"
    secret.write_text("{}")
    secret.chmod(0)
    done = nestree("stats", secret)
    assert (done.returncode, done.stderr) == (2, f"Error: {secret} cannot be read: Permission denied.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, number):
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [*COMMAND, "convert", "-", str(out), "--from", "jsonl"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdin is not None
    process.stdin.write('{"tokens": ["a"], "entities": []}\n')
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)  # until it has begun to write
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "Interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_lacks_characters(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["Ünï", "a"], "entities": []}\n' * 3, encoding="utf-8")
    done = nestree("check", path, "--long-sentence", "1", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "Ünï a" in done.stdout or r"\xdcn\xef a" in done.stdout
    done = nestree("convert", path, "-", "--to", "jsonl", "-q", env={"PYTHONIOENCODING": "ascii"})
    assert "Ünï" in done.stdout  # data is UTF-8


def test_standard_input_and_output():
    data = COUNTED.read_bytes()
    done = subprocess.run(
        [*COMMAND, "convert", "-", "-", "--from", "jsonl", "--to", "jsonl"],
        input=data,
        capture_output=True,
        check=True,
    )
    assert done.stdout.count(b"\n") == 5
    assert b"12 entities from -" in done.stderr
    again = subprocess.run(
        [*COMMAND, "convert", "-", "-", "--from", "jsonl", "--to", "jsonl", "--format", "json"],
        input=done.stdout,
        capture_output=True,
        check=True,
    )
    assert again.stdout == done.stdout
    assert b'"entities": 12' in again.stderr
    done = subprocess.run([*COMMAND, "stats", "-"], input=data, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"--from" in done.stderr
