"""Export to ONNX, and scores by ONNX Runtime (extra `onnx`), on a CPU.

    scores.onnx   a batch -> scores of spans, arcs and roots, the head prior, and the vectors that labels need
    labels.onnx   vectors of selected spans -> scores of their labels; a model of one stage has none

Labels are scored for the spans that trees select, so they are a graph of their own. Shapes are dynamic. In 8 bits,
each output channel of a weight has a scale for every BLOCK_SIZE inputs, and ONNX Runtime quantizes the inputs of
products in such blocks as they come, so that a sentence's scores do not depend on its batch.
"""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nestree.errors import InputError, ModelError, first_line
from nestree.nn.batch import Batch
from nestree.nn.scorers import FullTriaffine, LabelScorer, Scores, SpanLabels

SCORE_GRAPH, LABEL_GRAPH = "scores.onnx", "labels.onnx"
FORMAT = 1  # of the graphs; stored in their metadata
MAX_BYTES = 1_900_000_000  # a file of ONNX must stay below 2 GiB
TOLERANCE = 1e-3  # of float32 scores, absolute and relative
LABEL_VECTORS = ("left", "right", "head")
BLOCK_SIZE = 128  # of quantized weights; smaller blocks are more accurate and slower
Graphs = dict[str, bytes]  # by file name


def import_onnx_package(name: str) -> Any:
    """A package of the extra `onnx`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"ONNX needs the package {error.name or name}, which is not installed: pip install 'nestree[onnx]'."
        ) from None


class GraphInputs(NamedTuple):
    """What the network reads of a batch, as inputs of the graph."""

    subwords: Tensor  # [W, P]
    attention_mask: Tensor  # [W, P]
    windows: Tensor  # [B, K]
    pooling: Tensor  # [B, n + 2, K, P]; [B, n + 2, K * P] within the network
    lengths: Tensor  # [B]
    shapes: Tensor | None = None  # [B, n + 2]
    vectors: None = None  # static word vectors are not supported

    @classmethod
    def of(cls, batch: Batch) -> "GraphInputs":
        windows = batch.windows
        if windows is None:
            windows = torch.arange(len(batch.lengths))[:, None]
        pooling = batch.pooling.unflatten(2, (windows.shape[1], batch.subwords.shape[1]))
        return cls(batch.subwords, batch.attention_mask, windows, pooling, batch.lengths, batch.shapes)


class ScoreGraph(nn.Module):
    """GraphInputs -> the tensors of Scores, by name."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        batch = GraphInputs(*inputs)  # type: ignore[arg-type]
        return named_tensors(self.model(batch._replace(pooling=batch.pooling.flatten(2))))


class LabelGraph(nn.Module):
    """Vectors of the parts of spans, [m, size] each -> scores of labels, [m, L]."""

    def __init__(self, scorer: LabelScorer):
        super().__init__()
        self.scorer = scorer

    def forward(self, *vectors: Tensor) -> dict[str, Tensor]:
        return {"labels": self.scorer.score(*vectors)}


def named_tensors(scores: Scores) -> dict[str, Tensor]:
    """The tensors of scores by the names that they have as outputs of the graph."""
    values = {name: getattr(scores, name) for name in ("mention", "arc", "root", "head_prior")}
    if isinstance(scores.labels, SpanLabels):
        values |= {f"label_{name}": part for name, part in zip(LABEL_VECTORS, scores.labels.parts, strict=False)}
    return {name: value for name, value in values.items() if value is not None}


# Export


def export_graphs(model: Any, examples: Batch, metadata: Mapping[str, Any], int8: bool = False) -> Graphs:
    """The graphs of a Recognizer, as the contents of files. Scores of `examples` are compared with PyTorch's.

    `metadata`: values that are stored in the graphs.
    """
    check_supported(model)
    values = {name: str(value) for name, value in metadata.items()}
    values |= {"format": str(FORMAT), "precision": "int8" if int8 else "float32"}
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "subwords": torch.randint(1, 4, (5, 11), generator=generator),
        "attention_mask": torch.ones(5, 11, dtype=torch.int64),
        "windows": torch.randint(0, 5, (3, 2), generator=generator),
        "pooling": torch.rand(3, 9, 2, 11, generator=generator),
        "lengths": torch.tensor([7, 4, 2]),
    }
    if model.collator.shapes:
        inputs["shapes"] = torch.ones(3, 9, dtype=torch.int64)
    with torch.no_grad():
        outputs = ScoreGraph(model)(*inputs.values())
        graphs = {SCORE_GRAPH: trace(ScoreGraph(model), inputs, outputs, values)}
        if model.scorer.labels is not None:
            vectors = {name: outputs[f"label_{name}"][0, :6] for name in LABEL_VECTORS if f"label_{name}" in outputs}
            label_graph = LabelGraph(model.scorer.labels)
            graphs[LABEL_GRAPH] = trace(label_graph, vectors, label_graph(*vectors.values()), values, 1)
        compare(model, examples, OnnxNetwork(serialize(graphs)))
    if int8:
        graphs[SCORE_GRAPH] = quantize(graphs[SCORE_GRAPH])
    return serialize(graphs)


