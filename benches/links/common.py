"""The split, the candidates and the metrics that both sides of a comparison share."""
import argparse
import glob
import json
import pathlib
import subprocess

import numpy as np
import pyarrow.compute as compute
import pyarrow.parquet as parquet
import torch

SPLITS = ("train", "val", "test")
CANDIDATES = 100  # drawn nodes that a pair is ranked among
RANDOM = 32  # random negatives of a train pair
CHOICE_SEEDS = 3  # seeds that choose the settings of a competitor


def pairs_of(parts, types=None):
    """Returns the pairs of each split as [2, n] ids, from the parts that flatten wrote.

    In a typed graph, `types` are the types of src and dst.
    """
    found = {name: [] for name in SPLITS}
    for path in sorted(glob.glob(f"{parts}/pairs/*.parquet")):
        ids = [
            parquet.read_table(path.replace("/pairs/", folder), columns=["id"])["id"].to_numpy()
            for folder in ([f"/nodes/{name}/" for name in types] if types else ["/nodes/"] * 2)
        ]
        table = parquet.read_table(path)
        for name in SPLITS:
            rows = table.filter(compute.equal(table["split"], name))
            ends = [rows[end].to_numpy() for end in ("src", "dst")]
            found[name].append(np.stack([of[end] for of, end in zip(ids, ends)]))
    return {name: np.concatenate(pairs, axis=1) for name, pairs in found.items()}


def without_pairs(edges, split, num_dst):
    """Returns the edges that are neither pairs nor reverses of pairs, of one type."""
    pairs = np.concatenate(list(split.values()), axis=1)
    pairs = np.concatenate([pairs, pairs[::-1]], axis=1)
    keep = ~np.isin(edges[0] * num_dst + edges[1], pairs[0] * num_dst + pairs[1])
    return edges[:, keep]


def with_sampler(path):
    """Loads torch_sparse's operators for PyG, if a library of them is given."""
    import torch_geometric.typing

    if path:
        torch.ops.load_library(path)
        torch_geometric.typing.WITH_TORCH_SPARSE = True


def candidates_of(split, num_dst):
    """Draws the nodes that both sides rank each val and each test pair among."""
    rng = np.random.default_rng(1)
    return {
        name: rng.integers(0, num_dst, (split[name].shape[1], CANDIDATES))
        for name in ("val", "test")
    }


def candidate_scores(rows, pairs, candidates, is_one_type=True):
    """Inner products of pairs, and of their src ends with candidates; -inf for their own ends.

    `rows` are the embeddings of the types of src and dst.
    """
    src, dst = rows[0][pairs[0]], rows[1][pairs[1]]
    own = np.einsum("pd,pd->p", src, dst)
    others = np.einsum("pd,pkd->pk", src, rows[1][candidates])
    others[candidates == pairs[1][:, None]] = -np.inf
    if is_one_type:
        others[candidates == pairs[0][:, None]] = -np.inf
    return own, others


def mrr(own, others):
    """Mean of 1 / rank of a pair among itself and its candidates; ties get their mean rank."""
    own = own[:, None]
    rank = 1 + (others > own).sum(1) + (others == own).sum(1) / 2
    return float((1 / rank).mean())


def pair_loss(kind, in_batch, rows, ids, is_one_type, log_expected=None):
    """Mean loss of the pairs of a batch in PyG: `softmax` or `binary_cross_entropy`.

    `rows` and `ids` are those of src ends, dst ends and drawn nodes. The negatives of a pair are
    32 of the drawn nodes and, with `in_batch`, the dst ends of the other pairs, but never its own
    ends. `log_expected` is subtracted from the score of a negative, by its id.
    """
    (src, dst, drawn), (src_id, dst_id, drawn_id) = rows, ids
    own = (src * dst).sum(1)
    pick = torch.randint(len(drawn), (len(src), RANDOM))
    scores = torch.einsum("pd,pkd->pk", src, drawn[pick])
    ends = drawn_id[pick]
    if in_batch:
        scores = torch.cat([scores, src @ dst.T], dim=1)
        ends = torch.cat([ends, dst_id.expand(len(src), -1)], dim=1)
    if log_expected is not None:
        scores = scores - log_expected[ends]
    left_out = ends == dst_id[:, None]
    if is_one_type:
        left_out |= ends == src_id[:, None]
    if kind == "softmax":
        scores = torch.cat([own[:, None], scores.masked_fill(left_out, -torch.inf)], dim=1)
        return -torch.log_softmax(scores, dim=1)[:, 0].mean()
    softplus = torch.nn.functional.softplus
    count = (~left_out).sum(1).clamp(min=1)
    return (softplus(-own) + softplus(scores).masked_fill(left_out, 0).sum(1) / count).mean()


