"""Prediction on a Ray cluster: `Recognize` for Ray Data, and `predict_files` for `nestree predict --ray`.

    model = put_model("my-model")
    dataset.map_batches(Recognize, fn_constructor_args=[model], batch_format="pyarrow", num_cpus=1,
                        compute=ray.data.ActorPoolStrategy(size=16))

The model travels through Ray's object store, so workers need no shared disk. On a CPU each actor computes on one
thread. `predict_files` does what `nestree.predict_files.predict_files` does, with actors in place of threads: they read
and write small files themselves where they see the same folders; the documents of other files go to them in buffers,
and the results come back in order. Ray Data is not used for it, because it can neither skip a document that kills its
actor nor keep batches within files.
"""

import logging
import os
import re
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from nestree import __version__
from nestree.data.io import current_limits, lock_owner, optional_import, set_within
from nestree.data.object_store import as_url
from nestree.errors import DataError, InputError, NestreeError
from nestree.types import Document, Sentence, char_span, depths

if TYPE_CHECKING:
    import pyarrow as pa

    from nestree.pipeline import Group, Pipeline
    from nestree.predict_files import FilePredictOptions, FilePredictor, Job, JobPlan, ReadDocument, ResumeLog, Summary

MAX_DEATHS = 3  # of the actors that predict a document, until it is skipped
QUEUED_PER_WORKER = 2  # tasks: one runs, one waits
BUFFERED_PER_WORKER = 4  # buffers of documents that are read and not yet written
START_SECONDS = 600.0  # to wait for a worker that is ready
CONNECT_SECONDS = 10.0
POLL_SECONDS = 5.0  # between two checks that the cluster is alive
HEAD_SECONDS = 30.0  # without an answer of the head node, which may be restarting; Ray itself gives up after 60
FILES_PER_WORKER = 4  # a file with a larger share of all bytes is predicted by several workers
TASK_BYTES = 2**15  # of small files that a worker gets at once, about 5,000 words
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # with which a client of gRPC begins
SETTINGS_FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # that client and server send next; the fourth byte is its type
ADDRESS = re.compile(r"auto|local|[^/\s:]+:\d+|\[[0-9a-fA-F:]+\]:\d+")  # values of --ray
log = logging.getLogger(__name__)


# Ray Data


def put_model(model: str | Path | None = None) -> Any:
    """A reference to the files of a model in Ray's object store, from which any worker loads it."""
    from nestree import checkpoint, hub

    return import_ray().put(checkpoint.read_files(hub.resolve(model)))


class Recognize:
    """A callable class for `ray.data.Dataset.map_batches`: adds the columns `entities` and `error` to a batch.

    Columns of these names are replaced. `model`: what `put_model` returns or, if workers have it themselves, a
    directory, a hub name or None, the bundled model. The column `text` holds texts; if there is none, `words` holds
    lists of words, and offsets count words. A row that fails has an `error` and no entities. `device` "auto" is a GPU
    if the actor was given one (num_gpus=1).
    """

    def __init__(
        self,
        model: Any = None,
        *,
        text: str = "text",
        words: str = "words",
        labels: Collection[str] | None = None,
        threshold: Any = None,
        device: str = "auto",
        max_sentence_words: int = 200,
        batch_words: int | None = None,
    ) -> None:
        self.pipeline = load_on_worker(model, device, max_sentence_words)
        self.options = self.pipeline.predict_options(threshold, False, labels)
        self.text, self.words, self.batch_words = text, words, batch_words

    def __call__(self, batch: Any) -> "pa.Table":
        import pyarrow as pa

        from nestree.pipeline import Batcher

        table = batch if isinstance(batch, pa.Table) else as_table(batch)
        column = next((name for name in (self.text, self.words) if name in table.column_names), None)
        if column is None:
            raise InputError(
                f"the columns of this batch are {', '.join(table.column_names)}; {self.text!r} or {self.words!r} is "
                "missing. Name the column with fn_constructor_kwargs={'text': NAME}."
            )
        values = table.column(column).to_pylist()
        entities: list[Any] = [None] * len(values)
        errors: list[str | None] = [None] * len(values)

        def to_document(row: int) -> Document:
            if column == self.text:
                return self.pipeline.split(values[row])
            words = values[row]
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise InputError(f"words are {words!r:.60}; they must be a list of words.")
            return Document((Sentence(tuple(words)),))

        def handle_error(row: int, error: Exception) -> None:
            message = str(error) if isinstance(error, NestreeError) else f"{type(error).__name__}: {error}"
            errors[row] = as_arrow(message)

        batcher = Batcher(self.pipeline, to_document, self.options, handle_error, batch_words=self.batch_words)
        for row, document in batcher.stream(range(len(values))):
            entities[row] = list(entity_rows(document))
        table = table.drop_columns([name for name in ("entities", "error") if name in table.column_names])
        table = table.append_column("entities", pa.array(entities, entities_type()))
        return table.append_column("error", pa.array(errors, pa.string()))


