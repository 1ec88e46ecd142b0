"""Runs that are killed, interrupted and resumed reach the weights of an undisturbed run, to the bit."""

import os
import shutil
import signal
import time

import pytest

from nestree import checkpoint
from nestree.errors import ModelError, TrainingError
from nestree.training import Callbacks
from nestree.training.run_dir import RunDir
from tests.training.runs import another_process, assert_same, run


@pytest.fixture(scope="module")
def chosen(settings):
    return settings("training.gradient_accumulation=2")


@pytest.fixture(scope="module")
def undisturbed(chosen, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "m"
    run(chosen, data, folder)
    return folder


def run_process(*arguments, **options):
    process = another_process(*arguments, **options)
    process.join()
    assert process.exitcode == 0


def wait_for(what, process, seconds=60.0):
    started = time.monotonic()
    while not what():
        assert process.is_alive(), "the run was over too soon"
        assert time.monotonic() - started < seconds, "the run did not get there"
        time.sleep(0.002)


def updates(folder) -> int:
    """Updates in the state on the disk; -1: there is none."""
    try:
        return RunDir(folder).load_progress().updates
    except (ModelError, TrainingError):
        return -1


def test_killed_processes_are_resumed(chosen, data, tmp_path):
    """All in processes of their own: to the last bit, sums depend on what a process has done before."""
    folder = tmp_path / "m"
    for moment in (1, 4):
        process = another_process(chosen, data, folder, resume=moment > 1)
        wait_for(lambda: updates(folder) >= moment, process)  # noqa: B023
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with open(RunDir(folder).log, "a") as log:
            log.write('{"event": "epoch", "epo')  # as if it had died while writing
    assert updates(folder) < 9
    run_process(chosen, data, folder, resume=True)
    run_process(chosen, data, tmp_path / "undisturbed")
    assert_same(folder, tmp_path / "undisturbed")


def test_only_one_process_trains_in_a_directory(settings, data, tmp_path):
    folder, long = tmp_path / "m", settings("training.epochs=999")
    process = another_process(long, data, folder)
    wait_for(lambda: updates(folder) >= 1, process)
    with pytest.raises(TrainingError, match="is being trained by another process"):
        run(long, data, folder, resume=True)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    RunDir(folder).reopen(0, -1)


class Killed(BaseException):
    """What nobody catches."""


def test_killed_at_every_write(chosen, data, tmp_path, undisturbed):
    """Die before the first renaming of a file, resume, die before the second one of that run, and so on.

    Begin at the first again when there is a state to resume from. Once there is a model, it can always be loaded; a
    finished run is resumed, too.
    """
    folder, moment, resumed = tmp_path / "m", 1, 0
    over = False
    while True:
        resume, ended = updates(folder) >= 0, False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", Dying(moment))
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the dead do not clean up
            try:
                run(chosen, data, folder, resume=resume)
                if over:
                    break
                over, moment, ended = True, 1, True
            except Killed:
                first = not resume and updates(folder) >= 0
                moment, resumed = 1 if first else moment + 1, resumed + resume
        if ended:  # another model of the same name: a resumed run must replace it whole
            (folder / "labels.json").write_text((folder / "labels.json").read_text() + " ")
            checkpoint.save_manifest(folder)
        if (folder / "weights.safetensors").is_file():
            checkpoint.load(folder)
    assert resumed > 3
    assert (folder / "manifest.json").is_file()
    run(chosen, data, folder, resume=True)
    assert_same(folder, undisturbed)
    assert sorted(folder.rglob(".*")) == []


class Dying:
    """`os.replace`, until it has been called so many times."""

    def __init__(self, times: int) -> None:
        self.replace, self.left = os.replace, times

    def __call__(self, source, target) -> None:
        self.left -= 1
        if not self.left:
            raise Killed
        self.replace(source, target)


def test_sigterm_saves_at_the_next_update(chosen, data, tmp_path, undisturbed):
    folder = tmp_path / "m"

    class Interrupting(Callbacks):
        steps = 0

        def step(self, step):
            self.steps += 1
            if self.steps == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    result = run(chosen, data, folder, callbacks=Interrupting(), save_every=1000.0)
    assert (result.why, result.evaluation) == ("interrupted", None)
    assert 2 <= updates(folder) <= 4
    assert run(chosen, data, folder, resume=True).evaluation is not None
    assert_same(folder, undisturbed)


def test_a_full_disk_leaves_the_old_state(chosen, data, tmp_path, undisturbed, monkeypatch):
    folder, save_file, calls = tmp_path / "m", checkpoint.save_file, []

    def full(tensors, path, metadata):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save_file(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ModelError, match=r"could not be written: .*No space left .*before is untouched"):
        run(chosen, data, folder)
    monkeypatch.undo()
    assert updates(folder) >= 0
    assert not list(folder.rglob(".*"))
    run(chosen, data, folder, resume=True)
    assert_same(folder, undisturbed)