def measure(rows, split, drawn, is_one_type=True):
    """MRR and AUC of val and test pairs among the drawn nodes."""
    found = {}
    for name in ("val", "test"):
        own, others = candidate_scores(rows, split[name], drawn[name], is_one_type)
        found[f"{name}_mrr"] = mrr(own, others)
        found[f"{name}_auc"] = float(auc(own, others[others > -np.inf]))
    return found


def best_epoch(epochs, loader, optimizers, loss_of, embed, split, drawn, is_one_type=True):
    """Trains in PyG; returns the embeddings of src and dst of the best epoch by val MRR."""
    best = (-1.0, None)
    for _epoch in range(epochs):
        for batch in loader:
            loss = loss_of(batch)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        with torch.no_grad():
            rows = embed()
        scores = candidate_scores(rows, split["val"], drawn["val"], is_one_type)
        best = max(best, (mrr(*scores), rows), key=lambda of: of[0])
    return best[1]


def learnable_rows(num_nodes, width, start="uniform"):
    """Returns PyTorch's table of rows; `uniform` gives them the first values of our rows."""
    table = torch.nn.Embedding(num_nodes, width, sparse=True)
    if start == "uniform":
        torch.nn.init.uniform_(table.weight, -(width**-0.5), width**-0.5)
    return table


def log_expected_negatives(dst, num_dst, batch_size):
    """Logarithm of how often a pair expects a node among its in-batch and random negatives."""
    share = np.bincount(dst, minlength=num_dst) / len(dst)
    return torch.from_numpy(np.log((batch_size - 1) * share + RANDOM / num_dst)).float()


def no_links(links, num_nodes, count, rng):
    """Draws `count` pairs of different nodes that are no links, in either direction."""
    keys = set((links[0] * num_nodes + links[1]).tolist())
    drawn = []
    while len(drawn) < count:
        src, dst = (int(node) for node in rng.integers(0, num_nodes, 2))
        if src == dst or src * num_nodes + dst in keys or dst * num_nodes + src in keys:
            continue
        drawn.append((src, dst))
    return np.array(drawn).T


def ranks(scores):
    """Ranks from 1, the lowest score first; ties get their mean rank."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def auc(positive, negative):
    """Area under the ROC curve."""
    total = ranks(np.concatenate([positive, negative]))[: len(positive)].sum()
    return (total - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative))


def average_precision(positive, negative):
    """As scikit-learn's average_precision_score: pairs with equal scores are one step."""
    scores = np.concatenate([positive, negative])
    is_link = np.concatenate([np.ones(len(positive)), np.zeros(len(negative))])
    order = np.argsort(-scores, kind="stable")
    scores, is_link = scores[order], is_link[order]
    last = np.append(np.diff(scores) != 0, True)
    found, seen = np.cumsum(is_link)[last], (np.arange(len(scores)) + 1)[last]
    return float((np.diff(found, prepend=0) * found / seen).sum() / len(positive))


def dot_metrics(embeddings, positive, negative):
    """AUC and average precision of inner products."""
    scores = [
        np.einsum("ij,ij->i", embeddings[src], embeddings[dst]) for src, dst in (positive, negative)
    ]
    return auc(*scores), average_precision(*scores)


