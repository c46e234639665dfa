#!/usr/bin/env python3
"""Links of Bitcoin OTC by time: losses here and in PyG's LinkNeighborLoader, on one split.

The earliest 40 % of the ratings carry messages, in both directions. The next 30 % are train pairs,
then come 10 % val pairs and 20 % test pairs; neither they nor their reverses carry messages. Both
sides have learnable rows of 64 numbers, GraphSAGE of two layers, the same fan-outs, batches, epochs
and negatives, a fresh sample of in-edges each epoch, and embeddings from all in-edges. They rank
each test pair among the same 100 drawn nodes. The best epoch and the learning rate are chosen by
val MRR, in PyG the first values of the learnable rows, too.

    python otc.py --program graphflat --data DATA/bitcoin-otc --out out
"""
import itertools
import json

import numpy as np
import pyarrow.parquet as parquet
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import common

WIDTH, FANOUTS, BATCH = 64, [20, 10], 512


def job(args, seed, stages):
    return f"""name = "otc-links"
seed = {seed}
work_dir = "{args.out}/work"
[input.nodes]
path = "{args.data}/nodes.parquet"
id = "id"
embedding = {WIDTH}
[input.edges]
path = "{args.data}/edges.parquet"
src = "src"
dst = "dst"
undirected = true
[input.pairs]
from_edges = true
time = "timestamp"
share = {{ train = 0.3, val = 0.1, test = 0.2, seed = 7 }}
exclude = "all"
[flatten]
hops = 2
fanouts = {FANOUTS}
{stages}"""


def split_of(args):
    """Returns the pairs of each split, which neither the job's seed nor `[train]` changes."""
    stages = f'output = "{args.out}/split"\n'
    common.run(args.program, args.out / "split.toml", job(args, 0, stages))
    return common.pairs_of(args.out / "split")


def ours(args, loss, in_batch, seed, rate):
    stages = f"negatives_per_part = {args.negatives_per_part}\n"
    stages += common.train_stages(args, (WIDTH, BATCH), loss, in_batch, rate)
    common.run(args.program, args.out / "job.toml", job(args, seed, stages))
    rows = common.embeddings_of(args.out / "embeddings")
    return rows, rows


def pyg(args, messages, split, drawn, num_nodes, is_corrected, loss, in_batch, seed, rate, start):
    """Returns the embeddings of the best epoch by val MRR."""
    from torch_geometric.loader import LinkNeighborLoader

    torch.manual_seed(seed)
    loader = LinkNeighborLoader(
        Data(edge_index=messages, num_nodes=num_nodes),
        num_neighbors=FANOUTS,
        edge_label_index=torch.from_numpy(split["train"]),
        neg_sampling={"mode": "triplet", "amount": 1},
        batch_size=BATCH,
        shuffle=True,
    )
    table = common.learnable_rows(num_nodes, WIDTH, start)
    first, last = SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, WIDTH)
    optimizers = [
        torch.optim.Adam([*first.parameters(), *last.parameters()], lr=rate),
        torch.optim.SparseAdam(table.parameters(), lr=rate),
    ]
    log_expected = None
    if is_corrected:
        log_expected = common.log_expected_negatives(split["train"][1], num_nodes, BATCH)

    def loss_of(batch):
        edges = batch.edge_index
        rows = last(first(table(batch.n_id), edges).relu(), edges)
        ends = [batch.src_index, batch.dst_pos_index, batch.dst_neg_index]
        ids = [batch.n_id[end] for end in ends]
        rows = [rows[end] for end in ends]
        return common.pair_loss(loss, in_batch, rows, ids, True, log_expected)

    def embed():
        rows = last(first(table.weight, messages).relu(), messages).numpy()
        return rows, rows

    return common.best_epoch(args.epochs, loader, optimizers, loss_of, embed, split, drawn)


def main():
    parser = common.parser(__doc__, epochs=20)
    parser.add_argument("--negatives-per-part", type=int, default=1024, help="ours only")
    args = common.parsed(parser)
    num_nodes = parquet.read_metadata(args.data / "nodes.parquet").num_rows
    split = split_of(args)
    edges = parquet.read_table(args.data / "edges.parquet")
    edges = np.stack([edges[end].to_numpy() for end in ("src", "dst")])
    messages = common.without_pairs(np.concatenate([edges, edges[::-1]], axis=1), split, num_nodes)
    heard = np.unique(messages)
    for name, pairs in split.items():
        cold = ~np.isin(pairs, heard)
        counts = {"pairs": pairs.shape[1], "with_cold_end": int(cold.any(0).sum())}
        in_train = np.isin(pairs, np.union1d(heard, split["train"]))
        counts["with_end_outside_train"] = int((~in_train).any(0).sum())
        print(json.dumps({"split": name, **counts}), flush=True)
    print(json.dumps({"message_edges": messages.shape[1], "nodes_with_messages": len(heard)}))
    drawn = common.candidates_of(split, num_nodes)

    messages = torch.from_numpy(messages)
    starts = list(itertools.product(args.rates, ("normal", "uniform")))
    common.losses(
        args,
        lambda *rest: ours(args, *rest),
        (lambda *rest: pyg(args, messages, split, drawn, num_nodes, *rest), starts),
        lambda rows: common.measure(rows, split, drawn),
    )


if __name__ == "__main__":
    main()
