"""Loads models into PyG with docs/pyg.py, and compares PyG's outputs with those of inference.

pyg.py --nodes NODES --edges EDGES --case KIND MODEL EMBEDDINGS [--case ...]
pyg.py --page SECTION BLOCKS FOLDER [--page ...]

KIND is `whole` if the model must load into one of PyG's whole models too, `stack` if `load_whole`
must refuse it. BLOCKS are numbers of Python blocks in a section of docs/pyg.md, as `0,2`. They run
in FOLDER, with the outputs `out/model` and `out/embeddings` of a job, and set `papers` and `out`.

Prints, for each case, the largest relative difference of a row: its largest difference over its
largest number, or over 1 if that is smaller. Exits with 1 if one is above 1e-5.
"""

import argparse
import glob
import os
import sys

DOCS = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "docs"))
sys.path.insert(0, DOCS)

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import pyg

# Relative error of sums of some dozen numbers: in float64, of weights and features in float32; on
# pages in float32.
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


def difference_of_logits(outputs, ids, embeddings):
    """Compares outputs for nodes with these ids with the logits of all of them."""
    parts = sorted(glob.glob(os.path.join(embeddings, "**", "part-*.parquet"), recursive=True))
    table = pa.concat_tables(pq.read_table(part) for part in parts)
    place = {node: at for at, node in enumerate(ids)}
    order = [place[node] for node in table.column("id").to_pylist()]
    assert len(order) == len(ids), f"{embeddings}: {len(order)} rows of {len(ids)} nodes"
    got = matrix(table.column("logits")).double()
    return max(difference(output[order].double(), got) for output in outputs)


def check_cases(args):
    """Yields whether each case of `--case` is right."""
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
    for kind, model_dir, embeddings in args.case:
        x = pyg.transform(model_dir, features).double()
        arch = pyg.read_json(model_dir)["architecture"]
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
        off = difference_of_logits(outputs, ids, embeddings)
        right = off <= TOLERANCE and is_whole == (kind == "whole")
        verdict = "ok" if right else "BAD"
        print(f"{verdict}: {model_dir} ({kind}, whole model: {is_whole}): {off:.1e}")
        yield right


def check_pages(args):
    """Yields whether each case of `--page` is right."""
    with open(os.path.join(DOCS, "pyg.md"), encoding="utf-8") as file:
        page = file.read()
    for section, blocks, folder in args.page:
        text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
        code = [block.split("```")[0] for block in text.split("```python\n")[1:]]
        os.chdir(folder)
        names = {}
        for block in blocks.split(","):
            exec(code[int(block)], names)
        ids = names["papers"].column("id").to_pylist()
        off = difference_of_logits([names["out"]], ids, os.path.join("out", "embeddings"))
        right = off <= TOLERANCE
        layer = pyg.read_json(os.path.join("out", "model"))["architecture"]["layer"]
        print(f"{'ok' if right else 'BAD'}: {layer} ({section}, {blocks}): {off:.1e}")
        yield right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes")
    parser.add_argument("--edges")
    parser.add_argument("--case", nargs=3, action="append", default=[])
    parser.add_argument("--page", nargs=3, action="append", default=[])
    args = parser.parse_args()
    with torch.no_grad():
        right = list(check_cases(args)) if args.case else []
        right += check_pages(args)
    sys.exit(not right or not all(right))


if __name__ == "__main__":
    main()
