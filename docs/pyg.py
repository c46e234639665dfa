"""Loads a model directory (`model.safetensors`, `model.json`) into PyG; docs/pyg.md explains it.

    model = pyg.load("out/debian/model")             # any model
    model = pyg.load_whole("out/debian/model")       # one of torch_geometric.nn.models
    x = pyg.transform("out/debian/model", features)  # or pyg.encode(model_dir, table)
    out = model(x, edge_index)                       # logits, or predictions of a regression

A model of a graph with node types takes the dicts of `HeteroData`:

    x = pyg.transform(model_dir, features, "paper")
    rows = pyg.learnable_rows(model_dir, ids, "paper")
    x_dict = {"paper": torch.cat([x, rows], dim=1), ...}
    out = pyg.load(model_dir)(x_dict, edge_index_dict)

Needs torch, torch_geometric and safetensors, for learnable rows also pyarrow.
"""

import functools
import itertools
import json
import os
import warnings

import torch
from safetensors.torch import load_file
from torch import nn
from torch_geometric import backend
from torch_geometric import nn as pyg
from torch_geometric.nn import models

ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU}
NORMS = {"none": None, "batch": "batch_norm", "layer": "layer_norm"}


def read_json(model_dir):
    with open(os.path.join(model_dir, "model.json"), encoding="utf-8") as file:
        return json.load(file)


def norm_of(arch, width):
    """Returns the norm of a layer. `"layer"` is mode="node"; PyG's default is mode="graph"."""
    if arch["norm"] == "batch":
        return pyg.BatchNorm(width)
    return pyg.LayerNorm(width, mode="node") if arch["norm"] == "layer" else nn.Identity()


def norm_kwargs(arch):
    return {"mode": "node"} if arch["norm"] == "layer" else {}


def widths_of(arch):
    """Returns the widths of the input, of each hidden layer and of the output."""
    return [arch["projection" if "types" in arch else "in_dim"], *arch["hidden"], arch["out_dim"]]


def heads_of(arch, at):
    return arch["heads"] if at < len(arch["hidden"]) else arch["out_heads"]


def head_of(arch):
    """Returns the linear head, or nothing if the last conv predicts."""
    has_head = len(arch["hidden"]) == arch["num_layers"]
    return nn.Linear(arch["hidden"][-1], arch["out_dim"]) if has_head else nn.Identity()


def conv_of(arch, at, edge_dim, is_one_type=True):
    """Returns the conv of a layer, counted from 0, for edges within a type or between two."""
    width_in, width = widths_of(arch)[at : at + 2]
    both = width_in if is_one_type else (width_in, width_in)
    layer, heads, is_hidden = arch["layer"], heads_of(arch, at), at < len(arch["hidden"])
    if layer == "gcn":
        return pyg.GCNConv(width_in, width)
    if layer == "sage":
        return pyg.SAGEConv(both, width, aggr=arch["aggregator"])
    if layer == "gin":
        perceptron = pyg.MLP(
            [width_in, width, width],
            act=ACTIVATIONS[arch["activation"]](),
            norm=NORMS[arch["norm"]],
            norm_kwargs=norm_kwargs(arch),
        )
        return pyg.GINEConv(perceptron, edge_dim=edge_dim) if edge_dim else pyg.GINConv(perceptron)
    kind = {"gat": pyg.GATConv, "gatv2": pyg.GATv2Conv}[layer]
    return kind(
        both,
        width // heads if is_hidden else width,
        heads=heads,
        concat=is_hidden,
        edge_dim=edge_dim,
        add_self_loops=is_one_type,
    )


