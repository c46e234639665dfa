"""Loads typed models into PyG with docs/pyg.py and compares PyG's outputs with those given.

pyg.py DIR...

Each DIR has `model.safetensors`, `model.json`, and `graph.json` with the features by type (`x`),
the edges by relation (`relations`: [src, dst, weight, features]) and the model's outputs (`out`).
Prints `ok:` or `bad:` and the largest relative difference for each. Exits with 1 if one is bad.
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs"))

import torch

import pyg

# Error of sums of some dozen numbers in float32.
TOLERANCE = 1e-5


def output_of(model_dir, graph):
    """Returns PyG's output on the graph. All edges have weights and features, used or not."""
    arch = pyg.read_json(model_dir)["architecture"]
    x = {of["name"]: torch.tensor(rows) for of, rows in zip(arch["types"], graph["x"])}
    edge_index, edge_weight, edge_attr = {}, {}, {}
    # In the reverse order: the dicts of a user have any order.
    for of, rows in reversed(list(zip(arch["relations"], graph["relations"]))):
        key = (of["from"], of["name"], of["to"])
        src, dst, weight, feature = zip(*rows)
        edge_index[key] = torch.tensor([src, dst])
        edge_weight[key], edge_attr[key] = torch.tensor(weight), torch.tensor(feature)
    with torch.no_grad():
        return pyg.load(model_dir)(x, edge_index, edge_weight, edge_attr)


def main():
    torch.set_num_threads(1)
    bad = 0
    for model_dir in sys.argv[1:]:
        arch = pyg.read_json(model_dir)["architecture"]
        with open(os.path.join(model_dir, "graph.json"), encoding="utf-8") as file:
            graph = json.load(file)
        out, wanted = output_of(model_dir, graph), torch.tensor(graph["out"])
        largest = wanted.abs().amax(dim=1).clamp(min=1.0)
        off = float(((wanted - out).abs().amax(dim=1) / largest).max())
        bad += off > TOLERANCE
        print("ok:" if off <= TOLERANCE else "bad:", off, arch["layer"], arch["hidden"])
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
