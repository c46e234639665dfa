#!/usr/bin/env python3
"""Links of HGB's DBLP, author to paper: losses here and in PyG, on one split of a typed graph.

By a hash 30 % of the author-paper edges are train pairs, 5 % val pairs and 10 % test pairs; neither
they nor their reverses carry messages. Both sides project the types (features of authors, papers
and terms, learnable rows of venues), have a SAGEConv for each relation in two layers, whose outputs
are summed, the same fan-outs, batches, epochs and negatives, a fresh sample of in-edges each epoch,
and embeddings from all in-edges. They rank the paper of each test pair among the same 100 drawn
papers. The best epoch and the learning rate are chosen by val MRR.

    python dblp.py --program graphflat --data DATA/hgb-dblp --out out
"""
import json

import numpy as np
import pyarrow.compute as compute
import pyarrow.parquet as parquet
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import common

WIDTH, FANOUTS, BATCH = 64, [10, 10], 512
TYPES = ("author", "paper", "term", "venue")
RELATIONS = ("author-paper", "paper-term", "term-paper", "paper-venue", "venue-paper")
PAIRS = ("author", "author-paper", "paper")
REVERSE = ("paper", "paper-author", "author")


def job(args, seed, stages):
    nodes = "".join(
        f"""[input.nodes.{name}]
path = "{args.data}/nodes.{name}.parquet"
id = "id"
{f"embedding = {WIDTH}" if name == "venue" else 'features = ["features"]'}
"""
        for name in TYPES
    )
    edges = "".join(
        f"""[input.edges.{name}]
path = "{args.data}/edges.parquet"
from = "{name.split("-")[0]}"
to = "{name.split("-")[1]}"
src = "src"
dst = "dst"
where = {{ edge_type = "{name}" }}
{'reverse = "paper-author"' if name == "author-paper" else ""}
"""
        for name in RELATIONS
    )
    return f"""name = "dblp-links"
seed = {seed}
work_dir = "{args.out}/work"
{nodes}{edges}[input.pairs]
from_edges = "author-paper"
share = {{ train = 0.3, val = 0.05, test = 0.1, seed = 7 }}
exclude = "all"
[flatten]
hops = 2
{stages}"""


def split_of(args):
    """Returns the pairs of each split, which neither the job's seed nor `[train]` changes."""
    stages = f'fanouts = [1, 1]\noutput = "{args.out}/split"\n'
    common.run(args.program, args.out / "split.toml", job(args, 0, stages))
    return common.pairs_of(args.out / "split", ("author", "paper"))


def ours(args, loss, in_batch, seed, rate):
    stages = f"fanouts = {FANOUTS}\n"
    stages += common.train_stages(args, (WIDTH, BATCH), loss, in_batch, rate)
    common.run(args.program, args.out / "job.toml", job(args, seed, stages))
    folders = [args.out / "embeddings" / "embeddings" / name for name in ("author", "paper")]
    return [common.embeddings_of(folder) for folder in folders]


class Encoder(torch.nn.Module):
    """Projections, then two layers with a SAGEConv for each relation."""

    def __init__(self, data):
        super().__init__()
        widths = {name: data[name].get("x", torch.empty(0, WIDTH)).shape[1] for name in TYPES}
        self.lins = torch.nn.ModuleDict(
            {name: torch.nn.Linear(width, WIDTH) for name, width in widths.items()}
        )
        ends = (WIDTH, WIDTH)
        self.first, self.last = (
            HeteroConv({key: SAGEConv(ends, WIDTH) for key in data.edge_types}, aggr="sum")
            for _ in range(2)
        )

    def forward(self, x, edges):
        x = {name: self.lins[name](rows) for name, rows in x.items()}
        x = {name: rows.relu() for name, rows in self.first(x, edges).items()}
        return self.last(x, edges)


