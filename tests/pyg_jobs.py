"""Compares embeddings, scores and predictions of jobs with those of PyG.

pyg_jobs.py JOB KIND FOLDER [FOLDER ...]

JOB is a job file, whose paths are relative to its folder. FOLDER has the outputs of a job with the
same input: `model`, `embeddings` and, of links, `scores`. The models run in PyG with docs/pyg.py,
in float64. KIND is one of these:

- `links`: compares embeddings and scores of listed pairs with those on the message graph: all edges
  of the input tables but those of pairs that carry no messages. Inference had all in-edges.
- `parts`: compares embeddings and scores of all pairs with those on the parts of `[flatten]`.
  Inference had the same sampled in-edges. Compares the loss of the test pairs in `evaluation.json`
  with that of the scores of embeddings, with all nodes as negatives.
- `graphs`: compares logits and predictions of graphs with those on the input tables.

Prints the largest relative differences for each FOLDER. That of an embedding or of logits is the
largest difference of a row over its largest number, that of scores is over the largest score. Exits
with 1 if one is above 1e-5.
"""

import glob
import json
import os
import sys
import tomllib

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "docs")))

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch_geometric.nn import GCNConv, GINConv

import forward
import pyg

# Relative error of sums of some dozen f32.
TOLERANCE = 1e-5
# Least deviation of scores, over the largest score: equal scores would compare nothing.
SPREAD = 1e-2


def read(folder):
    """Reads the files of an output in the order of their names."""
    parts = sorted(glob.glob(os.path.join(folder, "**", "*.parquet"), recursive=True))
    return pa.concat_tables([pq.read_table(part) for part in parts])


def matrix(table, name):
    return torch.from_numpy(forward.matrix(forward.column(table, name)))


def difference(wanted, found):
    """Returns the largest relative difference of a row."""
    assert wanted.shape == found.shape and len(wanted) > 0, f"{wanted.shape}, {found.shape}"
    return float(((wanted - found).abs().amax(dim=1) / wanted.abs().amax(dim=1)).max())


def difference_of_scores(wanted, found):
    assert wanted.std() > SPREAD * wanted.abs().max(), "the scores are nearly equal"
    return difference(wanted[None], found[None])


def scores(model_dir, src, dst):
    """Returns the scores of pairs of rows, in float32 as the tensors of the decoder."""
    return pyg.decoder(model_dir)(src.float(), dst.float()).double()