def check_supported(model: Any) -> None:
    """Raise if the network has parts that no graph is made of."""
    encoder, labels = model.settings.encoder, model.scorer.labels
    reasons = {
        "a BiLSTM (encoder.lstm_layers)": encoder.lstm_layers > 0,
        "static word vectors (encoder.word_vectors)": model.words is not None,
        "a full triaffine label scorer (model.rank = 0)": labels is not None
        and labels.by_head
        and isinstance(labels.triples, FullTriaffine),
    }
    if found := [reason for reason, present in reasons.items() if present]:
        raise ModelError(
            f"this model has {' and '.join(found)}, which cannot be exported to ONNX. Train a model without."
        )
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size > MAX_BYTES:
        raise ModelError(
            f"this model has {size / 1e9:.1f} GB of weights, and a file of ONNX holds less than 2 GB: it cannot be "
            "exported. Use a smaller encoder."
        )


def trace(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    dynamic_axes: int | None = None,
) -> Any:
    """The graph of a network as a ModelProto. `dynamic_axes`: how many axes of each input are dynamic; None: all."""
    for package in ("onnx", "onnxscript"):
        import_onnx_package(package)
    import onnxscript.optimizer

    dynamic = torch.export.Dim.DYNAMIC
    axes = tuple(dict.fromkeys(range(dynamic_axes or value.dim()), dynamic) for value in inputs.values())
    try:
        with quiet():
            traced = torch.export.export(network.eval(), tuple(inputs.values()), dynamic_shapes=(axes,), strict=False)
            program = torch.onnx.export(
                traced, input_names=list(inputs), output_names=list(outputs), dynamo=True, verbose=False
            )
            assert program is not None
            # Weights that are computed from weights become weights, or they would not be quantized.
            onnxscript.optimizer.fold_constants(program.model, input_size_limit=1 << 40, output_size_limit=1 << 40)
            graph = program.model_proto
    except Exception as error:  # the exporter can raise anything for an architecture that it does not know
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"this model cannot be exported to ONNX: {first_line(cause)}.") from error
    for name, text in metadata.items():
        graph.metadata_props.add(key=name, value=text)
    return graph


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, logs and prints of the exporter from the user; failures are raised."""
    root = logging.getLogger()
    disabled, level, handlers = root.manager.disable, root.level, root.handlers[:]
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)  # ONNX Runtime configures it to print every log at level INFO
        root.handlers[:] = handlers


def serialize(graphs: Mapping[str, Any]) -> Graphs:
    return {name: graph.SerializeToString(deterministic=True) for name, graph in graphs.items()}


def compare(model: Any, batch: Batch, network: "OnnxNetwork") -> None:
    """Raise if the scores of a batch by ONNX Runtime differ from those by PyTorch."""

    def all_scores(scores: Scores) -> dict[str, Tensor]:
        found = {name: value for name, value in named_tensors(scores).items() if "label" not in name}
        if scores.labels is not None:
            b = torch.arange(len(batch.lengths))
            found["labels"] = scores.labels.score_spans(b, 0 * b, batch.lengths, batch.lengths - 1)
        return found

    expected, computed = all_scores(model(batch)), all_scores(network(batch))
    for name, value in expected.items():
        if computed[name].shape != value.shape or not torch.allclose(
            computed[name], value, rtol=TOLERANCE, atol=TOLERANCE
        ):
            raise ModelError(
                f"the exported graph computes other scores ({name}) than PyTorch: this architecture cannot be exported."
            )


def quantize(graph: Any) -> Any:
    """The graph with weights in 8 bits; raise if the weights of any product stay in float32."""
    import onnx

    import_onnx_package("onnxruntime")
    try:
        with quiet(), tempfile.TemporaryDirectory(prefix="nestree-") as temporary:
            from onnxruntime.quantization import QuantType, matmul_nbits_quantizer, quantize_dynamic

            products = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
                block_size=BLOCK_SIZE, is_symmetric=True, accuracy_level=4, bits=8
            )  # accuracy level 4: sums of products are computed in 8 bits
            quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(graph, algo_config=products)
            quantizer.process()
            # Tables of embeddings, and the products that are left: Gemm
            path = Path(temporary, SCORE_GRAPH)
            left_ops = ("MatMul", "Gather")
            quantize_dynamic(quantizer.model.model, path, left_ops, per_channel=True, weight_type=QuantType.QInt8)
            quantized = onnx.load(path)
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot quantize this model: {first_line(error)}.") from error
    if left := float_products(quantized):
        raise ModelError(
            f"ONNX Runtime left {len(left)} products in float32, the first is {left[0]}: the quantization failed."
        )
    return quantized


def float_products(graph: Any) -> list[str]:
    """Names of products with float weights, and of Gathers in tables of floats: weights, or computed from weights."""
    import onnx

    floats = {w.name for w in graph.graph.initializer if w.data_type == onnx.TensorProto.FLOAT and len(w.dims) > 1}
    found = []
    for node in graph.graph.node:
        weights = [name for name in node.input if name in floats]
        if weights and node.op_type in ("Gather", "Gemm", "MatMul"):
            found.append(f"{node.op_type} {node.name}")
        elif weights and set(node.input) - floats <= {w.name for w in graph.graph.initializer}:
            floats.update(node.output)
    return found


# Inference


class OnnxNetwork:
    """Batch -> Scores, by ONNX Runtime. Calls from several threads run side by side, each on its own thread."""

    def __init__(self, graphs: Mapping[str, bytes], place: str = "the exported graph"):
        """`graphs`: the contents of scores.onnx and, if there is one, labels.onnx. `place`: for messages."""
        self.graphs = dict(graphs)
        self.runtime = import_onnx_package("onnxruntime")
        self.place = place
        self.sessions = {name: self.open(name, content) for name, content in graphs.items()}
        scores = self.sessions[SCORE_GRAPH]
        self.metadata: dict[str, str] = scores.get_modelmeta().custom_metadata_map
        version = self.metadata.get("format", "none")
        if version != str(FORMAT):
            raise ModelError(
                f"{place}/{SCORE_GRAPH} has the format {version:.20}; this nestree knows {FORMAT}. Export it again."
            )
        if "precision" not in self.metadata:
            raise ModelError(f"{place} is damaged: a graph has no metadata. Export it again.")
        self.precision: str = self.metadata["precision"]

    @property
    def label_count(self) -> int | None:
        """The number of labels that the graphs were made for; None if only mentions are scored."""
        graph = self.sessions.get(LABEL_GRAPH)
        size = graph.get_outputs()[0].shape[-1] if graph else None
        return size if isinstance(size, int) else None

    def open(self, name: str, content: bytes) -> Any:
        options = self.runtime.SessionOptions()
        # Batches run on threads of the pipeline.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            return self.runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common class
            raise ModelError(
                f"{self.place}/{name} cannot be read: {first_line(error)}. Export the model again."
            ) from None

    def __call__(self, batch: Batch) -> Scores:
        inputs = GraphInputs.of(batch)._asdict()
        found = self.run(SCORE_GRAPH, {name: value for name, value in inputs.items() if value is not None})
        vectors = [found[f"label_{name}"] for name in LABEL_VECTORS if f"label_{name}" in found]
        return Scores(
            batch.lengths,
            found["mention"],
            found.get("arc"),
            found.get("root"),
            SpanLabels(vectors, self.score_labels) if vectors else None,
            head_prior=found.get("head_prior"),
        )

    def run(self, name: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        session = self.sessions[name]
        arrays = {key: np.ascontiguousarray(value.numpy()) for key, value in inputs.items()}
        names = [output.name for output in session.get_outputs()]
        try:
            outputs = session.run(names, arrays)
        except Exception as error:
            raise ModelError(
                f"{self.place}/{name} cannot be run: {first_line(error)}. Export the model again."
            ) from None
        return {key: torch.from_numpy(value) for key, value in zip(names, outputs, strict=True)}

    def score_labels(self, *parts: Tensor) -> Tensor:
        """Vectors of the parts of spans, which are broadcast, [..., size] each -> [..., L]."""
        parts = torch.broadcast_tensors(*parts)
        rows = [part.reshape(-1, part.shape[-1]) for part in parts]
        scores = self.run(LABEL_GRAPH, dict(zip(LABEL_VECTORS, rows, strict=False)))["labels"]  # [m, L]
        return scores.view(*parts[0].shape[:-1], scores.shape[-1])