class Stack(nn.Module):
    """A stack of convs with residual, norm, activation and head: all options of `[train]`."""

    def __init__(self, arch):
        super().__init__()
        layers, widths = arch["num_layers"], widths_of(arch)
        self.arch = arch
        self.convs = nn.ModuleList(conv_of(arch, at, arch["edge_dim"]) for at in range(layers))
        self.norms = nn.ModuleList(norm_of(arch, width) for width in arch["hidden"])
        self.act = ACTIVATIONS[arch["activation"]]()
        self.res = nn.ModuleDict()
        for at in range(layers):
            if arch["residual"] and widths[at] != widths[at + 1]:
                self.res[str(at)] = nn.Linear(widths[at], widths[at + 1], bias=False)
        self.lin = head_of(arch)

    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        extra = {}
        if self.arch["edge_weight"]:
            check_weights(self.arch)
            extra["edge_weight"] = edge_weight
        if self.arch["edge_dim"]:
            extra["edge_attr"] = edge_attr
        for at, conv in enumerate(self.convs):
            out = conv(x, edge_index, **extra)
            if self.arch["residual"]:
                out = out + (self.res[str(at)](x) if str(at) in self.res else x)
            x = self.act(self.norms[at](out)) if at < len(self.norms) else out
        return self.lin(x)


def check_weights(arch):
    if arch["layer"] != "gcn":
        raise ValueError("only GCNConv takes edge weights in PyG")


class Named(nn.Module):
    """Modules by name, as `nn.ModuleDict`, which refuses names such as `items` and `type`."""

    def __init__(self, modules):
        super().__init__()
        self._modules.update(modules)

    def __contains__(self, name):
        return name in self._modules

    def __getitem__(self, name):
        return self._modules[name]


def typed_conv_of(arch, at, types, relations):
    """Returns the conv of a layer, counted from 0, for all relations of a graph with node types."""
    width_in, width = widths_of(arch)[at : at + 2]
    if arch["layer"] == "simple_hgn":
        raise ValueError("PyG has no conv for simple_hgn")
    if arch["layer"] == "rgcn":
        return pyg.RGCNConv(width_in, width, len(relations), num_bases=arch["num_bases"])
    if arch["layer"] == "hgt":
        return pyg.HGTConv(width_in, width, (types, list(relations)), heads=heads_of(arch, at))
    convs = {
        (src, name, dst): conv_of(arch, at, of["edge_dim"], is_one_type=src == dst)
        for (src, name, dst), of in relations.items()
    }
    with warnings.catch_warnings():
        # HeteroConv warns of types without in-edges. `skips` projects them.
        warnings.simplefilter("ignore")
        conv = pyg.HeteroConv(convs, aggr=arch["relation_aggregator"])
    if list(conv.convs.keys()) != list(relations):
        raise ValueError("HeteroConv needs names without `___` inside or `_` at an end")
    return conv


def run_rgcn(conv, x_dict, edge_index_dict):
    """Runs an RGCNConv, which numbers the nodes of all types and the relations."""
    counts = [len(x) for x in x_dict.values()]
    first = dict(zip(x_dict, itertools.accumulate([0, *counts])))
    edges = [
        index + index.new_tensor([[first[src]], [first[dst]]])
        for (src, _, dst), index in edge_index_dict.items()
    ]
    relation = [index.new_full((index.shape[1],), at) for at, index in enumerate(edges)]
    # With pyg-lib, RGCNConv may take one mean over the in-edges of all relations.
    before, backend.use_segment_matmul = backend.use_segment_matmul, False
    try:
        x = torch.cat(list(x_dict.values()))
        out = conv(x, torch.cat(edges, dim=1), torch.cat(relation))
    finally:
        backend.use_segment_matmul = before
    return dict(zip(x_dict, out.split(counts)))


def picked(name, given, keys):
    """Returns the values of `keys` in this order. A ValueError names those that are missing."""
    missing = [str(key) for key in keys if key not in (given or {})]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}")
    return {key: given[key] for key in keys}


POOLS = {"mean": pyg.global_mean_pool, "sum": pyg.global_add_pool, "max": pyg.global_max_pool}


def readout(kind, x, edge_index, num_graphs):
    """Pools the rows of nodes; `edge_index` leads from each node to its graph."""
    src, graph = edge_index
    return POOLS[kind](x[src], graph, num_graphs)