def entities_type() -> "pa.DataType":
    """The Arrow type of the column `entities`; offsets are in characters of a text, or in words."""
    import pyarrow as pa

    offset = pa.int64()
    types = {"start": offset, "end": offset, "label": pa.string(), "score": pa.float64()}
    types |= {"head_start": offset, "head_end": offset, "depth": pa.int32()}
    return pa.list_(pa.struct(list(types.items())))


def as_table(batch: Mapping[str, Any]) -> "pa.Table":
    """A batch in Ray's "numpy" or "pandas" format as a table; half surrogates in its strings become escapes."""
    import pyarrow as pa

    columns = {}
    for name in batch:
        values = batch[name]
        try:
            try:
                columns[name] = pa.array(values)
            except (pa.ArrowException, UnicodeEncodeError):
                columns[name] = pa.array([as_arrow(value) for value in values])
        except (pa.ArrowException, UnicodeEncodeError) as why:
            raise InputError(f"column {name} has no Arrow type: {why}. Leave it out, or convert it.") from why
    return pa.table(columns)


def as_arrow(value: Any) -> Any:
    """A string without half surrogates, or an array as lists."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value.tolist() if hasattr(value, "tolist") else value


def entity_rows(document: Document) -> Iterator[dict[str, Any]]:
    """The entities of a document: in characters, or in words if only words are known."""
    for sentence in document.sentences:
        for entity, depth in zip(sentence.entities, depths(sentence.entities), strict=True):
            spans = [entity.span, None if entity.head is None else (entity.head, entity.head + 1)]
            if sentence.offsets is not None:
                spans = [span and char_span(sentence, *span)[:2] for span in spans]
            (start, end), (head_start, head_end) = (span or (None, None) for span in spans)
            offsets = {"start": start, "end": end, "head_start": head_start, "head_end": head_end}
            yield {**offsets, "label": entity.label, "score": entity.score, "depth": depth}


# Workers


def import_ray() -> Any:
    return optional_import("ray", "Prediction on a cluster", "ray")


def load_on_worker(model: Any, device: str, max_sentence_words: int) -> "Pipeline":
    """The pipeline of an actor; on a CPU it computes on one thread. Kernels are compiled once on each node."""
    import torch

    from nestree import checkpoint
    from nestree.nn.devices import select_device
    from nestree.pipeline import Pipeline, load

    ray = import_ray()
    if isinstance(model, ray.ObjectRef):
        model = ray.get(model)
    in_ray = ray.is_initialized()  # `Recognize` also works without
    if in_ray and device == "auto" and not ray.get_gpu_ids():
        device = "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    if isinstance(model, Mapping):
        pipeline = Pipeline(checkpoint.from_bytes(model, select_device(device)), max_sentence_words)
    else:
        pipeline = load(model, device, max_sentence_words)
    if in_ray:
        warm_up(pipeline)
    return pipeline


def warm_up(pipeline: "Pipeline") -> None:
    """Compile kernels; the first actor of a job on each node does so alone.

    Numba stores the compiled code on disk, where the others find it.
    """
    import fcntl

    import ray

    context = ray.get_runtime_context()
    node_and_job = f"{context.get_node_id()} {context.get_job_id()}"
    with open(Path(tempfile.gettempdir(), f"nestree-{os.getuid()}.lock"), "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed when the process ends, however it does
        file.seek(0)
        if file.read() != node_and_job:
            pipeline.warm_up()
            file.truncate(0)
            file.write(node_and_job)


class Worker:
    """An actor that predicts documents, or reads and writes whole files."""

    def __init__(
        self,
        version: str,
        model: Mapping[str, bytes],
        device: str,
        plan: "JobPlan",
        options: "FilePredictOptions",
        limits: Any,
        directory: str,
        owner: str,
    ) -> None:
        if version != __version__:
            raise InputError(f"a worker has nestree {__version__}, this machine {version}. Install the same version.")
        self.pipeline = load_on_worker(model, device, options.predict_options.max_sentence_words)
        self.plan, self.options, self.limits, self.owner = plan, options, limits, owner
        if Path(directory).is_dir():
            os.chdir(directory)  # relative paths mean the same as where the command runs

    def ready(self) -> None:
        pass

    def predict(self, groups: Sequence[Sequence[Document]]) -> list[Document | str]:
        """The documents of these groups with entities, or why one failed."""
        from nestree.pipeline import Batcher
        from nestree.predict_files import describe_failure

        results: dict[int, Document | str] = {}
        numbers = count()
        numbered = [[(next(numbers), document) for document in group] for group in groups]
        documents = list(chain(*groups))

        def handle_error(number: int, error: Exception) -> None:
            results[number] = describe_failure(self.pipeline, self.options, documents[number], error)

        batcher = Batcher[int](
            self.pipeline,
            documents.__getitem__,
            self.options.predict_options,
            handle_error,
            batch_words=self.options.batch_words,
            group_by=lambda number: number,  # given by `numbered`
        )
        results.update(batcher.predict(numbered))
        return [results[number] for number in range(len(documents))]

    def predict_jobs(
        self, jobs: "Sequence[tuple[Job, list[int]]]"
    ) -> "list[tuple[Mapping[str, Any], Summary] | DataError | None]":
        """For each file its entry for the log and its summary, or its error; None: the file or folder is not here."""
        from nestree.predict_files import LOCK_FILE, FilePredictor, signature

        results: list[Any] = []
        assert self.plan.folder is not None
        folder = self.plan.folder
        is_local = lock_owner(folder / LOCK_FILE) == self.owner and os.access(folder, os.W_OK)
        is_shared = is_local or as_url(folder) is not None
        for job, expected in jobs:
            if not is_shared or signature(job.source) != expected:
                results.append(None)
                continue
            predictor = FilePredictor(self.pipeline, self.plan._replace(jobs=(job,)), self.options, None)
            try:
                with set_within(current_limits, self.limits):
                    entry = predictor.predict_job(job)
                results.append((entry, predictor.summary))
            except DataError as error:
                results.append(error)
                break
        return results


# The driver


@dataclass(eq=False)
class Task:
    """A call of a method of one actor."""

    method: str
    argument: Any
    item: Any = None  # what the driver needs to handle the result
    deaths: int = 0  # of actors that ran it
    is_suspect: bool = False  # an actor died with it: it is run with no other task queued on its actor
    result: Any = None
    is_done: bool = False


@dataclass
class Cluster:
    """Actors of a Ray cluster, for `predict_files`."""

    workers: int
    device: str
    model: Any  # a reference to its files
    resources: Mapping[str, float]  # of each actor
    worker_class: type[Any] = Worker
    waiting: deque[Task] = field(default_factory=deque)
    starting: dict[Any, Any] = field(default_factory=dict)  # the actor by the reference to its `ready`
    running: dict[Any, deque[Task]] = field(default_factory=dict)  # the tasks of each actor, in order
    results: dict[Any, tuple[Any, Task]] = field(default_factory=dict)  # actor and task by the reference
    actor_class: Any = None  # None: there are no actors yet
    arguments: tuple[Any, ...] = ()  # of its constructor
    failed_starts: int = 0  # since the last actor that was ready
    suspects: "set[Job]" = field(default_factory=set)  # files whose workers died
    head_seen: float = field(default_factory=monotonic)  # when the head node answered last
    next_check: float = 0.0  # when `check_alive` looks for the head again

    def prepare(self, plan: "JobPlan", options: "FilePredictOptions") -> None:
        """Start the actors."""
        from nestree.predict_files import LOCK_FILE

        ray = import_ray()
        owner = lock_owner(plan.folder / LOCK_FILE) if plan.folder else ""
        shared = (plan._replace(jobs=(), left_out=()), options, current_limits.get(), os.getcwd(), owner)
        self.actor_class = ray.remote(self.worker_class).options(**self.resources)
        self.arguments = __version__, self.model, self.device, *shared
        for _ in range(self.workers):
            self.start_actor()

    def start_actor(self) -> None:
        actor = self.actor_class.remote(*self.arguments)
        self.starting[actor.ready.remote()] = actor

    def close(self) -> None:
        """End the actors."""
        ray = import_ray()
        for actor in (*self.starting.values(), *self.running):
            ray.kill(actor)
        for state in (self.waiting, self.starting, self.running, self.results):
            state.clear()

    def step(self) -> list[Task]:
        """Give tasks to actors, and wait; returns tasks that are done, and those whose actors died."""
        ray = import_ray()
        for actor, tasks in self.running.items():
            while self.waiting and len(tasks) < QUEUED_PER_WORKER:
                if tasks and (tasks[0].is_suspect or self.waiting[0].is_suspect):
                    break
                task = self.waiting.popleft()
                reference = getattr(actor, task.method).remote(task.argument)
                self.results[reference] = actor, task
                tasks.append(task)
        ready: list[Any] = []
        started, polls = monotonic(), 0
        while not ready:
            self.check_alive()
            ready, _ = ray.wait([*self.starting, *self.results], num_returns=1, timeout=POLL_SECONDS)
            polls += 1
            if ready or self.results:
                continue
            hint = f"The cluster may have too few free {'CPUs' if self.device == 'cpu' else 'GPUs'}: see `ray status`;"
            if monotonic() - started > START_SECONDS:
                raise InputError(
                    f"no worker has started in {START_SECONDS:.0f} seconds. {hint} --workers N asks for fewer."
                )
            if polls == 12:
                log.warning("No worker has started yet. %s this goes on when some are free.", hint)
        finished = []
        for reference in ready:
            if actor := self.starting.pop(reference, None):
                try:
                    ray.get(reference)
                    self.running[actor], self.failed_starts = deque(), 0
                except ray.exceptions.RayError as error:
                    check_start(error)
                    self.failed_starts += 1
                    if self.failed_starts > MAX_DEATHS * self.workers:
                        raise InputError(
                            f"{self.failed_starts} workers died while they started, perhaps for lack of memory. Use "
                            "fewer --workers."
                        ) from None
                    self.start_actor()
                continue
            actor, task = self.results.pop(reference)
            try:
                task.result = ray.get(reference)
                task.is_done = True
                self.running[actor].remove(task)
                finished.append(task)
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                if isinstance(cause, NestreeError):
                    raise cause from None
                raise InputError(f"a worker failed: {type(cause).__name__}: {cause}.") from error
            except ray.exceptions.RayError as error:
                log.info("an actor died: %s", str(error).partition("\n")[0])
                finished.append(self.replace_actor(actor))
        return finished

    def check_alive(self) -> None:
        """Raise if the cluster is gone, before Ray ends this process because of it."""
        if monotonic() < self.next_check:
            return
        self.next_check = monotonic() + POLL_SECONDS
        ray = import_ray()
        node = ray._private.worker._global_node
        lost = None if node is None or accepts_connections(node.raylet_socket_name) else "this machine"
        head = ray.get_runtime_context().gcs_address
        if accepts_connections(head):
            self.head_seen = monotonic()
        elif monotonic() - self.head_seen > HEAD_SECONDS:
            lost = head
        if lost:
            raise ClusterLostError(f"Ray does not answer any more at {lost}. Start it again.")

    def replace_actor(self, actor: Any) -> Task:
        """Start a new actor for one that died; return the task that it was running, and queue its other tasks again."""
        tasks = self.running.pop(actor)
        import_ray().kill(actor)  # it may be alive, and unreachable
        self.results = {key: value for key, value in self.results.items() if value[0] is not actor}
        for task in tasks:  # the first may have been done and its result lost, so any of them may be the cause
            task.is_suspect = True
        self.waiting.extendleft(reversed(list(islice(tasks, 1, None))))
        task = tasks[0]
        task.deaths += 1
        self.start_actor()
        return task

    def predict_whole_files(
        self, predictor: "FilePredictor", jobs: "Sequence[Job]", resume_log: "ResumeLog"
    ) -> "list[Job]":
        """Let workers read and write small files; returns the files that are left.

        These are large files, which all workers share, files whose workers died, and all of them if the workers do not
        see the same folders.
        """
        if not jobs:
            return []
        self.prepare(predictor.plan, predictor.options)
        # A worker that is the last to end should not keep the others waiting for long.
        largest = max(TASK_BYTES, predictor.total_bytes // (FILES_PER_WORKER * self.workers))
        portions: list[list[tuple[Job, list[int]]]] = []
        room = 0  # in the last portion, in bytes
        for job in jobs:
            source = predictor.signatures[job]
            if source[0] <= largest and not job.source.is_dir():
                if room <= 0:
                    portions.append([])
                    room = TASK_BYTES
                portions[-1].append((job, source))
                room -= max(source[0], TASK_BYTES // 100)
        done: set[Job] = set()
        unsent, pending = iter(portions), 0
        while True:
            while pending < BUFFERED_PER_WORKER * self.workers and (portion := next(unsent, None)):
                self.waiting.append(Task("predict_jobs", portion))
                pending += 1
            if not pending:
                return [job for job in jobs if job not in done]
            for task in self.step():
                pending -= 1
                if not task.is_done:
                    self.suspects.update(job for job, _ in task.argument)
                for (job, _), result in zip(task.argument, task.result or (), strict=False):
                    if isinstance(result, DataError):
                        raise result
                    if result is not None:
                        resume_log.add(job.name, result[0])
                        predictor.add_summary(job, result[1])
                        done.add(job)

    def stream(
        self, predictor: "FilePredictor", items: "Iterable[ReadDocument]"
    ) -> "Iterator[tuple[ReadDocument, Document]]":
        """Yield each item and its document with entities, in order."""
        from nestree.pipeline import count_words

        if self.actor_class is None:
            self.prepare(predictor.plan, predictor.options)
        buffers = predictor.batcher.buffers(items)
        tasks: deque[Task] = deque()

        def make_task(groups: "list[Group[ReadDocument]]", is_suspect: bool, deaths: int = 0) -> Task:
            documents = [[document for _, document in group] for group in groups]
            return Task("predict", documents, groups, deaths, is_suspect)

        while True:
            while len(tasks) < BUFFERED_PER_WORKER * self.workers and (groups := next(buffers, None)):
                is_suspect = any(group[0][0].job in self.suspects for group in groups)
                tasks.append(make_task(groups, is_suspect, int(is_suspect)))
                self.waiting.append(tasks[-1])
            if not tasks:
                return
            while tasks and tasks[0].is_done:
                task = tasks.popleft()
                items_of_task = [item for group in task.item for item, _ in group]
                for item, result in zip(items_of_task, task.result, strict=True):
                    if isinstance(result, str):
                        predictor.report_failure(item, result)
                    else:
                        yield item, result
            if not tasks:
                continue
            for task in self.step():
                if task.is_done:
                    predictor.batcher.done_words += sum(map(count_words, chain(*task.argument)))
                    predictor.report(predictor.batcher.done_words)
                    continue
                # Groups do not depend on each other, but a document that is predicted alone may get other last digits.
                if len(task.item) > 1:
                    parts = [make_task([group], True, task.deaths) for group in task.item]
                elif task.deaths < MAX_DEATHS:
                    parts = [task]
                elif len(task.item[0]) > 1:  # one of these documents is to blame
                    parts = [make_task([[pair]], True) for pair in task.item[0]]
                else:
                    parts, task.is_done = [], True
                    why = f": it was left out, because its worker died {task.deaths} times over it"
                    task.result = [f"{why}, perhaps for lack of memory."]
                if parts:
                    place = tasks.index(task)
                    del tasks[place]
                    for part in reversed(parts):
                        tasks.insert(place, part)
                    self.waiting.extendleft(reversed(parts))


class ClusterLostError(InputError):
    """The cluster ended while it was used."""


def accepts_connections(address: str) -> bool:
    """Whether something listens at HOST:PORT, or at a socket in the file system."""
    try:
        if address.startswith("/"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(POLL_SECONDS)
                connection.connect(address)
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), POLL_SECONDS).close()
        return True
    except (TimeoutError, BlockingIOError):
        return address.startswith("/")  # the raylet is busy
    except OSError:
        return False


def check_start(error: Exception) -> None:
    """Raise if an actor could not start for a reason that another attempt would meet again."""
    ray = import_ray()
    message = str(error)
    if missing := re.search(r"No module named '([\w.]+)'", message):
        package = missing[1].partition(".")[0]
        raise InputError(
            f"a worker of the cluster has no package {package}. Install nestree with the same extras on all nodes: "
            f"pip install 'nestree[ray]=={__version__}'."
        ) from None
    if isinstance(error, ray.exceptions.ActorDiedError) and (why := re.search(r"Error: (.+)", message)):
        raise InputError(f"a worker cannot start: {why[1].strip()}") from None
    if isinstance(error, ray.exceptions.RayTaskError):
        raise InputError(f"a worker cannot start: {error.cause}") from None


@contextmanager
def connect(address: str, model: str | Path | None, workers: int = 0, device: str = "auto") -> Iterator[Cluster]:
    """A cluster with this address, whose workers will predict with this model; "local": Ray is started here.

    `workers`: the number of actors; 0: one for each CPU or, if the device is a GPU, for each GPU.
    """
    ray = import_ray()
    started = not ray.is_initialized()
    if started:
        start_ray(address, workers)
    try:
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        count = workers or (cpus if device == "cpu" else gpus)
        if not (cpus if device == "cpu" else gpus):
            raise InputError(
                f"the cluster has {cpus} CPUs and {gpus} GPUs, and --device is {device}. Choose another device."
            )
        # More workers than GPUs share them.
        share: dict[str, float] = {"num_cpus": 1} if device == "cpu" else {"num_gpus": min(1, gpus / count)}
        cluster = Cluster(count, device, put_model(model), share)
        try:
            yield cluster
        finally:
            cluster.close()
    except ClusterLostError:
        started = False  # there is nothing to shut down, and Ray would wait for it
        raise
    finally:
        if started:
            ray.shutdown()


def start_ray(address: str, workers: int) -> None:
    """Start Ray here, or connect to a cluster; Ray prints nothing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns about it
    ray = import_ray()
    # What the raylet says about dead workers is printed even with log_to_driver=False.
    ray._private.worker._worker_logs_enabled = False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
    if address == "local":
        options |= {"num_cpus": max(workers, len(os.sched_getaffinity(0))), "include_dashboard": False}
    elif address != "auto":
        check_address(address)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with capture_stderr() as messages:
            try:
                ray.init(address, **options)
            except (OSError, RuntimeError, ValueError, SystemExit) as error:
                if str(error) == str(int(signal.SIGTERM)):
                    raise KeyboardInterrupt from None  # by the handler that ray.init sets
                raise connect_error(address, f"{error}\n{messages()}") from None
    finally:
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)  # ray.init sets one of its own


