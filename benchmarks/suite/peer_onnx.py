"""ONNX Runtime: its own operator MultiHeadAttention for dot products, else the formula as a graph.

Of the ways to write dot-product attention for it, that operator is the fastest.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .cases import Case
from .peers import Call
from .problem import Array, Problem

onnxruntime: Any = importlib.import_module("onnxruntime")
onnx: Any = importlib.import_module("onnx")


class Graph:
    """Nodes of a graph in the making; each method call returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Array) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(value, name))
        return name

    def session(self, feeds: dict[str, Array], results: list[str], threads: int) -> Any:
        """The graph as an inference session."""

        def typed(name: str, shape: Any) -> Any:
            return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

        graph = onnx.helper.make_graph(
            self.nodes, "case", [typed(name, x.shape) for name, x in feeds.items()],
            [typed(name, None) for name in results], self.constants)  # fmt: skip
        opsets = [onnx.helper.make_opsetid(*x) for x in (("", 21), ("com.microsoft", 1))]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def softmax(graph: Graph, scores: str, allowed: Array | None) -> str:
    """Nodes of the masked softmax."""
    if allowed is not None:
        low = graph.constant(np.array(-1e6, np.float32))
        scores = graph.node("Where", graph.constant(allowed), scores, low)
    return graph.node("Softmax", scores, axis=-1)


def additive_scores(graph: Graph, inputs: dict[str, Array]) -> str:
    """Nodes of w_v . tanh(W_q q + W_k k)."""
    operands = []
    for rows, W, axis in (("queries", "W_q", 2), ("keys", "W_k", 1)):
        projected = graph.node("MatMul", rows, graph.constant(inputs[W].T.copy()))
        axes = graph.constant(np.array([axis], np.int64))
        operands.append(graph.node("Unsqueeze", projected, axes))
    features = graph.node("Tanh", graph.node("Add", *operands))
    return graph.node("MatMul", features, graph.constant(inputs["w_v"]))


def dot_scores(graph: Graph, case: Case) -> str:
    """Nodes of the scaled dot products."""
    last = len(case.lead)
    turned = graph.node("Transpose", "keys", perm=[*range(last), last + 1, last])
    scale = graph.constant(np.array(case.D**-0.5, np.float32))
    return graph.node("Mul", graph.node("MatMul", "queries", turned), scale)


def call(problem: Problem, work: str, threads: int) -> Call | None:
    """Forward only: it is for inference. Weights of the parameters are constants of the graph."""
    if work != "forward":
        return None
    case, graph = problem.case, Graph()
    if case.score == "dot" and not case.weights:
        return multi_head_attention(problem, threads)
    feeds = {name: x for name, x in problem.inputs.items() if not name.lower().startswith("w_")}
    if case.score == "softmax":
        results = [softmax(graph, "X", problem.allowed)]
    else:
        additive = case.score == "additive"
        scores = additive_scores(graph, problem.inputs) if additive else dot_scores(graph, case)
        weights = softmax(graph, scores, problem.allowed)
        results = [graph.node("MatMul", weights, "values"), *[weights] * case.weights]
    session = graph.session(feeds, results, threads)
    return lambda: session.run(results, feeds)


def multi_head_attention(problem: Problem, threads: int) -> Call:
    """Dot-product attention in the operator's layout (B, N, heads * D)."""
    case, graph = problem.case, Graph()
    B, heads = (*case.lead, 1)[:2]

    def turned(x: Array) -> Array:
        rows = x.reshape(B, heads, *x.shape[-2:]).swapaxes(1, 2)
        return np.ascontiguousarray(rows).reshape(B, x.shape[-2], -1)

    feeds = {name: turned(x) for name, x in problem.inputs.items()}
    operands = list(feeds)
    # with more keys than queries its diagonal would end at the last key, not start at the first
    causal = bool(problem.options.get("causal")) and case.M == case.N
    if problem.allowed is not None and not causal:
        bias = np.where(problem.pairs, 0, np.float32(-1e6)).reshape(B, heads, case.M, case.N)
        operands += ["", "", graph.constant(bias[:, :1].astype(np.float32))]
    result = graph.node("MultiHeadAttention", *operands, domain="com.microsoft",
                        num_heads=heads, unidirectional=int(causal))  # fmt: skip
    session = graph.session(feeds, [result], threads)

    def forward() -> Array:
        (output,) = session.run([result], feeds)
        view: Array = output.reshape(B, case.M, heads, -1).swapaxes(1, 2)
        return view

    return forward
