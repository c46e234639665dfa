#!/usr/bin/env python3
"""Links of Cora or Citeseer: AUC and average precision, here and in PyG.

For each seed: 5 % of the links are val pairs and 10 % test pairs, by our hash of the seed. PyG
reads this split from our parts. All models are evaluated on the same pairs and on the same drawn
pairs that are no links. The model of each competitor is the best of four by the val AUC of a
further seed; the best epoch is chosen by val AUC, too.

    python citations.py --program graphflat --data DATA/cora --out out
"""
import argparse
import itertools
import json
import pathlib

import numpy as np
import pyarrow.parquet as parquet
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAE, GCNConv, SAGEConv
from torch_geometric.transforms import NormalizeFeatures

import common

CONVS = {"gcn": GCNConv, "sage": SAGEConv}
CHOICE = 100  # the seed that chooses the model


class Encoder(torch.nn.Module):
    def __init__(self, conv, width, hidden, input_dropout):
        super().__init__()
        self.first, self.last = conv(width, hidden[0]), conv(hidden[0], hidden[1])
        self.dropout = torch.nn.Dropout(input_dropout)

    def forward(self, x, edge_index):
        return self.last(self.first(self.dropout(x), edge_index).relu(), edge_index)


def job(args, seed, model, loss, hidden, rate):
    negatives = {
        "binary_cross_entropy": "{ in_batch = false, random = 1, evaluation = 20 }",
        "softmax": "{ in_batch = true, random = 16, evaluation = 20 }",
    }[loss]
    out = args.out / "ours"
    return f"""name = "links"
seed = {seed}
work_dir = "{out}/work"
[input.nodes]
path = "{args.data}/nodes_sparse.parquet"
id = "id"
sparse = {{ index = "feat_idx", value = "feat_val", width = {args.width} }}
transform = "row_normalize"
[input.edges]
path = "{args.data}/edges.parquet"
src = "src"
dst = "dst"
[input.pairs]
from_edges = true
share = {{ train = 0.85, val = 0.05, test = 0.1 }}
exclude = "{args.exclude}"
[flatten]
output = "{out}/graphfeatures"
hops = 2
fanouts = ["all", "all"]
pairs_per_part = 100000
negatives_per_part = {args.num_nodes}
[train]
output = "{out}/model"
model = "{model}"
hidden = {hidden}
dropout = 0.0
input_dropout = {args.input_dropout}
learning_rate = {rate}
batch_size = {args.batch_size}
epochs = {args.epochs // 2 if loss == "softmax" else args.epochs}
evaluate_every = 5
loss = "{loss}"
negatives = {negatives}
monitor = "auc"
[infer]
output = "{out}/embeddings"
"""


def ours(args, seed, model, loss, hidden, rate):
    text = job(args, seed, model, loss, hidden, rate)
    common.run(args.program, args.out / "ours" / "job.toml", text)
    return common.embeddings_of(args.out / "ours" / "embeddings")


def best_epoch(encoder, epochs, every, step, data, split):
    """Trains; returns the embeddings of the evaluated epoch with the highest val AUC."""
    best = (-1.0, None)
    for epoch in range(1, epochs + 1):
        encoder.train()
        step()
        if epoch % every == 0:
            encoder.eval()
            with torch.no_grad():
                rows = encoder(data.x, data.edge_index).numpy()
            found = common.dot_metrics(rows, *split["val"])[0]
            if found > best[0]:
                best = (found, rows)
    return best[1]


def gae(args, seed, split, data, hidden, rate):
    """PyG's graph auto-encoder: a step over the whole graph each epoch."""
    torch.manual_seed(seed)
    encoder = GAE(Encoder(GCNConv, data.x.shape[1], hidden, args.input_dropout))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=rate)

    def step():
        optimizer.zero_grad()
        rows = encoder.encode(data.x, data.edge_index)
        encoder.recon_loss(rows, data.edge_index).backward()
        optimizer.step()

    return best_epoch(encoder, 200, 5, step, data, split)


