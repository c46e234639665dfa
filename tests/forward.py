"""Computes embeddings and logits of whole graphs by the published formulas, to check inference.

forward.py --nodes NODES --edges EDGES [--undirected] --case MODEL EMBEDDINGS [--case ...]

Reads the tables, `model.safetensors` and `model.json` of each MODEL, and the Parquet files of each
EMBEDDINGS, which inference has written with all in-edges. Shares no code with the project: the
layers are PyG's (GCNConv, SAGEConv, GINConv, GINEConv, GATConv, GATv2Conv) in float64, with the
choices that docs/job/input.md and the documentation of gnn/src/layer state. Prints, for each case and
column, the largest relative difference of a row: its largest difference over its largest number.
Exits with 1 if one is above 1e-5, or if the ids are not those of the node table.
"""

import argparse
import glob
import json
import os
import struct
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Relative error of sums of some dozen f32, with room for cancellation within a row.
TOLERANCE = 1e-5
NORM_EPS = 1e-5
ATTENTION_SLOPE = 0.2


def column(table, name):
    values = table.column(name).combine_chunks()
    return values.chunk(0) if isinstance(values, pa.ChunkedArray) else values


def matrix(values):
    """Returns a column of equally long lists, or of numbers, as float64 rows."""
    flat = values.flatten() if pa.types.is_nested(values.type) else values
    return flat.to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(values), -1)