@contextmanager
def capture_stderr() -> Iterator[Callable[[], str]]:
    """Capture what is written to the descriptor of standard error; yields a function that returns it."""
    with tempfile.TemporaryFile() as file:

        def read() -> str:
            file.seek(0)
            return file.read().decode("utf-8", "replace")

        try:
            before = os.dup(2)
        except OSError:  # it is closed
            yield read
            return
        try:
            os.dup2(file.fileno(), 2)
            yield read
        finally:
            os.dup2(before, 2)
            os.close(before)


def check_address(address: str) -> None:
    """Raise if no gRPC server listens there: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(HTTP2_PREFACE + SETTINGS_FRAME)
                if connection.recv(4)[3:] != SETTINGS_FRAME[3:4]:
                    raise ValueError("another program listens there")
    except (OSError, ValueError, OverflowError) as why:
        raise InputError(
            f"no Ray cluster answers at {address}: {getattr(why, 'strerror', None) or why}. Start one with `ray start "
            "--head`, or correct the address."
        ) from None


def connect_error(address: str, message: str) -> InputError:
    versions = re.findall(r"(Ray|Python): (\S+)", message)
    if "ersion mismatch" in message and len(versions) == 4:
        cluster, here = (" and ".join(map(" ".join, pair)) for pair in (versions[:2], versions[2:]))
        return InputError(f"the cluster at {address} runs {cluster}, this machine {here}. Install the same versions.")
    if "AuthToken" in message or "Unauthenticated" in message:
        return InputError(
            f"the cluster at {address} wants a token. Copy ~/.ray/auth_token from its head to this machine, if it is "
            "not there, and set RAY_AUTH_MODE=token."
        )
    if address == "auto":
        return InputError(
            "no Ray cluster runs on this machine. Start one with `ray start --head`, or name its address."
        )
    reason = message.strip().partition("\n")[0].rstrip(".")
    return InputError(f"Ray cannot be used at {address}: {reason or 'it does not answer'}.")