def run(program, job, text):
    """Writes a job file and runs it on one core."""
    job = pathlib.Path(job)
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(text)
    done = subprocess.run(
        [program, "run", str(job), "--workers", "1", "--fresh"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)


def embeddings_of(folder):
    """Returns the embeddings of all nodes, in the order of their ids."""
    tables = [parquet.read_table(path) for path in sorted(glob.glob(f"{folder}/*.parquet"))]
    rows = [table["embedding"].combine_chunks().flatten().to_numpy() for table in tables]
    width = tables[0].schema.field("embedding").type.list_size
    return np.concatenate(rows).reshape(-1, width)


def evaluation_of(model):
    """Returns `evaluation.json` of a model."""
    return json.loads(pathlib.Path(model, "evaluation.json").read_text())


# Loss and `in_batch` of the settings that both sides train with.
SETTINGS = {
    "softmax, in-batch": ("softmax", True),
    "cross-entropy, in-batch": ("binary_cross_entropy", True),
    "cross-entropy": ("binary_cross_entropy", False),
}


def parser(description, epochs):
    """Returns the arguments of the scripts that compare losses."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--program", default="graphflat")
    found.add_argument("--data", type=pathlib.Path, required=True)
    found.add_argument("--out", type=pathlib.Path, required=True)
    found.add_argument("--seeds", type=int, default=5)
    found.add_argument("--epochs", type=int, default=epochs)
    found.add_argument("--rates", nargs="*", type=float, default=[0.003, 0.01])
    found.add_argument("--sampler", help="a library with torch_sparse's operators, without it")
    found.add_argument("--only", nargs="*", help="competitors")
    return found


def parsed(of):
    """Parses the arguments and sets PyTorch up: one thread, and the sampler."""
    args = of.parse_args()
    args.out = args.out.resolve()
    with_sampler(args.sampler)
    torch.set_num_threads(1)
    return args


def train_stages(args, sizes, loss, in_batch, rate):
    """Returns `[train]` and `[infer]` of a GraphSAGE; `sizes` are its width and its batch size."""
    width, batch = sizes
    return f"""[train]
streamed = true
output = "{args.out}/model"
model = "sage"
hidden = [{width}, {width}]
dropout = 0.0
learning_rate = {rate}
batch_size = {batch}
epochs = {args.epochs}
loss = "{loss}"
negatives = {{ in_batch = {json.dumps(in_batch)}, random = {RANDOM}, evaluation = {CANDIDATES} }}
[infer]
output = "{args.out}/embeddings"
sampling = "none"
"""


def losses(args, ours, pyg_with_choices, measure):
    """Trains both sides with every setting; prints the mean of the choice with the best val MRR.

    `ours` is a function of (loss, in_batch, seed, rate) that returns the embeddings of src and dst.
    `pyg_with_choices` are a function of (is_corrected, loss, in_batch, seed, *choice) and its
    choices. The first three seeds choose, all seeds count. `measure` returns the metrics of
    embeddings.
    """
    pyg, choices_of_pyg = pyg_with_choices
    competitors = {
        "here": (ours, [(rate,) for rate in args.rates], list(SETTINGS)),
        "PyG": (lambda *rest: pyg(False, *rest), choices_of_pyg, list(SETTINGS)),
        "PyG, corrected": (lambda *rest: pyg(True, *rest), choices_of_pyg, ["softmax, in-batch"]),
    }
    out, seeds = args.out, args.seeds

    def trained(name, setting, choice, of_seeds):
        for seed in of_seeds:
            found = measure(competitors[name][0](*SETTINGS[setting], seed, *choice))
            line = {"competitor": name, "setting": setting, "choice": choice, "seed": seed, **found}
            with open(out / "runs.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            yield found

    for name in args.only or competitors:
        _, choices, settings = competitors[name]
        for setting in settings:
            tried = {
                choice: list(trained(name, setting, choice, range(min(seeds, CHOICE_SEEDS))))
                for choice in choices
            }
            vals = {
                choice: float(np.mean([found["val_mrr"] for found in runs]))
                for choice, runs in tried.items()
            }
            best = max(vals, key=vals.get)
            runs = tried[best] + list(trained(name, setting, best, range(CHOICE_SEEDS, seeds)))
            line = {"competitor": name, "setting": setting, "choice": best}
            for metric in runs[0]:
                line[metric] = mean([found[metric] for found in runs])
            line["tried"] = [[*choice, round(val, 4)] for choice, val in vals.items()]
            print(json.dumps(line), flush=True)


def mean(values):
    """Mean and standard deviation, in percent."""
    values = 100 * np.array(values)
    return f"{values.mean():.1f} ({values.std(ddof=1):.1f})"