def read_tensors(path):
    """Reads a file in the format of safetensors: length of the header, header, data."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        values = np.frombuffer(data[begin:end], {"F32": "<f4", "I64": "<i8"}[info["dtype"]])
        tensors[name] = values.reshape(info["shape"]).astype(np.float64)
    return tensors


class Graph:
    """Nodes by row of the table; edges src -> dst, including parallel edges and self-loops."""

    def __init__(self, nodes, edges, undirected):
        nodes, edges = pq.read_table(nodes), pq.read_table(edges)
        self.ids = column(nodes, "id").to_pylist()
        self.num_nodes = len(self.ids)
        self.x = matrix(column(nodes, "features"))
        place = {node: at for at, node in enumerate(self.ids)}
        src, dst = (np.array([place[node] for node in column(edges, end).to_pylist()]) for end in ("src", "dst"))
        weight, features = (matrix(column(edges, name)) for name in ("weight", "distance"))
        if undirected:  # adds the reverse of every edge, also of self-loops
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
            weight, features = np.concatenate([weight, weight]), np.concatenate([features, features])
        self.src, self.dst, self.weight, self.features = src, dst, weight[:, 0], features


def sum_by(index, values, num_rows):
    out = np.zeros((num_rows,) + values.shape[1:])
    np.add.at(out, index, values)
    return out


def max_by(index, values, num_rows, empty):
    out = np.full((num_rows,) + values.shape[1:], -np.inf)
    np.maximum.at(out, index, values)
    return np.where(np.isinf(out), empty, out)


class Model:
    """One model on one graph."""

    def __init__(self, directory, graph):
        with open(os.path.join(directory, "model.json")) as file:
            content = json.load(file)
        self.arch = content["architecture"]
        if content["transform"] != "none":
            sys.exit(f"{directory}: no transform is supported, but the model has {content['transform']}")
        self.tensors = read_tensors(os.path.join(directory, "model.safetensors"))
        self.used = set()
        self.graph = graph
        self.weight = graph.weight if self.arch["edge_weight"] else np.ones(len(graph.src))

    def get(self, name):
        self.used.add(name)
        return self.tensors[name]

    def linear(self, name, x):
        out = x @ self.get(f"{name}.weight").T
        return out + self.get(f"{name}.bias") if f"{name}.bias" in self.tensors else out

    def activation(self, x):
        return {"relu": np.maximum(x, 0), "elu": np.where(x > 0, x, np.expm1(np.minimum(x, 0)))}[self.arch["activation"]]

    def norm(self, name, x):
        if self.arch["norm"] == "none":
            return x
        if self.arch["norm"] == "batch":  # evaluation uses the running statistics
            name = f"{name}.module"
            mean, variance = self.get(f"{name}.running_mean"), self.get(f"{name}.running_var")
        else:
            mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
        return (x - mean) / np.sqrt(variance + NORM_EPS) * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def gcn(self, conv, x):
        """D^-1/2 A D^-1/2 X W + b, where A has exactly one self-loop a node, of weight 1 or of
        the sum of the weights of its self-loops in the table."""
        graph, num_nodes = self.graph, self.graph.num_nodes
        is_loop = graph.src == graph.dst
        loop = np.ones(num_nodes)
        if self.arch["edge_weight"]:
            has_loop = np.bincount(graph.dst[is_loop], minlength=num_nodes) > 0
            loop[has_loop] = sum_by(graph.dst[is_loop], self.weight[is_loop], num_nodes)[has_loop]
        nodes = np.arange(num_nodes)
        src, dst = np.concatenate([graph.src[~is_loop], nodes]), np.concatenate([graph.dst[~is_loop], nodes])
        weight = np.concatenate([self.weight[~is_loop], loop])
        degree = sum_by(dst, weight, num_nodes)
        coefficient = weight / np.sqrt(degree[src] * degree[dst])
        h = x @ self.get(f"{conv}.lin.weight").T
        return sum_by(dst, coefficient[:, None] * h[src], num_nodes) + self.get(f"{conv}.bias")

    def sage(self, conv, x):
        """lin_l(mean or max of w x_u) + lin_r(x_v); the mean's divisor is the number of in-edges."""
        graph, num_nodes = self.graph, self.graph.num_nodes
        message = self.weight[:, None] * x[graph.src]
        if self.arch["aggregator"] == "max":
            aggregate = max_by(graph.dst, message, num_nodes, 0.0)
        else:
            count = np.bincount(graph.dst, minlength=num_nodes)
            aggregate = sum_by(graph.dst, message, num_nodes) / np.maximum(count, 1)[:, None]
        return self.linear(f"{conv}.lin_l", aggregate) + self.linear(f"{conv}.lin_r", x)

    def gin(self, conv, x):
        """nn((1 + eps) x_v + sum of w x_u); GINE's message is relu(x_u + lin(e))."""
        graph = self.graph
        message = x[graph.src]
        if self.arch["edge_dim"]:
            message = np.maximum(message + self.linear(f"{conv}.lin", graph.features), 0)
        h = (1 + self.get(f"{conv}.eps")) * x + sum_by(graph.dst, self.weight[:, None] * message, graph.num_nodes)
        h = self.norm(f"{conv}.nn.norms.0", self.linear(f"{conv}.nn.lins.0", h))
        return self.linear(f"{conv}.nn.lins.1", self.activation(h))

    def attention_edges(self):
        """Returns src, dst, factor and features of all edges but self-loops, and of one self-loop a
        node, whose features are the mean of those of the node's other in-edges."""
        graph, num_nodes = self.graph, self.graph.num_nodes
        keep = graph.src != graph.dst
        src, dst, nodes = graph.src[keep], graph.dst[keep], np.arange(num_nodes)
        count = np.maximum(np.bincount(dst, minlength=num_nodes), 1)
        features = graph.features[keep]
        mean = sum_by(dst, features, num_nodes) / count[:, None]
        factor = np.concatenate([self.weight[keep], np.ones(num_nodes)])
        return np.concatenate([src, nodes]), np.concatenate([dst, nodes]), factor, np.concatenate([features, mean])

    def attend(self, score, dst, factor, values):
        """Returns the sum of values by dst, weighted by factor and softmax of score, [edges, heads]."""
        num_nodes = self.graph.num_nodes
        exp = np.exp(score - max_by(dst, score, num_nodes, 0.0)[dst])
        share = exp / sum_by(dst, exp, num_nodes)[dst] * factor[:, None]
        return sum_by(dst, share[:, :, None] * values, num_nodes)

    def join_heads(self, conv, out, is_averaged):
        out = out.mean(axis=1) if is_averaged else out.reshape(len(out), -1)
        return out + self.get(f"{conv}.bias")

    def gat(self, conv, x, heads, is_averaged):
        src, dst, factor, features = self.attention_edges()
        split = lambda rows: rows.reshape(len(rows), heads, -1)
        h = split(x @ self.get(f"{conv}.lin.weight").T)
        score = (h * self.get(f"{conv}.att_src")).sum(axis=2)[src] + (h * self.get(f"{conv}.att_dst")).sum(axis=2)[dst]
        if self.arch["edge_dim"]:
            e = split(features @ self.get(f"{conv}.lin_edge.weight").T)
            score = score + (e * self.get(f"{conv}.att_edge")).sum(axis=2)
        score = np.where(score > 0, score, ATTENTION_SLOPE * score)
        return self.join_heads(conv, self.attend(score, dst, factor, h[src]), is_averaged)

    def gatv2(self, conv, x, heads, is_averaged):
        src, dst, factor, features = self.attention_edges()
        split = lambda rows: rows.reshape(len(rows), heads, -1)
        left, right = split(self.linear(f"{conv}.lin_l", x)), split(self.linear(f"{conv}.lin_r", x))
        h = left[src] + right[dst]
        if self.arch["edge_dim"]:
            h = h + split(features @ self.get(f"{conv}.lin_edge.weight").T)
        h = np.where(h > 0, h, ATTENTION_SLOPE * h)
        score = (h * self.get(f"{conv}.att")).sum(axis=2)
        return self.join_heads(conv, self.attend(score, dst, factor, left[src]), is_averaged)

    def forward(self):
        """Returns the embeddings, which are the rows of the last hidden layer, and the logits."""
        arch, x = self.arch, self.graph.x
        embedding = None
        num_layers = arch["num_layers"]
        has_head = len(arch["hidden"]) == num_layers
        for layer in range(num_layers):
            is_hidden = has_head or layer + 1 < num_layers
            conv = f"convs.{layer}"
            if arch["layer"] in ("gat", "gatv2"):
                heads = arch["heads"] if is_hidden else arch["out_heads"]
                out = getattr(self, arch["layer"])(conv, x, heads, not is_hidden)
            else:
                out = getattr(self, arch["layer"])(conv, x)
            if arch["residual"]:
                out = out + (self.linear(f"res.{layer}", x) if out.shape[1] != x.shape[1] else x)
            x = self.activation(self.norm(f"norms.{layer}", out)) if is_hidden else out
            if is_hidden or num_layers == 1:
                embedding = x
        logits = self.linear("lin", x) if has_head else x
        unused = {name for name in self.tensors if not name.endswith(".num_batches_tracked")} - self.used
        if unused:
            sys.exit(f"tensors that no formula reads: {sorted(unused)}")
        return {"embedding": embedding, "logits": logits}