def pyg(args, data, split, drawn, is_corrected, loss, in_batch, seed, rate):
    """Returns the embeddings of authors and papers of the best epoch by val MRR."""
    from torch_geometric.loader import LinkNeighborLoader

    torch.manual_seed(seed)
    loader = LinkNeighborLoader(
        data,
        num_neighbors=FANOUTS,
        edge_label_index=(PAIRS, torch.from_numpy(split["train"])),
        neg_sampling={"mode": "triplet", "amount": 1},
        batch_size=BATCH,
        shuffle=True,
    )
    table = common.learnable_rows(data["venue"].num_nodes, WIDTH)
    encoder = Encoder(data)
    optimizers = [
        torch.optim.Adam(encoder.parameters(), lr=rate),
        torch.optim.SparseAdam(table.parameters(), lr=rate),
    ]
    log_expected = None
    if is_corrected:
        num_papers = data["paper"].num_nodes
        log_expected = common.log_expected_negatives(split["train"][1], num_papers, BATCH)

    def loss_of(batch):
        rows = encoder(
            {**batch.x_dict, "venue": table(batch["venue"].n_id)}, batch.edge_index_dict
        )
        src, papers = batch["author"].src_index, batch["paper"]
        dst, negative = papers.dst_pos_index, papers.dst_neg_index
        ids = [batch["author"].n_id[src], papers.n_id[dst], papers.n_id[negative]]
        rows = [rows["author"][src], rows["paper"][dst], rows["paper"][negative]]
        return common.pair_loss(loss, in_batch, rows, ids, False, log_expected)

    def embed():
        rows = encoder({**data.x_dict, "venue": table.weight}, data.edge_index_dict)
        return rows["author"].numpy(), rows["paper"].numpy()

    return common.best_epoch(args.epochs, loader, optimizers, loss_of, embed, split, drawn, False)


def graph(args, split, first_id):
    """Returns PyG's graph without the edges of pairs, and pairs as positions in their types."""
    split = {
        name: pairs - [[first_id["author"]], [first_id["paper"]]] for name, pairs in split.items()
    }
    data = HeteroData()
    for name in TYPES:
        nodes = parquet.read_table(args.data / f"nodes.{name}.parquet")
        data[name].num_nodes = len(nodes)
        if name != "venue":
            rows = nodes["features"].combine_chunks().flatten().to_numpy()
            data[name].x = torch.from_numpy(rows.reshape(len(nodes), -1).copy())
    edges = parquet.read_table(args.data / "edges.parquet")
    for name in RELATIONS:
        src, dst = name.split("-")
        rows = edges.filter(compute.equal(edges["edge_type"], name))
        ends = [
            rows[end].to_numpy() - first_id[kind] for end, kind in (("src", src), ("dst", dst))
        ]
        data[src, name, dst].edge_index = torch.from_numpy(np.stack(ends))
    links = data[PAIRS].edge_index.numpy()
    pairs = np.concatenate(list(split.values()), axis=1)
    num_papers = data["paper"].num_nodes
    keep = ~np.isin(links[0] * num_papers + links[1], pairs[0] * num_papers + pairs[1])
    data[PAIRS].edge_index = torch.from_numpy(links[:, keep])
    data[REVERSE].edge_index = data[PAIRS].edge_index.flip(0)
    return data, split


def main():
    args = common.parsed(common.parser(__doc__, epochs=30))
    first_id = {}
    for name in TYPES:
        ids = parquet.read_table(args.data / f"nodes.{name}.parquet", columns=["id"])["id"]
        first_id[name] = ids[0].as_py()
        assert (np.diff(ids.to_numpy()) == 1).all()
    data, split = graph(args, split_of(args), first_id)
    counts = {name: pairs.shape[1] for name, pairs in split.items()}
    print(json.dumps({**counts, "author_paper_messages": data[PAIRS].num_edges}), flush=True)
    drawn = common.candidates_of(split, data["paper"].num_nodes)

    common.losses(
        args,
        lambda *rest: ours(args, *rest),
        (lambda *rest: pyg(args, data, split, drawn, *rest), [(rate,) for rate in args.rates]),
        lambda rows: common.measure(rows, split, drawn, False),
    )


if __name__ == "__main__":
    main()
