"""Counters, gauges and histograms in Prometheus' text format."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WORDS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class Histogram:
    """Counts of values up to each bound, by the value of one label."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self.sums: Counter[str] = Counter()

    def observe(self, value: float, label: str = "") -> None:
        self.counts[label][bisect_left(self.bounds, value)] += 1
        self.sums[label] += value  # type: ignore[assignment]

    def lines(self, name: str, label_name: str = "") -> Iterator[str]:
        for label, counts in list(self.counts.items()):
            prefix, total = f'{label_name}="{label}",' if label_name else "", 0
            for bound, count in zip([*self.bounds, "+Inf"], list(counts), strict=True):
                total += count
                yield f'{name}_bucket{{{prefix}le="{bound}"}} {total}'
            labels = f"{{{prefix[:-1]}}}" if prefix else ""
            yield f"{name}_sum{labels} {self.sums[label]:.6f}"
            yield f"{name}_count{labels} {total}"


class Metrics:
    """What the server counts. The event loop writes some values and the worker thread others, so there is no lock."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.request_seconds = Histogram(SECONDS)  # by path
        self.rejected: Counter[str] = Counter()  # by the code of the error
        self.batch_words = Histogram(WORDS)
        self.batch_seconds = Histogram(SECONDS)
        self.abandoned = 0  # texts whose clients went away or timed out before they were predicted
        self.failed = 0  # texts whose prediction failed

    def render(self, gauges: dict[str, tuple[float, str]]) -> str:
        """All metrics as text; `gauges`: values and descriptions by name."""
        lines: list[str] = []

        def add(name: str, kind: str, help: str, samples: Iterator[str]) -> None:
            lines.extend([f"# HELP nestree_{name} {help}", f"# TYPE nestree_{name} {kind}", *samples])

        requests = sorted(self.requests.items())
        add("requests_total", "counter", "Answers by path and status.", (
            f'nestree_requests_total{{path="{path}",status="{status}"}} {n}' for (path, status), n in requests
        ))  # fmt: skip
        add("request_seconds", "histogram", "Seconds from the request to the end of its answer.",
            self.request_seconds.lines("nestree_request_seconds", "path"))  # fmt: skip
        add("rejected_total", "counter", "Errors that clients got, by their code.", (
            f'nestree_rejected_total{{code="{code}"}} {n}' for code, n in sorted(self.rejected.items())
        ))  # fmt: skip
        add(
            "batch_words",
            "histogram",
            "Words predicted together.",
            self.batch_words.lines("nestree_batch_words"),
        )
        add("batch_seconds", "histogram", "Seconds to predict a batch.",
            self.batch_seconds.lines("nestree_batch_seconds"))  # fmt: skip
        for name, count, help in (
            ("abandoned_total", self.abandoned, "Texts whose clients gave up before they were predicted."),
            ("failed_total", self.failed, "Texts whose prediction failed."),
        ):
            add(name, "counter", help, iter([f"nestree_{name} {count}"]))
        for name, (value, help) in gauges.items():
            add(name, "gauge", help, iter([f"nestree_{name} {value:g}"]))
        return "\n".join(lines) + "\n"