def compare(name, expected, table, ids):
    """Returns the largest relative difference of a row."""
    found_ids = column(table, "id").to_pylist()
    if sorted(found_ids) != sorted(ids):
        sys.exit(f"{name}: the {len(found_ids)} ids are not the {len(ids)} of the node table")
    place = {node: at for at, node in enumerate(ids)}
    wanted = expected[[place[node] for node in found_ids]]
    found = matrix(column(table, name))
    if found.shape != wanted.shape:
        sys.exit(f"{name}: {found.shape[1]} numbers a row, not {wanted.shape[1]}")
    scale = np.abs(wanted).max(axis=1)
    difference = np.abs(found - wanted).max(axis=1)
    relative = np.divide(difference, scale, out=np.where(difference > 0, np.inf, 0.0), where=scale > 0)
    return relative.max(initial=0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--edges", required=True)
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--case", nargs=2, action="append", required=True, metavar=("MODEL", "EMBEDDINGS"))
    args = parser.parse_args()
    graph = Graph(args.nodes, args.edges, args.undirected)
    has_failed = False
    for model, embeddings in args.case:
        expected = Model(model, graph).forward()
        files = sorted(glob.glob(os.path.join(embeddings, "*.parquet")))
        table = pa.concat_tables([pq.read_table(file) for file in files])
        for name, rows in expected.items():
            difference = compare(name, rows, table, graph.ids)
            is_wrong = not difference <= TOLERANCE  # also true of NaN
            has_failed |= is_wrong
            print(f"{'WRONG' if is_wrong else 'ok'}: {embeddings} {name} {difference:.1e}")
    sys.exit(int(has_failed))


if __name__ == "__main__":
    main()
