"""Writes a data set of PyTorch Geometric as input tables of the jobs.

    python jobs/data/from_pyg.py cora $GRAPHFLAT_DATA

Makes FOLDER/NAME/nodes.parquet, nodes_sparse.parquet and edges.parquet.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PLANETOID = {"cora": "Cora", "citeseer": "CiteSeer"}
AMAZON = {"amazon-photo": "Photo", "amazon-computers": "Computers"}
TWITCH = {"DE": "train", "EN": "val", "ES": "test", "FR": "test", "PT": "test", "RU": "test"}
NAMES = [*PLANETOID, *AMAZON, "coauthor-cs", "tolokers", "twitch-inductive"]


def split_of_masks(data):
    """Returns the split of each node from the train, val and test masks (the first mask of several)."""
    split = np.full(data.num_nodes, "none", dtype=object)
    for name in ("train", "val", "test"):
        mask = data[f"{name}_mask"].numpy()
        split[mask[:, 0] if mask.ndim == 2 else mask] = name
    return split


def split_by_class(labels, num_train=20, num_val=30, seed=0):
    """Returns splits of 20 train and 30 val nodes a class, the rest test, as Shchur et al. (2018)."""
    draws = np.random.default_rng(seed)
    split = np.full(len(labels), "test", dtype=object)
    for label in np.unique(labels):
        nodes = draws.permutation(np.flatnonzero(labels == label))
        split[nodes[:num_train]] = "train"
        split[nodes[num_train : num_train + num_val]] = "val"
    return split


def load(name, root):
    """Loads the graphs of a data set, each with the split of its nodes."""
    from torch_geometric import datasets

    if name in PLANETOID:
        data = datasets.Planetoid(root, PLANETOID[name])[0]
        return [(data, split_of_masks(data))]
    if name in AMAZON:
        data = datasets.Amazon(root, AMAZON[name])[0]
        return [(data, split_by_class(data.y.numpy()))]
    if name == "coauthor-cs":
        data = datasets.Coauthor(root, "CS")[0]
        return [(data, split_by_class(data.y.numpy()))]
    if name == "tolokers":
        data = datasets.HeterophilousGraphDataset(root, "Tolokers")[0]
        return [(data, split_of_masks(data))]
    graphs = ((datasets.Twitch(root, graph)[0], split) for graph, split in TWITCH.items())
    return [(data, np.full(data.num_nodes, split, dtype=object)) for data, split in graphs]


def write(graphs, folder):
    """Writes the graphs as one graph; node numbers continue from one graph to the next."""
    folder.mkdir(parents=True, exist_ok=True)
    features = np.concatenate([data.x.numpy() for data, _ in graphs]).astype(np.float32)
    sizes = np.cumsum([0] + [data.num_nodes for data, _ in graphs])
    ends = [data.edge_index.numpy() + start for (data, _), start in zip(graphs, sizes)]
    src, dst = np.concatenate(ends, axis=1)
    columns = {
        "id": pa.array(np.arange(sizes[-1])),
        "label": pa.array(np.concatenate([data.y.numpy() for data, _ in graphs]), pa.int32()),
        "split": pa.array(np.concatenate([split for _, split in graphs]), pa.string()),
    }
    rows, indices = np.nonzero(features)
    offsets = pa.array(np.searchsorted(rows, np.arange(len(features) + 1)), pa.int32())
    values = pa.array(features[rows, indices])
    sparse = {
        "feat_idx": pa.ListArray.from_arrays(offsets, pa.array(indices, pa.int32())),
        "feat_val": pa.ListArray.from_arrays(offsets, values),
    }
    dense = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
    write_table = lambda table, name: pq.write_table(table, folder / name, compression="zstd")
    write_table(pa.table({**columns, "features": dense}), "nodes.parquet")
    write_table(pa.table({**columns, **sparse}), "nodes_sparse.parquet")
    write_table(pa.table({"src": pa.array(src), "dst": pa.array(dst)}), "edges.parquet")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in NAMES:
        sys.exit(f"usage: from_pyg.py NAME FOLDER, where NAME is one of {', '.join(NAMES)}")
    name, folder = sys.argv[1:]
    with tempfile.TemporaryDirectory() as root:
        write(load(name, root), Path(folder) / name)


if __name__ == "__main__":
    main()
