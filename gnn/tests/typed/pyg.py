"""Loads typed models into PyG with strict=True and compares PyG's outputs with those given.

pyg.py DIR...

Each DIR has `model.safetensors`, `model.json`, and `graph.json` with the features by type (`x`), the
edges by relation (`relations`: [src, dst, weight, features]) and the outputs of the model (`out`).
Prints `ok:` or `bad:` and the largest relative difference for each. Exits with 1 if one is bad.
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch_geometric import nn as pyg

# Error of sums of some dozen numbers in float32.
TOLERANCE = 1e-5
ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU}
NORMS = {"none": None, "batch": "batch_norm", "layer": "layer_norm"}


def norm_of(arch, width):
    if arch["norm"] == "batch":
        return pyg.BatchNorm(width)
    return pyg.LayerNorm(width, mode="node") if arch["norm"] == "layer" else nn.Identity()


def conv_of(arch, relation, width_in, width, heads, is_hidden):
    """Returns the conv of one relation."""
    layer, edge_dim = arch["layer"], relation["edge_dim"]
    is_one_type = relation["from"] == relation["to"]
    both = width_in if is_one_type else (width_in, width_in)
    if layer == "gcn":
        return pyg.GCNConv(width_in, width)
    if layer == "sage":
        return pyg.SAGEConv(both, width, aggr=arch["aggregator"])
    if layer == "gin":
        perceptron = pyg.MLP(
            [width_in, width, width],
            act=ACTIVATIONS[arch["activation"]](),
            norm=NORMS[arch["norm"]],
            norm_kwargs={"mode": "node"} if arch["norm"] == "layer" else {},
        )
        return pyg.GINEConv(perceptron, edge_dim=edge_dim) if edge_dim else pyg.GINConv(perceptron)
    kind = {"gat": pyg.GATConv, "gatv2": pyg.GATv2Conv}[layer]
    head_width = width // heads if is_hidden else width
    return kind(
        both, head_width, heads=heads, concat=is_hidden, edge_dim=edge_dim,
        add_self_loops=is_one_type,
    )


class Model(nn.Module):
    """A typed model: PyG's convs, and around them the options of the architecture."""

    def __init__(self, arch):
        super().__init__()
        self.arch, self.layers = arch, arch["num_layers"]
        self.types = [of["name"] for of in arch["types"]]
        self.relations = arch["relations"]
        self.edge_types = [(of["from"], of["name"], of["to"]) for of in self.relations]
        hidden, width = arch["hidden"], arch["projection"]
        widths = [width, *hidden, arch["out_dim"]]
        self.widths = widths
        self.lins = nn.ModuleDict({of["name"]: nn.Linear(of["in_dim"] or 1, width) for of in arch["types"]})
        self.convs = nn.ModuleList(self.layer_of(at) for at in range(self.layers))
        self.norms = nn.ModuleList(
            nn.ModuleDict({t: norm_of(arch, width) for t in self.types}) for width in hidden
        )
        self.res, self.skips = nn.ModuleDict(), nn.ModuleDict()
        into = {to for _, _, to in self.edge_types}
        for at in range(self.layers):
            width_in, width = widths[at], widths[at + 1]
            if arch["residual"] and width_in != width:
                maps = {t: nn.Linear(width_in, width, bias=False) for t in self.types}
                self.res[str(at)] = nn.ModuleDict(maps)
            if arch["layer"] != "rgcn":
                maps = {t: nn.Linear(width_in, width) for t in self.types if t not in into}
                self.skips[str(at)] = nn.ModuleDict(maps)
        self.act = ACTIVATIONS[arch["activation"]]()
        self.lin = nn.Linear(hidden[-1], arch["out_dim"]) if len(hidden) == self.layers else nn.Identity()

    def layer_of(self, at):
        arch, is_hidden = self.arch, at < len(self.arch["hidden"])
        width_in, width = self.widths[at], self.widths[at + 1]
        heads = arch["heads"] if is_hidden else arch["out_heads"]
        if arch["layer"] == "rgcn":
            return pyg.RGCNConv(width_in, width, len(self.relations), num_bases=arch["num_bases"])
        if arch["layer"] == "hgt":
            return pyg.HGTConv(width_in, width, (self.types, self.edge_types), heads=heads)
        convs = {
            edge_type: conv_of(arch, of, width_in, width, heads, is_hidden)
            for edge_type, of in zip(self.edge_types, self.relations)
        }
        return pyg.HeteroConv(convs, aggr=arch["relation_aggregator"])

    def conv(self, at, x, edges):
        conv, layer = self.convs[at], self.arch["layer"]
        edge_index = {key: index for key, (index, _, _) in zip(self.edge_types, edges)}
        if layer == "hgt":
            return conv(x, edge_index)
        if layer == "rgcn":
            starts, total = {}, 0
            for name in self.types:
                starts[name], total = total, total + len(x[name])
            shifted = [
                index + torch.tensor([[starts[src]], [starts[dst]]])
                for (src, _, dst), (index, _, _) in zip(self.edge_types, edges)
            ]
            relation = [torch.full((e.shape[1],), at) for at, e in enumerate(shifted)]
            out = conv(
                torch.cat([x[t] for t in self.types]), torch.cat(shifted, 1), torch.cat(relation)
            )
            parts = out.split([len(x[t]) for t in self.types])
            return dict(zip(self.types, parts))
        # HeteroConv passes an argument to each relation that has one.
        weights = {
            key: weight
            for key, of, (_, weight, _) in zip(self.edge_types, self.relations, edges)
            if of["edge_weight"]
        }
        features = {
            key: feature
            for key, of, (_, _, feature) in zip(self.edge_types, self.relations, edges)
            if of["edge_dim"]
        }
        extra = {}
        if weights:
            extra["edge_weight_dict"] = weights
        if features:
            extra["edge_attr_dict"] = features
        return conv(x, edge_index, **extra)

    def forward(self, x, edges):
        is_hgt = self.arch["layer"] == "hgt"
        x = {t: self.lins[t](x[t]) for t in self.types}
        if is_hgt:
            x = {t: self.act(rows) for t, rows in x.items()}
        for at in range(self.layers):
            out = dict(self.conv(at, x, edges))
            for t in self.types:
                if str(at) in self.skips and t in self.skips[str(at)]:
                    out[t] = self.skips[str(at)][t](x[t])
                if self.arch["residual"]:
                    out[t] = out[t] + (self.res[str(at)][t](x[t]) if str(at) in self.res else x[t])
                if at < len(self.norms):
                    out[t] = self.norms[at][t](out[t])
                    out[t] = out[t] if is_hgt else self.act(out[t])
            x = out
        out = self.lin(x[self.arch["target_type"]])
        return nn.functional.normalize(out) if self.arch["normalize_output"] else out


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def edges_of(rows):
    src, dst, weight, feature = zip(*rows)
    return torch.tensor([src, dst]), torch.tensor(weight), torch.tensor(feature)


def main():
    torch.set_num_threads(1)
    bad = 0
    for model_dir in sys.argv[1:]:
        arch = read(os.path.join(model_dir, "model.json"))["architecture"]
        graph = read(os.path.join(model_dir, "graph.json"))
        model = Model(arch)
        weights = load_file(os.path.join(model_dir, "model.safetensors"))
        model.load_state_dict(weights, strict=True)
        x = {of["name"]: torch.tensor(rows) for of, rows in zip(arch["types"], graph["x"])}
        with torch.no_grad():
            out = model.eval()(x, [edges_of(rows) for rows in graph["relations"]])
        wanted = torch.tensor(graph["out"])
        largest = wanted.abs().amax(dim=1).clamp(min=1.0)
        off = float(((wanted - out).abs().amax(dim=1) / largest).max())
        bad += off > TOLERANCE
        print("ok:" if off <= TOLERANCE else "bad:", off, arch["layer"], arch["hidden"])
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
