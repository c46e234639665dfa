#!/usr/bin/env python3
"""LightGCN on gowalla in PyTorch: the curves of the recipes that `--set` gives our job.

Three layers of width 64 on the whole graph of train pairs, dense Adam. Each epoch ranks all items
that a user has no train pair with, for the users of the test pairs.

- `bpr`: a step has `--batch` train pairs and draws an item for each, not the item of the pair.
- `softmax`: a step has `--batch` users with all their train pairs, each among all items. The pairs
  of a user of d train pairs weigh d^`--power` together.

    python gowalla.py bpr --data DATA/gowalla --batch 8192 --decay 4e-9
    python gowalla.py softmax --data DATA/gowalla --batch 1024 --cosine --temperature 0.1
"""
import argparse
import json
import time
import warnings

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


class Bpr:
    """Batches of train pairs."""

    def __init__(self, args, train, num_items):
        self.batch, self.num_items = args.batch, num_items
        self.pairs = torch.from_numpy(train)

    def batches(self):
        return torch.randperm(self.pairs.shape[1]).split(self.batch)

    def loss(self, users, items, batch):
        src, dst = self.pairs[:, batch]
        other = torch.randint(self.num_items - 1, dst.shape)
        other += other >= dst
        apart = (users[src] * (items[dst] - items[other])).sum(1)
        return torch.nn.functional.softplus(-apart).mean()


class Softmax:
    """Batches of users, each with all train pairs."""

    def __init__(self, args, train, num_users):
        self.args, self.num_users = args, num_users
        user, item = train
        order = np.argsort(user, kind="stable")
        self.item = torch.from_numpy(item[order])
        self.degree = np.bincount(user, minlength=num_users)
        self.first = np.concatenate([[0], np.cumsum(self.degree)])

    def batches(self):
        count = -(-self.num_users // self.args.batch)
        return np.array_split(np.random.permutation(self.num_users), count)

    def loss(self, users, items, batch):
        if self.args.cosine:
            users, items = [torch.nn.functional.normalize(rows) for rows in (users, items)]
        scores = users[batch] @ items.T / self.args.temperature
        degree = self.degree[batch]
        row = torch.from_numpy(np.repeat(np.arange(len(batch)), degree))
        at = np.concatenate([np.arange(self.first[user], self.first[user + 1]) for user in batch])
        item = self.item[torch.from_numpy(at)]
        weight = torch.from_numpy(degree**self.args.power).float()
        each = torch.logsumexp(scores, 1)[row] - scores[row, item]
        return (each * (weight / torch.from_numpy(degree))[row]).sum() / weight.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loss", choices=["bpr", "softmax"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--power", type=float, default=0.75, help="softmax: weight of users")
    parser.add_argument("--cosine", action="store_true", help="softmax: cosines as scores")
    parser.add_argument("--temperature", type=float, default=1.0, help="softmax")
    parser.add_argument("--schedule", action="store_true", help="lower the rate to 0 by a cosine")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    np.random.seed(1)
    table = parquet.read_table(f"{args.data}/interactions.parquet")
    (user, num_users), (item, num_items) = positions(table, "user"), positions(table, "item")
    is_train = table["split"].to_numpy(zero_copy_only=False) == "train"
    train, wanted = [np.stack([user[of], item[of]]) for of in (is_train, ~is_train)]
    num_nodes = num_users + num_items
    propagate = mean_of_layers(normalised(train[0], train[1] + num_users, num_nodes))
    rows = torch.nn.Parameter(torch.empty(num_nodes, DIM).uniform_(-(DIM**-0.5), DIM**-0.5))
    optimizer = torch.optim.Adam([rows], lr=args.rate)
    task = Bpr(args, train, num_items) if args.loss == "bpr" else Softmax(args, train, num_users)
    steps, spent = args.epochs * len(task.batches()), 0.0
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(1, args.epochs + 1):
        start, losses = time.perf_counter(), []
        for batch in task.batches():
            found = propagate(rows)
            loss = task.loss(found[:num_users], found[num_users:], batch)
            losses.append(loss.item())
            optimizer.zero_grad()
            (loss + args.decay / 2 * rows.pow(2).sum()).backward()
            optimizer.step()
            if args.schedule:
                schedule.step()
        spent += time.perf_counter() - start
        with torch.no_grad():
            found = propagate(rows)
            if args.cosine:
                found = torch.nn.functional.normalize(found)
        recall, ndcg = ranking(found[:num_users], found[num_users:], train, wanted)
        line = {"epoch": epoch, "seconds": spent, "loss": float(np.mean(losses))}
        print(json.dumps({**line, "recall@20": float(recall), "ndcg@20": float(ndcg)}), flush=True)


if __name__ == "__main__":
    main()
