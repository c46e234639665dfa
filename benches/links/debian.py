#!/usr/bin/env python3
"""Links of Debian's packages: MRR of jobs/debian-links.toml and of PyG's LinkNeighborLoader.

PyG reads the split and the standardised features, trains GraphSAGE of the same widths on the same
message graph (no pair and no reverse of one) with the same fan-outs, batches and epochs, and with
the softmax of each pair among 32 drawn nodes and the other dst ends of its batch. The epoch with
the highest val MRR counts. Both sides rank each test pair among the same 100 drawn nodes.

    graphflat run jobs/debian-links.toml
    graphflat run jobs/debian-links.toml --stage flatten --set train.streamed=false \\
        --set 'flatten.output="out/debian-links/graphfeatures"'
    python debian.py --out out/debian-links --data jobs/data/debian
"""
import argparse
import json

import numpy as np
import pyarrow.parquet as parquet
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import common

def mrr(rows, pairs, candidates):
    return common.mrr(*common.candidate_scores((rows, rows), pairs, candidates))


def train(args, x, messages, split, drawn, seed, rate):
    """Returns the embeddings of the best epoch by val MRR, of all nodes and all in-edges."""
    from torch_geometric.loader import LinkNeighborLoader

    torch.manual_seed(seed)
    loader = LinkNeighborLoader(
        Data(x=x, edge_index=messages),
        num_neighbors=[10, 5],
        edge_label_index=torch.from_numpy(split["train"]),
        neg_sampling={"mode": "triplet", "amount": 1},
        batch_size=512,
        shuffle=True,
    )
    first, last = SAGEConv(x.shape[1], 128), SAGEConv(128, 64)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=rate)
    best = (-1.0, None)
    for _epoch in range(args.epochs):
        for batch in loader:
            rows = last(first(batch.x, batch.edge_index).relu(), batch.edge_index)
            src, dst = batch.src_index, batch.dst_pos_index
            pool = batch.dst_neg_index[torch.randint(len(batch.dst_neg_index), (32,))]
            ends = torch.cat([dst, pool])
            scores = rows[src] @ rows[ends].T
            # A pair's own ends are no negatives of it.
            hit = (ends[None] == dst[:, None]) | (ends[None] == src[:, None])
            hit[torch.arange(len(src)), torch.arange(len(src))] = False
            target = torch.arange(len(src))
            loss = torch.nn.functional.cross_entropy(scores.masked_fill(hit, -torch.inf), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            rows = last(first(x, messages).relu(), messages).numpy()
        found = mrr(rows, split["val"], drawn["val"])
        if found > best[0]:
            best = (found, rows)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="output folder of the job")
    parser.add_argument("--data", required=True)
    parser.add_argument("--embeddings", help="of another training on the same split")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="*", default=[0.003, 0.01])
    parser.add_argument("--sampler", help="a library with torch_sparse's operators, without it")
    args = parser.parse_args()
    common.with_sampler(args.sampler)
    torch.set_num_threads(1)
    nodes = parquet.read_table(f"{args.data}/nodes.parquet").sort_by("package")
    position = {name: row for row, name in enumerate(nodes["package"].to_pylist())}
    x = np.stack(nodes["features"].to_numpy()).astype(np.float32)
    scale = x.std(0)
    x = torch.from_numpy((x - x.mean(0)) / np.where(scale > 0, scale, 1)).float()
    split = {
        name: np.array([[position[node] for node in end] for end in pairs])
        for name, pairs in common.pairs_of(f"{args.out}/graphfeatures").items()
    }
    edges = parquet.read_table(f"{args.data}/edges.parquet")
    ends = [[position[node] for node in edges[name].to_pylist()] for name in ("needs", "package")]
    edges = np.array([ends[0] + ends[1], ends[1] + ends[0]])
    messages = torch.from_numpy(common.without_pairs(edges, split, len(x)))
    drawn = common.candidates_of(split, len(x))
    ours = common.embeddings_of(args.embeddings or f"{args.out}/embeddings")
    found = {name: mrr(ours, split[name], drawn[name]) for name in ("val", "test")}
    print(json.dumps({"competitor": "here", **found}), flush=True)
    for rate in args.rates:
        for seed in range(args.seeds):
            val, rows = train(args, x, messages, split, drawn, seed, rate)
            test = mrr(rows, split["test"], drawn["test"])
            line = {"competitor": "PyG", "rate": rate, "seed": seed, "val": val, "test": test}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