def loader(args, seed, split, data, hidden, rate):
    """GraphSAGE on batches of PyG's LinkNeighborLoader, with one negative a pair."""
    from torch_geometric.loader import LinkNeighborLoader

    torch.manual_seed(seed)
    encoder = Encoder(SAGEConv, data.x.shape[1], hidden, args.input_dropout)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=rate)
    batches = LinkNeighborLoader(
        data,
        num_neighbors=[-1, -1],
        edge_label_index=data.edge_index,
        neg_sampling_ratio=1.0,
        batch_size=1024,
        shuffle=True,
    )

    def step():
        for batch in batches:
            optimizer.zero_grad()
            rows = encoder(batch.x, batch.edge_index)
            src, dst = batch.edge_label_index
            scores = (rows[src] * rows[dst]).sum(-1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits
            loss(scores, batch.edge_label).backward()
            optimizer.step()

    return best_epoch(encoder, args.epochs, 5, step, data, split)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="graphflat")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", nargs="*", default=["32,16", "128,64"], help="widths to try")
    parser.add_argument("--batch-size", type=int, default=1024, help="ours only")
    parser.add_argument("--exclude", default="none", help="ours only")
    parser.add_argument("--input-dropout", type=float, default=0.0)
    parser.add_argument("--rates", nargs="*", type=float, default=[0.01, 0.003])
    parser.add_argument("--sampler", help="a library with torch_sparse's operators, without it")
    parser.add_argument("--only", nargs="*", help="competitors")
    args = parser.parse_args()
    common.with_sampler(args.sampler)
    args.out = args.out.resolve()
    hiddens = [[int(width) for width in widths.split(",")] for widths in args.hidden]
    torch.set_num_threads(1)
    nodes = parquet.read_table(args.data / "nodes.parquet", columns=["features"])
    x = torch.tensor(np.stack(nodes["features"].to_numpy()))
    args.num_nodes, args.width = x.shape
    edges = parquet.read_table(args.data / "edges.parquet")
    links = np.stack([edges["src"].to_numpy(), edges["dst"].to_numpy()])

    def split_of(seed):
        """The split of a seed, which each of our runs with this seed has."""
        text = job(args, seed, "gcn", "binary_cross_entropy", [16, 16], 0.01)
        text = text.replace(f"epochs = {args.epochs}", "epochs = 1")
        common.run(args.program, args.out / "ours" / "job.toml", text)
        pairs = common.pairs_of(args.out / "ours" / "graphfeatures")
        assert sum(part.shape[1] for part in pairs.values()) == links.shape[1]
        rng = np.random.default_rng(seed)
        split = {
            name: (pairs[name], common.no_links(links, len(x), pairs[name].shape[1], rng))
            for name in ("val", "test")
        }
        data = NormalizeFeatures()(Data(x=x.clone(), edge_index=torch.tensor(pairs["train"])))
        return split, data

    competitors = {
        f"{model} {loss}": lambda seed, _split, _data, *rest, kind=(model, loss): ours(
            args, seed, *kind, *rest
        )
        for model, loss in itertools.product(CONVS, ("binary_cross_entropy", "softmax"))
    }
    competitors["PyG GAE"] = lambda *rest: gae(args, *rest)
    competitors["PyG LinkNeighborLoader"] = lambda *rest: loader(args, *rest)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    splits = {seed: split_of(seed) for seed in [CHOICE, *seeds]}
    for name in args.only or competitors:
        train = competitors[name]
        tried = {}
        choices = list(itertools.product(hiddens, args.rates))
        for hidden, rate in choices if len(choices) > 1 else []:
            rows = train(CHOICE, *splits[CHOICE], hidden, rate)
            found = common.dot_metrics(rows, *splits[CHOICE][0]["val"])[0]
            tried[(tuple(hidden), rate)] = float(found)
        hidden, rate = max(tried, key=tried.get) if tried else choices[0]
        found = {"val": [], "test": []}
        for seed in seeds:
            rows = train(seed, *splits[seed], list(hidden), rate)
            for part in found:
                found[part].append(common.dot_metrics(rows, *splits[seed][0][part]))
        line = {"competitor": name, "hidden": hidden, "learning_rate": rate}
        line["input_dropout"] = args.input_dropout
        line["tried"] = [[*key, round(value, 4)] for key, value in tried.items()]
        for part, values in found.items():
            for metric, one in zip(("auc", "average_precision"), zip(*values)):
                line[f"{part}_{metric}"] = common.mean(one)
        print(json.dumps(line), flush=True)
        with open(args.out / "results.jsonl", "a") as file:
            file.write(json.dumps({**line, "seeds": found["test"]}) + "\n")


if __name__ == "__main__":
    main()
