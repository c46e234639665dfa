#!/usr/bin/env python3
"""Seconds of an epoch of links with PyG's LinkNeighborLoader or DGL's edge-wise sampling.

The pairs are the train pairs of our parts, and no pair and no reverse of one carries messages.
GraphSAGE (mean) with fan-outs 10,10 and width 64, inner products, softmax of each pair and 32
negatives, batches of 1024 pairs. `--negatives own` draws 32 nodes for each pair, which is what
both programs do by default; `shared` draws 1024 nodes for each batch and gives each pair 32 of
them, which is nearer to ours. Some batches are timed, and their wall and processor seconds are
scaled to an epoch.

    python epoch.py dgl --data bench-work/data/M --parts out/graphfeatures --batches 10
"""
import argparse
import json
import os
import time
import warnings

import numpy as np
import pyarrow.parquet as parquet
import torch

import common

FANOUTS, WIDTH, BATCH, NEGATIVES = [10, 10], 64, 1024, 32


def softmax(scores):
    """Loss of the rows' first scores among all of their row."""
    return -torch.log_softmax(scores, dim=1)[:, 0].mean()


def score(rows, src, dst, pool):
    """Scores [pairs, 1 + NEGATIVES]; `pool` has the negatives of each pair, or of all."""
    if pool.dim() == 1:
        pool = pool[torch.randint(len(pool), (len(src), NEGATIVES))]
    ends = torch.cat([dst[:, None], pool], dim=1)
    return torch.einsum("pd,pkd->pk", rows[src], rows[ends.flatten()].view(*ends.shape, -1))


def with_pyg(args, x, edges, pairs):
    from torch_geometric.data import Data
    from torch_geometric.loader import LinkNeighborLoader
    from torch_geometric.nn import SAGEConv

    common.with_sampler(args.sampler)
    amount = NEGATIVES if args.negatives == "own" else 1
    loader = LinkNeighborLoader(
        Data(x=x, edge_index=edges),
        num_neighbors=FANOUTS,
        edge_label_index=pairs,
        neg_sampling={"mode": "triplet", "amount": amount},
        batch_size=BATCH,
        shuffle=True,
    )
    first, last = SAGEConv(x.shape[1], WIDTH), SAGEConv(WIDTH, WIDTH)

    def batches():
        for batch in loader:
            rows = last(first(batch.x, batch.edge_index).relu(), batch.edge_index)
            negatives = batch.dst_neg_index
            yield softmax(score(rows, batch.src_index, batch.dst_pos_index, negatives))

    return [*first.parameters(), *last.parameters()], batches


def with_dgl(args, x, edges, pairs):
    import dgl
    from dgl.nn import SAGEConv

    # The pairs carry no messages, so they are edges of a graph of their own.
    graph = dgl.graph((edges[0], edges[1]), num_nodes=len(x))
    graph.create_formats_()
    of_pairs = dgl.graph((pairs[0], pairs[1]), num_nodes=len(x))

    class Shared:
        def __call__(self, graph, edge_ids):
            src, _ = graph.find_edges(edge_ids)
            pool = torch.randint(graph.num_nodes(), (BATCH,))
            own = torch.randint(BATCH, (len(src) * NEGATIVES,))
            return src.repeat_interleave(NEGATIVES), pool[own]

    own = dgl.dataloading.negative_sampler.Uniform(NEGATIVES)
    negatives = own if args.negatives == "own" else Shared()
    loader = dgl.dataloading.DataLoader(
        of_pairs,
        torch.arange(of_pairs.num_edges()),
        PairSampler(graph, dgl.dataloading.NeighborSampler(FANOUTS), negatives),
        batch_size=BATCH,
        shuffle=True,
    )
    first, last = SAGEConv(x.shape[1], WIDTH, "mean"), SAGEConv(WIDTH, WIDTH, "mean")

    def batches():
        for inputs, positive, negative, blocks in loader:
            rows = last(blocks[1], first(blocks[0], x[inputs]).relu())
            src, dst = positive.edges()
            pool = negative.edges()[1].view(-1, NEGATIVES)
            yield softmax(score(rows, src, dst, pool))

    return [*first.parameters(), *last.parameters()], batches


class PairSampler:
    """As DGL's `as_edge_prediction_sampler`, with pairs that are no edges of the graph."""

    def __init__(self, graph, neighbors, negatives):
        self.graph, self.neighbors, self.negatives = graph, neighbors, negatives

    def sample(self, of_pairs, edge_ids):
        import dgl

        ends = of_pairs.find_edges(edge_ids), self.negatives(of_pairs, edge_ids)
        graphs = [dgl.graph(pairs, num_nodes=of_pairs.num_nodes()) for pairs in ends]
        positive, negative = dgl.compact_graphs(graphs)
        inputs, _, blocks = self.neighbors.sample(self.graph, positive.ndata[dgl.NID])
        return inputs, positive, negative, blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["pyg", "dgl"])
    parser.add_argument("--data", required=True, help="folder of nodes.parquet and edges.parquet")
    parser.add_argument("--parts", required=True, help="output of our flatten")
    parser.add_argument("--negatives", choices=["own", "shared"], default="own")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=2, help="batches before")
    parser.add_argument("--sampler", help="a library with torch_sparse's operators, without it")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(1)
    column = parquet.read_table(f"{args.data}/nodes.parquet", columns=["features"])["features"]
    x = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
    x = torch.from_numpy(x.copy())
    table = parquet.read_table(f"{args.data}/edges.parquet", columns=["src", "dst"])
    edges = np.stack([table["src"].to_numpy(), table["dst"].to_numpy()])
    split = common.pairs_of(args.parts)
    left_out = np.concatenate([pairs for pairs in split.values() if pairs.size], axis=1)
    left_out = np.concatenate([left_out, left_out[::-1]], axis=1)
    keys = np.unique(left_out[0] * len(x) + left_out[1])
    edges = edges[:, ~np.isin(edges[0] * len(x) + edges[1], keys)]
    pairs = torch.from_numpy(split["train"])
    make = with_pyg if args.peer == "pyg" else with_dgl
    parameters, losses = make(args, x, torch.from_numpy(edges.copy()), pairs)
    optimizer = torch.optim.Adam(parameters, lr=0.003)
    start = cpu = 0.0
    for done, loss in enumerate(losses(), 1):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done == args.warm_up:
            start, cpu = time.perf_counter(), time.process_time()
        if done == args.warm_up + args.batches:
            break
    batches = -(-pairs.shape[1] // BATCH) / args.batches
    epoch, cpu = (time.perf_counter() - start) * batches, (time.process_time() - cpu) * batches
    load = os.getloadavg()[0]
    line = {"peer": args.peer, "negatives": args.negatives, "epoch": epoch, "cpu": cpu}
    print(json.dumps({**line, "loss": float(loss), "pairs": pairs.shape[1], "load": load}))


if __name__ == "__main__":
    main()
