"""Computes logits of whole typed graphs, to check inference: PyG for rgcn and hgt, numpy for
simple_hgn.

typed_forward.py JOB MODEL OUTPUT [OUTPUT ...]
typed_forward.py --same OUTPUT OTHER

Reads the tables that `[input]` of the job file JOB names, with absolute paths, and all in-edges of
all nodes. Runs the model of the directory MODEL on the whole graph in float64: with docs/pyg.py on
PyG's RGCNConv, HGTConv or HeteroConv, and simple_hgn with the formulas of `SimpleHgn` below. No
code is shared with the project. Prints, for each OUTPUT of inference, the largest relative
difference of a row of logits: its largest difference over its largest number. With `--same`,
compares the logits of two outputs. Exits with 1 if a difference is above 1e-5, or if the ids are
not those of the target type's table.
"""

import glob
import os
import sys
import tomllib

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "docs")))

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import forward

# Slope of the leaky non-linearity below 0, as in GAT. Simple-HGN's paper leaves it open.
SLOPE = 0.2


class Graph:
    """Nodes by type, in the order of the tables; edges `(src, dst)` by `(from, relation, to)`."""

    def __init__(self, job):
        with open(job, "rb") as file:
            tables = tomllib.load(file)["input"]
        self.ids, self.features = {}, {}
        for name, of in tables["nodes"].items():
            table = pq.read_table(of["path"])
            self.ids[name] = table[of["id"]].combine_chunks()
            columns = [forward.matrix(forward.column(table, c)) for c in of.get("features", [])]
            if columns:
                self.features[name] = np.concatenate(columns, axis=1)
        self.edges = {}
        for name, of in tables["edges"].items():
            table = pq.read_table(of["path"])
            for column, value in of.get("where", {}).items():
                table = table.filter(pc.equal(table[column].cast(pa.string()), value))
            ends = [
                pc.index_in(table[of[end]], value_set=self.ids[of[side]]).to_numpy().astype(int)
                for end, side in [("src", "from"), ("dst", "to")]
            ]
            self.edges[of["from"], name, of["to"]] = np.stack(ends)
            if "reverse" in of:
                self.edges[of["to"], of["reverse"], of["from"]] = np.stack(ends[::-1])


def of_pyg(model_dir, graph):
    """Returns the logits of the target type, computed by PyG."""
    import pyg
    import torch

    def rows(name):
        ids, columns = graph.ids[name], []
        if name in graph.features:
            x = torch.from_numpy(graph.features[name].astype(np.float32))
            columns.append(pyg.transform(model_dir, x, name))
        if name in pyg.read_json(model_dir).get("extra", {}).get("embeddings", {}):
            columns.append(pyg.learnable_rows(model_dir, ids, name))
        columns = columns or [torch.ones(len(ids), 1)]
        return torch.cat(columns, dim=1).double()

    x_dict = {name: rows(name) for name in graph.ids}
    edges = {key: torch.from_numpy(ends) for key, ends in graph.edges.items()}
    with torch.no_grad():
        return pyg.load(model_dir).double()(x_dict, edges).numpy()


