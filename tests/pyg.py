"""Loads models into PyG with docs/pyg.py, and compares PyG's outputs with those of inference.

pyg.py --nodes NODES --edges EDGES --case KIND MODEL EMBEDDINGS [--case ...]

KIND is `whole` if the model must load into one of PyG's whole models too, `stack` if `load_whole`
must refuse it. Prints, for each case, the largest relative difference of a row: its largest
difference over its largest number, or over 1 if that is smaller. Exits with 1 if one is above 1e-5.
"""

import argparse
import glob
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "docs"))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import pyg

# Relative error of sums of some dozen numbers in float64, of weights and features in float32.
TOLERANCE = 1e-5


def matrix(column):
    """Returns a column of equally long lists, or of numbers, as rows of float32."""
    values = column.combine_chunks()
    values = values.chunk(0) if isinstance(values, pa.ChunkedArray) else values
    flat = values.flatten() if pa.types.is_nested(values.type) else values
    flat = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return torch.from_numpy(flat.reshape(len(values), -1))


def difference(wanted, got):
    largest = wanted.abs().amax(dim=1).clamp(min=1.0)
    return float(((wanted - got).abs().amax(dim=1) / largest).max())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--edges", required=True)
    parser.add_argument("--case", nargs=3, action="append", required=True)
    args = parser.parse_args()
    nodes, edges = pq.read_table(args.nodes), pq.read_table(args.edges)
    ids = nodes.column("id").to_pylist()
    place = {node: at for at, node in enumerate(ids)}
    ends = [[place[node] for node in edges.column(end).to_pylist()] for end in ("src", "dst")]
    edge_index = torch.tensor(ends)
    features = matrix(nodes.column("features"))
    graph = {
        "edge_weight": matrix(edges.column("weight"))[:, 0].double(),
        "edge_attr": matrix(edges.column("distance")).double(),
    }
    bad = 0
    for kind, model_dir, embeddings in args.case:
        table = pa.concat_tables(
            pq.read_table(part) for part in sorted(glob.glob(os.path.join(embeddings, "part-*.parquet")))
        )
        order = [place[node] for node in table.column("id").to_pylist()]
        got = matrix(table.column("logits")).double()
        x = pyg.transform(model_dir, features).double()
        arch = pyg.read_json(model_dir)["architecture"]
        with torch.no_grad():
            outputs = [pyg.load(model_dir).double()(x, edge_index, **graph)]
            try:
                extra = {}
                if arch["edge_weight"]:
                    extra["edge_weight"] = graph["edge_weight"]
                if arch["edge_dim"]:
                    extra["edge_attr"] = graph["edge_attr"]
                outputs.append(pyg.load_whole(model_dir).double()(x, edge_index, **extra))
                is_whole = True
            except ValueError as error:
                print(f"{model_dir}: {error}")
                is_whole = False
        off = max(difference(output[order], got) for output in outputs)
        right = off <= TOLERANCE and is_whole == (kind == "whole")
        bad += not right
        print(f"{'ok' if right else 'BAD'}: {model_dir} ({kind}, whole model: {is_whole}): {off:.1e}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
