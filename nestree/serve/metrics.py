"""Counters, gauges and histograms in Prometheus' text format."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WORDS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class Histogram:
    """Counts of values up to each bound, for each value of a label if it has one."""

    def __init__(self, bounds: Sequence[float], label_name: str = "") -> None:
        self.bounds, self.label_name = bounds, label_name
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self.sums: Counter[str] = Counter()

    def observe(self, value: float, label: str = "") -> None:
        self.counts[label][bisect_left(self.bounds, value)] += 1
        self.sums[label] += value  # type: ignore[assignment]

    def lines(self, name: str) -> Iterator[str]:
        for label, counts in list(self.counts.items()):
            prefix, total = f'{self.label_name}="{label}",' if self.label_name else "", 0
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
        self.request_seconds = Histogram(SECONDS, "path")
        self.rejected: Counter[str] = Counter()  # by the code of the error
        self.batch_words = Histogram(WORDS)
        self.batch_seconds = Histogram(SECONDS)
        self.abandoned = 0  # texts whose clients went away or timed out before they were predicted
        self.failed = 0  # texts whose prediction failed

    def to_prometheus(self, gauges: dict[str, tuple[float, str]]) -> str:
        """All metrics as text; `gauges`: values and descriptions by name."""
        requests = {f'path="{path}",status="{code}"': n for (path, code), n in sorted(self.requests.items())}
        rejected = {f'code="{code}"': n for code, n in sorted(self.rejected.items())}
        metrics: list[tuple[str, str, Any]] = [
            ("requests_total", "Answers by path and status.", requests),
            ("request_seconds", "Seconds from the request to the end of its answer.", self.request_seconds),
            ("rejected_total", "Errors that clients got, by their code.", rejected),
            ("batch_words", "Words predicted together.", self.batch_words),
            ("batch_seconds", "Seconds to predict a batch.", self.batch_seconds),
            ("abandoned_total", "Texts whose clients gave up before they were predicted.", self.abandoned),
            ("failed_total", "Texts whose prediction failed.", self.failed),
            *((name, help, value) for name, (value, help) in gauges.items()),
        ]
        lines: list[str] = []
        for name, help, value in metrics:
            kind = "histogram" if isinstance(value, Histogram) else "gauge" if name in gauges else "counter"
            name = f"nestree_{name}"
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            if isinstance(value, Histogram):
                lines += value.lines(name)
            elif isinstance(value, dict):
                lines += [f"{name}{{{labels}}} {n}" for labels, n in value.items()]
            else:
                lines.append(f"{name} {value:g}" if kind == "gauge" else f"{name} {value}")
        return "\n".join(lines) + "\n"