class Tables:
    """The input tables of a job; without node types the type is `node` and the relation `edge`."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.job = tomllib.load(file)
        self.folder, self.input = os.path.dirname(path), self.job["input"]
        self.nodes, self.relations = self.input["nodes"], self.input["edges"]
        self.is_typed = "path" not in self.nodes
        if not self.is_typed:
            self.nodes = {"node": self.nodes}
            self.relations = {"edge": {**self.relations, "from": "node", "to": "node"}}
        self.place = {name: self.places(of) for name, of in self.nodes.items()}
        # The relation whose edges are pairs.
        from_edges = self.input.get("pairs", {}).get("from_edges")
        self.paired = "edge" if from_edges is True else from_edges

    def table(self, of):
        return pq.read_table(os.path.join(self.folder, of["path"]))

    def places(self, of):
        """Returns the row of each id."""
        return {node: at for at, node in enumerate(self.table(of)[of["id"]].to_pylist())}

    def ends(self, of):
        """Returns the rows of both ends of each edge or pair."""
        table = self.table(of)
        src, dst = (
            [self.place[of[side]][node] for node in table[of[end]].to_pylist()]
            for end, side in (("src", "from"), ("dst", "to"))
        )
        return list(zip(src, dst))

    def rows(self, model_dir, name):
        """Returns the input of the nodes of a type: features, and then learnable rows."""
        of, parts = self.nodes[name], []
        table, node_type = self.table(of), name if "types" in architecture(model_dir) else None
        if "features" in of:
            features = torch.cat([matrix(table, column) for column in of["features"]], dim=1)
            parts.append(pyg.transform(model_dir, features.float(), node_type))
        if "embedding" in of:
            parts.append(pyg.learnable_rows(model_dir, table[of["id"]], node_type))
        return torch.cat(parts or [torch.ones(len(table), 1)], dim=1).double()

    def pairs(self, name):
        """Returns the split of each pair that is an edge of a relation."""
        if name != self.paired:
            return {}
        of = self.relations[name]
        splits = self.table(of)[self.input["pairs"]["split"]].to_pylist()
        found = {ends: split for ends, split in zip(self.ends(of), splits) if split is not None}
        if of["from"] != of["to"]:
            return found
        # A self-loop is an edge, but no pair.
        return {ends: split for ends, split in found.items() if ends[0] != ends[1]}

    def silent(self, name):
        """Returns the edges of a relation that carry no messages."""
        excludes_train = self.input.get("pairs", {}).get("exclude") != "none"
        splits = ("train", "val", "test") if excludes_train else ("val", "test")
        found = {ends for ends, split in self.pairs(name).items() if split in splits}
        of = self.relations[name]
        return found | {ends[::-1] for ends in found} if of["from"] == of["to"] else found

    def messages(self):
        """Returns the edges that carry messages, by (from, relation, to)."""
        edges = {}
        for name, of in self.relations.items():
            silent = self.silent(name)
            ends = torch.tensor([ends for ends in self.ends(of) if ends not in silent]).T
            if of.get("undirected"):
                ends = torch.cat([ends, ends.flip(0)], dim=1)
            edges[of["from"], name, of["to"]] = ends
            if "reverse" in of:
                edges[of["to"], of["reverse"], of["from"]] = ends.flip(0)
        return edges

    def output(self, model_dir):
        """Returns the output of PyG for all nodes, by type."""
        model = pyg.load(model_dir).double()
        x_dict = {name: self.rows(model_dir, name) for name in self.nodes}
        if self.is_typed:
            return model(x_dict, self.messages())
        [x], [edge_index] = x_dict.values(), self.messages().values()
        return {"node": model(x, edge_index)}


def architecture(model_dir):
    return pyg.read_json(model_dir)["architecture"]


def embeddings_of(tables, folder):
    """Returns the embeddings that inference wrote, by type and in the order of the tables."""
    folder, found = os.path.join(folder, "embeddings"), {}
    for name, place in tables.place.items():
        table = read(os.path.join(folder, "embeddings", name) if tables.is_typed else folder)
        row = {node: at for at, node in enumerate(table["id"].to_pylist())}
        assert len(row) == len(table) == len(place), f"{folder}: {len(table)} rows of {name}"
        found[name] = matrix(table, "embedding")[[row[node] for node in place]]
    return found


def scores_of(tables, folder):
    """Returns the listed pairs and their scores that the program wrote."""
    ends = {**tables.relations[tables.paired], **tables.job["score"]["pairs"]}
    return tables.ends(ends), matrix(read(os.path.join(folder, "scores", "pairs")), "score")[:, 0]


def check_links(tables, folder):
    """Returns the differences of embeddings and of scores of listed pairs."""
    model_dir = os.path.join(folder, "model")
    z, found = tables.output(model_dir), {}
    for name, rows in embeddings_of(tables, folder).items():
        found[f"embeddings of {name}"] = difference(z[name], rows)
    ends, listed = scores_of(tables, folder)
    (src, dst), of = torch.tensor(ends).T, tables.relations[tables.paired]
    wanted = scores(model_dir, z[of["from"]][src], z[of["to"]][dst])
    found["scores"] = difference_of_scores(wanted, listed)
    return found


class OnEdges(nn.Module):
    """A conv on sampled in-edges of a part.

    Sums are scaled to estimate those over all in-edges, as docs/pyg.md says. Means and attention
    need no scale.
    """

    def __init__(self, conv, src, dst, nodes):
        super().__init__()
        self.conv, self.edge_index, self.weight = conv, torch.stack([src, dst]), ()
        degree = matrix(nodes, "in_degree")[:, 0]
        kept = torch.bincount(dst, minlength=len(degree))
        assert (kept[dst] < degree[dst]).any(), "no in-edges are left out"
        scale = degree / kept.clamp(min=1)
        if isinstance(conv, GINConv):
            conv.register_aggregate_forward_hook(lambda _, inputs, out: out * scale[:, None])
        if isinstance(conv, GCNConv):
            # Degrees are those of the whole graph, with one self-loop of each node.
            root = (degree - matrix(nodes, "self_loops")[:, 0] + 1).rsqrt()
            loops = torch.arange(len(degree))
            weight = torch.where(src == dst, 0.0, scale[dst] * root[src] * root[dst])
            conv.normalize, self.weight = False, (torch.cat([weight, root**2]),)
            self.edge_index = torch.cat([self.edge_index, loops.expand(2, -1)], dim=1)

    def forward(self, x, _):
        return self.conv(x, self.edge_index, *self.weight)


def part_output(model_dir, nodes, edges):
    """Returns the output of PyG for the nodes of a part; that of the targets is right."""
    model = pyg.load(model_dir).double()
    src, dst, rank = (matrix(edges, name)[:, 0].long() for name in ("src", "dst", "rank"))
    # Layer 1 reads the in-edges of the last fan-out.
    limits = reversed(pyg.read_json(model_dir)["fanouts"])
    convs = [
        OnEdges(conv, src[rank < limit], dst[rank < limit], nodes)
        for conv, limit in zip(model.convs, limits)
    ]
    model.convs = nn.ModuleList(convs)
    x = pyg.transform(model_dir, matrix(nodes, "feature").float()).double()
    return model(x, None)


def check_parts(tables, folder):
    """Returns the differences of embeddings and scores of pairs, and of the loss of test pairs."""
    model_dir, z = os.path.join(folder, "model"), embeddings_of(tables, folder)["node"]
    features = os.path.join(tables.folder, tables.job["flatten"]["output"])
    splits, rows = {}, []
    for path in sorted(glob.glob(os.path.join(features, "pairs", "*.parquet"))):
        nodes, edges, pairs = (
            pq.read_table(os.path.join(features, name, os.path.basename(path)))
            for name in ("nodes", "edges", "pairs")
        )
        place = [tables.place["node"][node] for node in nodes["id"].to_pylist()]
        output = part_output(model_dir, nodes, edges)
        for row in pairs.to_pylist():
            src, dst = row["src"], row["dst"]
            if src is not None:  # not a random negative
                splits[place[src], place[dst]] = row["split"]
                rows.append(output[[src, dst]])
    assert splits == tables.pairs("edge") and len(splits) == len(rows), f"{features}: pairs"
    rows, (src, dst) = torch.stack(rows), torch.tensor(list(splits)).T  # [num_pairs, 2, dim]
    listed = dict(zip(*scores_of(tables, folder)))
    listed = torch.stack([listed[ends] for ends in splits])
    return {
        "embeddings of src": difference(rows[:, 0], z[src]),
        "embeddings of dst": difference(rows[:, 1], z[dst]),
        "scores": difference_of_scores(scores(model_dir, rows[:, 0], rows[:, 1]), listed),
        "loss": difference_of_loss(model_dir, z, splits),
    }


def difference_of_loss(model_dir, z, splits):
    """Compares the loss of test pairs with that of their scores among those of all nodes."""
    with open(os.path.join(model_dir, "evaluation.json"), encoding="utf-8") as file:
        evaluation = json.load(file)["splits"]["test"]
    assert evaluation["candidates"] == len(z) - 1, "not all nodes are negatives"
    temperature = pyg.read_json(model_dir)["extra"]["links"]["loss"]["temperature"]
    losses = []
    for src, dst in (ends for ends, split in splits.items() if split == "test"):
        logits = scores(model_dir, z[src].expand_as(z), z) / temperature
        own = logits[dst].clone()
        logits[src] = -torch.inf  # a node is no negative of its own pair
        losses.append(logits.logsumexp(0) - own)
    loss = torch.stack(losses).mean()
    return float((loss / evaluation["metrics"]["loss"] - 1).abs())


def check_graphs(tables, folder):
    """Returns the difference of logits. The predictions must be equal."""
    model_dir, of = os.path.join(folder, "model"), tables.input["graphs"]
    graphs, nodes = tables.places(of), tables.table(tables.nodes["node"])
    into = [graphs[graph] for graph in nodes[tables.nodes["node"]["graph"]].to_pylist()]
    edges = {
        **tables.messages(),
        ("node", "in_graph", "graph"): torch.stack([torch.arange(len(into)), torch.tensor(into)]),
    }
    x_dict = {"node": tables.rows(model_dir, "node"), "graph": torch.zeros(len(graphs), 1)}
    output = pyg.load(model_dir).double()(x_dict, edges)
    table = read(os.path.join(folder, "embeddings"))
    order = [graphs[graph] for graph in table["id"].to_pylist()]
    assert sorted(order) == list(range(len(graphs))), f"{folder}: ids of graphs"
    names = pyg.read_json(model_dir)["label_names"]
    predictions = [names[label] for label in output[order].argmax(dim=1)]
    assert predictions == table["prediction"].to_pylist(), f"{folder}: predictions"
    assert len(set(predictions)) > 1, "all predictions are equal"
    return {"logits": difference(output[order], matrix(table, "logits"))}


def main():
    job, kind, *folders = sys.argv[1:]
    tables = Tables(job)
    check = {"links": check_links, "parts": check_parts, "graphs": check_graphs}[kind]
    all_right = True
    for folder in folders:
        with torch.no_grad():
            found = check(tables, folder)
        right = all(off <= TOLERANCE for off in found.values())
        all_right &= right
        differences = ", ".join(f"{name} {off:.1e}" for name, off in found.items())
        layer = architecture(os.path.join(folder, "model"))["layer"]
        print(f"{'ok' if right else 'BAD'}: {folder} ({layer}): {differences}")
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
