"""Loads a model directory (`model.safetensors`, `model.json`) into PyG; docs/pyg.md explains it.

    model = pyg.load("out/debian/model")             # any model
    model = pyg.load_whole("out/debian/model")       # one of torch_geometric.nn.models
    x = pyg.transform("out/debian/model", features)
    out = model(x, edge_index)                       # logits, or predictions of a regression

Needs torch, torch_geometric and safetensors.
"""

import json
import os

import torch
from safetensors.torch import load_file
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU}
NORMS = {"none": None, "batch": "batch_norm", "layer": "layer_norm"}


def read_json(model_dir):
    with open(os.path.join(model_dir, "model.json"), encoding="utf-8") as file:
        return json.load(file)


def norm_of(arch, width):
    """Returns the norm of a layer. `norm = "layer"` is mode="node"; PyG's default is mode="graph"."""
    if arch["norm"] == "batch":
        return pyg.BatchNorm(width)
    return pyg.LayerNorm(width, mode="node") if arch["norm"] == "layer" else nn.Identity()


def norm_kwargs(arch):
    return {"mode": "node"} if arch["norm"] == "layer" else {}


def conv_of(arch, at):
    """Returns the conv of a layer, counted from 0."""
    widths = [arch["in_dim"], *arch["hidden"], arch["out_dim"]]
    width_in, width = widths[at], widths[at + 1]
    is_hidden = at < len(arch["hidden"])
    layer, edge_dim = arch["layer"], arch["edge_dim"]
    if layer == "gcn":
        return pyg.GCNConv(width_in, width)
    if layer == "sage":
        return pyg.SAGEConv(width_in, width, aggr=arch["aggregator"])
    if layer == "gin":
        perceptron = pyg.MLP(
            [width_in, width, width],
            act=ACTIVATIONS[arch["activation"]](),
            norm=NORMS[arch["norm"]],
            norm_kwargs=norm_kwargs(arch),
        )
        return pyg.GINEConv(perceptron, edge_dim=edge_dim) if edge_dim else pyg.GINConv(perceptron)
    heads = arch["heads"] if is_hidden else arch["out_heads"]
    kind = {"gat": pyg.GATConv, "gatv2": pyg.GATv2Conv}[layer]
    head_width = width // heads if is_hidden else width
    return kind(width_in, head_width, heads=heads, concat=is_hidden, edge_dim=edge_dim)


class Stack(nn.Module):
    """A stack of convs with residual, norm, activation and head: all options of `[train]`."""

    def __init__(self, arch):
        super().__init__()
        layers, hidden = arch["num_layers"], arch["hidden"]
        widths = [arch["in_dim"], *hidden, arch["out_dim"]]
        self.arch = arch
        self.convs = nn.ModuleList(conv_of(arch, at) for at in range(layers))
        self.norms = nn.ModuleList(norm_of(arch, width) for width in hidden)
        self.act = ACTIVATIONS[arch["activation"]]()
        self.res = nn.ModuleDict()
        for at in range(layers):
            if arch["residual"] and widths[at] != widths[at + 1]:
                self.res[str(at)] = nn.Linear(widths[at], widths[at + 1], bias=False)
        self.lin = nn.Linear(hidden[-1], arch["out_dim"]) if len(hidden) == layers else nn.Identity()

    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        extra = {}
        if self.arch["edge_weight"]:
            if self.arch["layer"] != "gcn":
                raise ValueError("only GCNConv takes edge weights in PyG")
            extra["edge_weight"] = edge_weight
        if self.arch["edge_dim"]:
            extra["edge_attr"] = edge_attr
        for at, conv in enumerate(self.convs):
            out = conv(x, edge_index, **extra)
            if self.arch["residual"]:
                out = out + (self.res[str(at)](x) if str(at) in self.res else x)
            x = self.act(self.norms[at](out)) if at < len(self.norms) else out
        return self.lin(x)


class Unscaled(nn.Module):
    """Converts the output of a regression to the unit of the labels."""

    def __init__(self, model, scale):
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(scale["mean"]), persistent=False)
        self.register_buffer("deviation", torch.tensor(scale["deviation"]), persistent=False)

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs) * self.deviation + self.mean


def finish(model_dir, model):
    model.load_state_dict(load_file(os.path.join(model_dir, "model.safetensors")), strict=True)
    scale = read_json(model_dir).get("label_scale")
    return (Unscaled(model, scale) if scale else model).eval()


def load(model_dir):
    """Loads any model as a stack of PyG's convs."""
    return finish(model_dir, Stack(read_json(model_dir)["architecture"]))


def load_whole(model_dir):
    """Loads one of PyG's whole models. A ValueError names an option that they do not have."""
    arch = read_json(model_dir)["architecture"]
    layer, hidden = arch["layer"], arch["hidden"]
    is_attention = layer in ("gat", "gatv2")
    for problem, name in [
        (arch["residual"], "residual"),
        (arch["edge_dim"] and not is_attention, "edge features of gin"),
        (len(set(hidden)) > 1, "hidden widths that differ"),
        (not hidden, "a single layer without a hidden width"),
        (is_attention and len(hidden) < arch["num_layers"] and arch["heads"] != arch["out_heads"],
         "`out_heads` other than `heads`"),
        (arch["edge_weight"] and layer != "gcn", "edge weights of any model but gcn"),
    ]:
        if problem:
            raise ValueError(f"PyG's whole models have no {name}")
    kind = {"gcn": models.GCN, "sage": models.GraphSAGE, "gin": models.GIN}.get(layer, models.GAT)
    keys = {"sage": {"aggr": arch["aggregator"]}}.get(layer, {})
    if is_attention:
        keys = {"v2": layer == "gatv2", "heads": arch["heads"], "edge_dim": arch["edge_dim"]}
    model = kind(
        arch["in_dim"], hidden[0], arch["num_layers"], arch["out_dim"],
        act=arch["activation"],
        norm=NORMS[arch["norm"]],
        norm_kwargs=norm_kwargs(arch),
        jk="last" if len(hidden) == arch["num_layers"] else None,
        **keys,
    )
    return finish(model_dir, model)


def transform(model_dir, x):
    """Applies the transform of the training to raw features."""
    fitted = read_json(model_dir)["transform"]
    if fitted == "row_normalize":
        return x / x.sum(dim=1, keepdim=True).clamp(min=1.0)
    if isinstance(fitted, dict):
        mean, scale = (torch.tensor(fitted["standardize"][key]) for key in ("mean", "scale"))
        return (x - mean) * scale
    return x
