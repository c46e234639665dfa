#!/usr/bin/env python3
"""LightGCN with BPR on gowalla in PyTorch: the curve of the recipe that `--set` gives our job.

Three layers of width 64 on the whole graph of train pairs, dense Adam. A step draws 8,192 train
pairs without replacement and one item for each, which is not the item of the pair. Each epoch ranks
all items that a user has no train pair with, for the users of the test pairs.

    python gowalla.py --data DATA/gowalla --epochs 20
"""
import argparse
import json
import time

import numpy as np
import pyarrow.parquet as parquet
import torch

DIM, LAYERS, BEST = 64, 3, 20


def positions(table, column):
    """Returns the position of each id among the sorted different ids of a column."""
    ids, at = np.unique(table[column].to_numpy(), return_inverse=True)
    return at, len(ids)


def mean_of_layers(adjacency):
    """Returns the propagation of rows. Its matrix is symmetric: backward is the same product."""

    class Propagation(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            total = rows.clone()
            for _layer in range(LAYERS):
                rows = adjacency @ rows
                total += rows
            return total / (LAYERS + 1)

        backward = forward

    return Propagation.apply


def normalised(src, dst, num_nodes):
    """Returns the matrix of both directions of the pairs, each divided by the root of degrees."""
    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    degree = np.bincount(ends[0], minlength=num_nodes)
    values = torch.from_numpy(1 / np.sqrt(degree[ends[0]] * degree[ends[1]])).float()
    indices = torch.from_numpy(np.stack(ends))
    return torch.sparse_coo_tensor(indices, values, (num_nodes, num_nodes)).to_sparse_csr()


def ranking(users, items, train, wanted):
    """Recall@20 and NDCG@20, the mean over the users of the wanted pairs."""
    gains = 1 / np.log2(np.arange(BEST) + 2)
    recall, ndcg = [], []
    order = np.argsort(wanted[0], kind="stable")
    who, first = np.unique(wanted[0][order], return_index=True)
    wanted_items = np.split(wanted[1][order], first[1:])
    for start in range(0, len(who), 2048):
        block = who[start : start + 2048]
        scores = users[block] @ items.T
        row = np.full(len(users), -1)
        row[block] = np.arange(len(block))
        known = row[train[0]] >= 0
        scores[row[train[0][known]], train[1][known]] = -np.inf
        best = torch.topk(scores, BEST).indices.numpy()
        for items_found, items_wanted in zip(best, wanted_items[start : start + 2048]):
            hits = np.isin(items_found, items_wanted)
            recall.append(hits.sum() / len(items_wanted))
            ndcg.append(gains[hits].sum() / gains[: len(items_wanted)].sum())
    return np.mean(recall), np.mean(ndcg)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--decay", type=float, default=4e-9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    table = parquet.read_table(f"{args.data}/interactions.parquet")
    (user, num_users), (item, num_items) = positions(table, "user"), positions(table, "item")
    is_train = table["split"].to_numpy(zero_copy_only=False) == "train"
    train, wanted = [np.stack([user[of], item[of]]) for of in (is_train, ~is_train)]
    num_nodes = num_users + num_items
    propagate = mean_of_layers(normalised(train[0], train[1] + num_users, num_nodes))
    rows = torch.nn.Parameter(torch.empty(num_nodes, DIM).uniform_(-(DIM**-0.5), DIM**-0.5))
    optimizer = torch.optim.Adam([rows], lr=args.rate)
    pairs, spent = torch.from_numpy(train), 0.0
    for epoch in range(1, args.epochs + 1):
        start, losses = time.perf_counter(), []
        for batch in torch.randperm(pairs.shape[1]).split(args.batch):
            src, dst = pairs[:, batch]
            other = torch.randint(num_items - 1, dst.shape)
            other += other >= dst
            found = propagate(rows)
            of_items = found[num_users:]
            apart = (found[src] * (of_items[dst] - of_items[other])).sum(1)
            loss = torch.nn.functional.softplus(-apart).mean()
            losses.append(loss.item())
            optimizer.zero_grad()
            (loss + args.decay / 2 * rows.pow(2).sum()).backward()
            optimizer.step()
        spent += time.perf_counter() - start
        with torch.no_grad():
            found = propagate(rows)
        recall, ndcg = ranking(found[:num_users], found[num_users:], train, wanted)
        line = {"epoch": epoch, "seconds": spent, "loss": float(np.mean(losses))}
        print(json.dumps({**line, "recall@20": float(recall), "ndcg@20": float(ndcg)}), flush=True)


if __name__ == "__main__":
    main()