class Typed(nn.Module):
    """A stack of HeteroConv, RGCNConv or HGTConv: all options of `[train]` for node types."""

    def __init__(self, arch):
        super().__init__()
        layers, widths = arch["num_layers"], widths_of(arch)
        self.arch, self.types = arch, [of["name"] for of in arch["types"]]
        self.relations = {(of["from"], of["name"], of["to"]): of for of in arch["relations"]}
        dims = {of["name"]: of["in_dim"] or 1 for of in arch["types"]}
        self.into_graphs = None
        if arch.get("readout"):
            # The last layer is the readout. Graphs have no rows before it.
            layers -= 1
            graphs = arch["target_type"]
            self.types.remove(graphs)
            del dims[graphs]
            self.into_graphs = next(key for key in self.relations if key[2] == graphs)
            del self.relations[self.into_graphs]
        self.lins = Named({t: nn.Linear(dim, widths[0]) for t, dim in dims.items()})
        self.convs = nn.ModuleList(
            typed_conv_of(arch, at, self.types, self.relations) for at in range(layers)
        )
        self.norms = nn.ModuleList(
            Named({t: norm_of(arch, width) for t in self.types}) for width in arch["hidden"][:layers]
        )
        into = {dst for _, _, dst in self.relations}
        self.res, self.skips = nn.ModuleList(), nn.ModuleList()
        for at in range(layers):
            ends = widths[at : at + 2]
            mapped = self.types if arch["residual"] and ends[0] != ends[1] else []
            self.res.append(Named({t: nn.Linear(*ends, bias=False) for t in mapped}))
            # Types without in-edges; RGCNConv adds a map of its own to all nodes.
            apart = [t for t in self.types if t not in into and arch["layer"] != "rgcn"]
            self.skips.append(Named({t: nn.Linear(*ends) for t in apart}))
        self.act = ACTIVATIONS[arch["activation"]]()
        self.lin = head_of(arch)

    def extra(self, edge_weight_dict, edge_attr_dict):
        """Returns the arguments of HeteroConv that some relations need."""
        weighted = [key for key, of in self.relations.items() if of["edge_weight"]]
        featured = [key for key, of in self.relations.items() if of["edge_dim"]]
        extra = {}
        if weighted:
            check_weights(self.arch)
            extra["edge_weight_dict"] = picked("edge_weight_dict", edge_weight_dict, weighted)
        if featured:
            extra["edge_attr_dict"] = picked("edge_attr_dict", edge_attr_dict, featured)
        return extra

    def layer(self, at, x_dict, edge_index_dict, extra):
        """Returns the output of a layer, counted from 0, by type."""
        arch, conv = self.arch, self.convs[at]
        run = functools.partial(run_rgcn, conv) if arch["layer"] == "rgcn" else conv
        convolved, outputs = run(x_dict, edge_index_dict, **extra), {}
        for name, x in x_dict.items():
            skips, res = self.skips[at], self.res[at]
            out = skips[name](x) if name in skips else convolved[name]
            if arch["residual"]:
                out = out + (res[name](x) if name in res else x)
            if at < len(self.norms):
                out = self.norms[at][name](out)
                # HGTConv has a non-linearity inside.
                out = out if arch["layer"] == "hgt" else self.act(out)
            outputs[name] = out
        return outputs

    def forward(self, x_dict, edge_index_dict, edge_weight_dict=None, edge_attr_dict=None):
        """Returns the output for each node of the target type; of links, the embeddings by type."""
        arch = self.arch
        if self.into_graphs:
            num_graphs = len(x_dict[arch["target_type"]])
            into_graphs = edge_index_dict[self.into_graphs]
        # HGTConv and RGCNConv need types and relations in the order of the model.
        x_dict = picked("x_dict", x_dict, self.types)
        edge_index_dict = picked("edge_index_dict", edge_index_dict, self.relations)
        extra = self.extra(edge_weight_dict, edge_attr_dict)
        x_dict = {name: self.lins[name](x) for name, x in x_dict.items()}
        if arch["layer"] == "hgt":
            x_dict = {name: self.act(x) for name, x in x_dict.items()}
        for at in range(len(self.convs)):
            x_dict = self.layer(at, x_dict, edge_index_dict, extra)
        if "links" in arch["task"]:
            return x_dict
        if self.into_graphs:
            nodes = x_dict[self.into_graphs[0]]
            out = self.lin(readout(arch["readout"], nodes, into_graphs, num_graphs))
        else:
            out = self.lin(x_dict[arch["target_type"]])
        return nn.functional.normalize(out) if arch["normalize_output"] else out


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
    model.load_state_dict(tensors_of(model_dir, is_decoder=False), strict=True)
    scale = read_json(model_dir).get("label_scale")
    return (Unscaled(model, scale) if scale else model).eval()


