"""The benchmark runs, refuses where it must, and says what it should. Its numbers do not matter here."""

import doctest
import json
import sys

import pytest

from benchmarks import engines, preflight, report, timing, treecrf


def test_small_run_ends_in_one_json_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        treecrf, "first_calls", lambda device: {"cached": {"all": 0.1}}
    )  # fresh processes: slow
    monkeypatch.setattr(treecrf, "peak_cpu", lambda *_: 1.0)
    monkeypatch.setattr(treecrf, "ROUNDS", (1, 1))
    monkeypatch.setitem(treecrf.TRIES, "cpu", 1)
    out = tmp_path / "results" / "small.json"
    treecrf.main(["--sizes", "2x4,2x8,3x8", "--skip-tests", "--out", str(out), "--commit", "abc"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert out.read_text() == last + "\n"
    assert [file.name for file in out.parent.iterdir()] == ["small.json"]
    result = json.loads(last)
    assert result["commit"] == "abc"
    assert result["tests"] is None
    assert {"date", "device", "cpu", "versions", "peers", "growth", "one_or_two_threads"} < set(result)
    assert len(result["rows"]) == 3 * (4 + 3)
    for row in result["rows"]:
        for name in ("ours", "reference"):
            assert row[name]["wall"]["low"] <= row[name]["wall"]["median"] <= row[name]["wall"]["high"]
            assert row[name]["peak_mib"] == 1.0
        assert row["ratio"]["reference"]["wall"] > 0
        assert ("torch-struct" in row["ratio"]) == (row["trees"] == "plain")


def test_no_speed_without_passing_tests(monkeypatch):
    monkeypatch.setitem(preflight.TESTS, "cpu", ["tests/no_such_file.py"])
    with pytest.raises(SystemExit, match="no speed is reported"):
        preflight.run_tests("cpu")


def test_a_log_of_tests_counts_like_a_run_of_them(tmp_path):
    log = tmp_path / "tests.xml"
    log.write_text('<testsuites><testsuite tests="5" failures="0" errors="0" skipped="2" /></testsuites>')
    assert preflight.run_tests("cuda", log)["passed"] == 3
    log.write_text('<testsuites><testsuite tests="5" failures="1" errors="0" skipped="2" /></testsuites>')
    with pytest.raises(SystemExit, match="no speed is reported"):
        preflight.run_tests("cuda", log)
    with pytest.raises(SystemExit, match="no speed is reported"):
        preflight.run_tests("cuda", tmp_path / "none.xml")


def test_peers_that_are_too_slow_or_too_large_are_skipped_with_a_reason(monkeypatch):
    inputs = engines.random_inputs("lexical", 2, 8, "cpu", 0, treecrf.torch.float32)
    past = {"trees": "lexical", "operation": "forward", "batch": 2, "n": 4}
    past["reference"] = {"wall": timing.Spread(1e4, 1e4, 1e4, 1)}
    one, row = engines.engine("reference", "cpu"), {**past, "n": 8}
    assert treecrf.too_much(one, row, inputs, "cpu", []) is None
    assert treecrf.too_much(one, row, inputs, "cpu", [past]) == "one run would take about 160 s"
    monkeypatch.setattr(treecrf.memory, "free_bytes", lambda device: 1024)
    assert "GiB are free" in treecrf.too_much(one, row, inputs, "cpu", [])


def test_a_missing_checkout_of_supar_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match=r"has no supar/structs/tree\.py"):
        engines.engine("SuPar", "cpu", tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_that_of_the_call():
    peak = timing.peak_cpu(engines.for_memory, "reference", None, "lexical", "forward + backward", 16, 30)
    assert peak == pytest.approx(
        16 * 30**4 * 8 / timing.MIB, rel=0.5
    )  # n^4 float64 numbers a sentence under autograd


def test_lanes_are_measured_in_turns():
    order = []

    def lane(name):
        def sample():
            order.append(name)
            return {"wall": float(len(order))}

        return timing.Lane(sample, 1)

    found = timing.interleave({"a": lane("a"), "b": lane("b")}, rounds=2)
    assert order == ["a", "b", "a", "b", "a"]
    assert found["b"]["wall"] == timing.Spread(3.0, 2.5, 3.5, 2)


def test_the_quietest_try_counts(monkeypatch):
    clock, samples = iter([0.0, 9.0, 9.0, 9.5, 9.5, 12.0]), iter(range(1, 4))
    monkeypatch.setattr(timing, "others_seconds", lambda: next(clock) * 1e6)
    monkeypatch.setattr(timing, "wait_for_quiet", lambda: None)
    lane = timing.Lane(lambda: {"wall": float(next(samples))}, 1)
    spreads, others = timing.undisturbed({"a": lane}, rounds=0, tries=3)
    assert spreads["a"]["wall"].median == 2.0
    assert others > timing.QUIET


@pytest.mark.parametrize("module", [report, timing])
def test_examples(module):
    assert doctest.testmod(module).failed == 0