class SimpleHgn:
    """The formulas of section 5 of Lv et al., "Are we really making much progress? Revisiting,
    benchmarking and refining heterogeneous graph neural networks", KDD 2021.

    Input of layer 1: `h_v = W_t x_v + b_t`, for the type t of v. In a layer, for each head and each
    in-edge u -> v of relation r:

        e_uv = LeakyReLU(a_l . W h_u + a_r . W h_v + a_e . W_e r)
        a_uv = (1 - beta) softmax over v's in-edges of e_uv + beta a_uv of the layer before
        h'_v = activation(sum of a_uv W h_u + W_res h_v)

    As in the program of the authors, a self-loop of a relation of its own takes the place of a
    node's own ones; layer 1 has no W_res; W_res is the identity between equal widths; the last
    layer has no beta and no activation, and takes the mean of the heads. The logits are divided by
    their length.
    """

    def __init__(self, model_dir, graph):
        import json

        with open(os.path.join(model_dir, "model.json"), encoding="utf-8") as file:
            self.file = json.load(file)
        self.arch, self.graph, self.model_dir = self.file["architecture"], graph, model_dir
        self.tensors = forward.read_tensors(os.path.join(model_dir, "model.safetensors"))
        self.used = set()
        is_known = self.arch["norm"] == "none" and self.arch["normalize_output"]
        if not is_known or any(of != "none" for of in self.file["transforms"].values()):
            sys.exit(f"{model_dir}: a norm or a transform is not supported")
        self.types = [of["name"] for of in self.arch["types"]]
        counts = [len(graph.ids[name]) for name in self.types]
        self.first = dict(zip(self.types, np.cumsum([0, *counts]).tolist()))
        self.num_nodes = sum(counts)
        self.src, self.dst, self.relation = self.all_edges()

    def get(self, name):
        self.used.add(name)
        return self.tensors[name]

    def all_edges(self):
        """Returns src, dst and relation of all edges, by dst: the nodes of all types are numbered."""
        src, dst, relation = [], [], []
        for at, of in enumerate(self.arch["relations"]):
            ends = self.graph.edges[of["from"], of["name"], of["to"]]
            ends = ends + [[self.first[of["from"]]], [self.first[of["to"]]]]
            ends = ends[:, ends[0] != ends[1]]
            src, dst = [*src, ends[0]], [*dst, ends[1]]
            relation.append(np.full(ends.shape[1], at))
        nodes = np.arange(self.num_nodes)
        src, dst = np.concatenate([*src, nodes]), np.concatenate([*dst, nodes])
        relation = np.concatenate([*relation, np.full(self.num_nodes, len(relation))])
        order = np.argsort(dst, kind="stable")
        return src[order], dst[order], relation[order]

    def learnable_rows(self, name):
        """Returns the learnable rows of a type; a node without a row has the mean of the rows."""
        of = self.file["extra"]["embeddings"][name]
        table = pq.read_table(os.path.join(self.model_dir, of["file"]))
        own = table["id"].combine_chunks()
        at = pc.index_in(self.graph.ids[name], value_set=own).fill_null(len(own))
        rows = [forward.matrix(forward.column(table, "embedding")), [of["mean"]]]
        return np.concatenate(rows)[at.to_numpy()]

    def input(self):
        rows = []
        for name in self.types:
            x = [self.graph.features[name]] if name in self.graph.features else []
            if name in self.file.get("extra", {}).get("embeddings", {}):
                x.append(self.learnable_rows(name))
            x = np.concatenate(x or [np.ones((len(self.graph.ids[name]), 1))], axis=1)
            rows.append(x @ self.get(f"lins.{name}.weight").T + self.get(f"lins.{name}.bias"))
        return np.concatenate(rows)

    def by_dst(self, ufunc, values):
        """Reduces edges to their dst nodes; each node has at least its self-loop."""
        starts = np.searchsorted(self.dst, np.arange(self.num_nodes))
        return ufunc.reduceat(values, starts, axis=0)

    def attention(self, conv, h):
        """Returns the softmax of the scores of `h`, `[nodes, heads, dim]`: `[edges, heads]`."""
        heads = h.shape[1]
        left, right = ((h * self.get(f"{conv}.{a}")).sum(axis=2) for a in ("attn_l", "attn_r"))
        of_relation = self.get(f"{conv}.edge_emb.weight") @ self.get(f"{conv}.fc_e.weight").T
        of_relation = of_relation.reshape(len(of_relation), heads, -1)
        of_relation = (of_relation * self.get(f"{conv}.attn_e")).sum(axis=2)
        score = left[self.src] + right[self.dst] + of_relation[self.relation]
        score = np.where(score > 0, score, SLOPE * score)
        exp = np.exp(score - self.by_dst(np.maximum, score)[self.dst])
        return exp / self.by_dst(np.add, exp)[self.dst]

    def layer(self, at, x, before):
        """Returns the output of a layer, counted from 0, and its attention."""
        arch, conv = self.arch, f"convs.{at}"
        is_hidden = at < len(arch["hidden"])
        heads = arch["heads"] if is_hidden else arch["out_heads"]
        h = (x @ self.get(f"{conv}.fc.weight").T).reshape(len(x), heads, -1)
        alpha, beta = self.attention(conv, h), arch["attention_residual"]
        if before is not None and is_hidden:
            alpha = (1 - beta) * alpha + beta * before
        # One head at a time: all edges of all heads would take gigabytes.
        sums = [
            self.by_dst(np.add, alpha[:, k, None] * h[self.src, k]) for k in range(heads)
        ]
        out = np.stack(sums, axis=1)
        if arch["residual"] and at > 0:
            has_map = f"{conv}.res_fc.weight" in self.tensors
            own = x @ self.get(f"{conv}.res_fc.weight").T if has_map else x
            out = out + own.reshape(out.shape)
        if not is_hidden:
            return out.mean(axis=1), alpha
        out = out.reshape(len(x), -1)
        if arch["activation"] == "elu":
            return np.where(out > 0, out, np.expm1(np.minimum(out, 0))), alpha
        return np.maximum(out, 0), alpha

    def logits(self):
        x, alpha = self.input(), None
        for at in range(self.arch["num_layers"]):
            x, alpha = self.layer(at, x, alpha)
        target = self.arch["target_type"]
        first = self.first[target]
        x = x[first : first + len(self.graph.ids[target])]
        if len(self.arch["hidden"]) == self.arch["num_layers"]:
            x = x @ self.get("lin.weight").T + self.get("lin.bias")
        unused = set(self.tensors) - self.used
        if unused:
            sys.exit(f"tensors that no formula reads: {sorted(unused)}")
        return x / np.linalg.norm(x, axis=1, keepdims=True)


def logits_of(model_dir, graph):
    """Returns the ids of the target type and their logits on the whole graph."""
    import json

    with open(os.path.join(model_dir, "model.json"), encoding="utf-8") as file:
        arch = json.load(file)["architecture"]
    is_simple_hgn = arch["layer"] == "simple_hgn"
    rows = SimpleHgn(model_dir, graph).logits() if is_simple_hgn else of_pyg(model_dir, graph)
    return graph.ids[arch["target_type"]].to_pylist(), rows


def read_output(output):
    parts = sorted(glob.glob(os.path.join(output, "**", "part-*.parquet"), recursive=True))
    return pa.concat_tables([pq.read_table(part) for part in parts])


def main():
    if sys.argv[1] == "--same":
        first, *outputs = sys.argv[2:]
        table = read_output(first)
        ids, expected = table["id"].to_pylist(), forward.matrix(forward.column(table, "logits"))
    else:
        job, model_dir, *outputs = sys.argv[1:]
        ids, expected = logits_of(model_dir, Graph(job))
    has_failed = False
    for output in outputs:
        difference = forward.compare("logits", expected, read_output(output), ids)
        is_wrong = not difference <= forward.TOLERANCE  # also true of NaN
        has_failed |= is_wrong
        print(f"{'WRONG' if is_wrong else 'ok'}: {output} {len(ids)} rows {difference:.1e}")
    sys.exit(int(has_failed))


if __name__ == "__main__":
    main()