def tensors_of(model_dir, is_decoder):
    """Returns the tensors of the decoder of links without their prefix, or all others."""
    tensors = load_file(os.path.join(model_dir, "model.safetensors"))
    prefix = "decoder."
    picked = {name: of for name, of in tensors.items() if name.startswith(prefix) == is_decoder}
    return {name.removeprefix(prefix): tensor for name, tensor in picked.items()}


def decoder(model_dir):
    """Returns the function that scores rows of src embeddings with rows of dst embeddings."""
    kind = read_json(model_dir)["architecture"]["task"]["links"]
    of = tensors_of(model_dir, is_decoder=True)
    if kind == "cosine":
        return lambda src, dst: nn.functional.cosine_similarity(src, dst)
    if kind == "distmult":
        return lambda src, dst: (src * of["rel_emb.weight"] * dst).sum(dim=-1)
    if kind == "mlp":
        def score(src, dst):
            both = torch.cat([src, dst], dim=-1)
            hidden = nn.functional.linear(both, of["lin1.weight"], of["lin1.bias"]).relu()
            return nn.functional.linear(hidden, of["lin2.weight"], of["lin2.bias"]).squeeze(-1)
        return score
    return lambda src, dst: (src * dst).sum(dim=-1)


def load(model_dir):
    """Loads any model as a stack of PyG's convs."""
    arch = read_json(model_dir)["architecture"]
    if arch["layer"] == "lightgcn":
        raise ValueError("lightgcn is no stack of convs; docs/pyg.md shows PyG's LightGCN")
    return finish(model_dir, Typed(arch) if "types" in arch else Stack(arch))


def load_whole(model_dir):
    """Loads one of PyG's whole models. A ValueError names an option that they do not have."""
    arch = read_json(model_dir)["architecture"]
    if "types" in arch:
        raise ValueError("PyG's whole models have no node types")
    layer, hidden = arch["layer"], arch["hidden"]
    is_attention = layer in ("gat", "gatv2")
    for problem, name in [
        (layer == "lightgcn", "conv of lightgcn"),
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


def fitted_transform(model_dir, node_type):
    """Returns the transform of the training, of a type if nodes have types."""
    file = read_json(model_dir)
    arch = file["architecture"]
    names = [of["name"] for of in arch["types"]] if "types" in arch else [None]
    if node_type not in names:
        raise ValueError(f"node_type is {node_type!r}; the model has {names}")
    return file["transforms"].get(node_type) if "types" in arch else file["transform"]


def transform(model_dir, x, node_type=None):
    """Applies the transform of the training to raw features, of a type if nodes have types."""
    fitted = fitted_transform(model_dir, node_type)
    if fitted == "row_normalize":
        return x / x.sum(dim=1, keepdim=True).clamp(min=1.0)
    if not isinstance(fitted, dict):
        return x
    if "encode" in fitted:
        codes = [(of["name"], *of["code"].items()) for of in fitted["encode"]["columns"]]
        encoded = [
            f"`{name}` ({kind})" for name, (kind, code) in codes if kind != "number" or code["gaps"]
        ]
        raise ValueError(f"transform() cannot encode the columns {', '.join(encoded)}; encode() can")
    mean, scale = (torch.tensor(fitted["standardize"][key]) for key in ("mean", "scale"))
    return (x - mean) * scale


def encode(model_dir, table, node_type=None):
    """Returns the input of layer 1 for the rows of a pyarrow table with categories, times or gaps."""
    fitted = fitted_transform(model_dir, node_type)
    if not isinstance(fitted, dict) or "encode" not in fitted:
        raise ValueError("the model encodes no columns; transform() takes the features as a tensor")
    encoder, parts, total = fitted["encode"], [], torch.zeros(table.num_rows, 1)
    for column in encoder["columns"]:
        values, code = table.column(column["name"]), column["code"]
        if "category" in code:
            part, numbers = encode_categories(values, code["category"]), 0
        else:
            part = encode_numbers(values, code.get("number") or code["time"], "time" in code)
            numbers = len(code["number"]["mean"]) if "number" in code else 0
        total += part[:, :numbers].sum(dim=1, keepdim=True)
        parts.append((part, numbers))
    if encoder["row_normalize"]:
        for part, numbers in parts:
            part[:, :numbers] /= total.clamp(min=1.0)
    return torch.cat([part for part, _ in parts], dim=1)


def encode_categories(values, code):
    """Returns a column for each category, for unseen ones, and for missing values."""
    from pyarrow import compute

    names = compute.cast(values, "string").to_pylist()
    place = {name: at for at, name in enumerate(code["values"])}
    width = len(place) + code["unseen"] + code["gaps"]
    rows = torch.zeros(len(names), width)
    for row, name in enumerate(names):
        if name is None:
            at = width - 1 if code["gaps"] else None
        else:
            at = place.get(name, len(place) if code["unseen"] else None)
        if at is not None:
            rows[row, at] = 1.0
    return rows


def encode_numbers(values, code, are_times):
    """Returns numbers, or times as days, with means in place of gaps, and a column of gaps."""
    from pyarrow import compute

    if are_times:
        us = compute.cast(compute.cast(values, "timestamp[us]"), "int64").to_pylist()
        values = [time if time is None else time / 86_400e6 for time in us]
    else:
        values = values.to_pylist()
    nan, mean = float("nan"), torch.tensor(code["mean"])
    lists = ([value] if not isinstance(value, list) else value for value in values)
    lists = ([nan] * len(mean) if value == [None] else value for value in lists)
    rows = [[nan if number is None else float(number) for number in value] for value in lists]
    rows = torch.tensor(rows, dtype=torch.float32)
    missing = rows.isnan()
    rows = torch.where(missing, mean, rows)
    if code["scale"]:
        rows = (rows - mean) * torch.tensor(code["scale"])
    gaps = missing.any(dim=1, keepdim=True).float()
    return torch.cat([rows, gaps], dim=1) if code["gaps"] else rows


def learnable_rows(model_dir, ids, node_type=None):
    """Returns the learnable row of each id; an id without one has the mean of the rows."""
    import pyarrow as pa
    from pyarrow import compute, parquet

    tables = read_json(model_dir).get("extra", {}).get("embeddings", {})
    if (node_type or "") not in tables:
        names = [name or None for name in tables]
        raise ValueError(f"node_type is {node_type!r}; the model has learnable rows of {names}")
    of = tables[node_type or ""]
    table = parquet.read_table(os.path.join(model_dir, of["file"]))
    own = table.column("id").combine_chunks()
    ids = ids.tolist() if isinstance(ids, torch.Tensor) else ids
    at = compute.index_in(pa.array(ids, own.type), value_set=own)
    values = table.column("embedding").combine_chunks().flatten()
    rows = torch.tensor(values.to_numpy(zero_copy_only=False)).view(-1, of["dim"])
    rows = torch.cat([rows, torch.tensor([of["mean"]], dtype=rows.dtype)])
    return rows[torch.tensor(compute.fill_null(at, of["rows"]).to_numpy().astype("int64"))]
