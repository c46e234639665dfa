"""The split, the candidates and the metrics that both sides of a comparison share."""
import glob
import json
import pathlib
import subprocess

import numpy as np
import pyarrow.compute as compute
import pyarrow.parquet as parquet

SPLITS = ("train", "val", "test")


def pairs_of(parts):
    """Returns the pairs of each split as [2, n] ids, from the parts that flatten wrote."""
    found = {name: [] for name in SPLITS}
    for path in sorted(glob.glob(f"{parts}/pairs/*.parquet")):
        ids = parquet.read_table(path.replace("/pairs/", "/nodes/"), columns=["id"])
        ids = ids["id"].to_numpy()
        table = parquet.read_table(path)
        for name in SPLITS:
            rows = table.filter(compute.equal(table["split"], name))
            found[name].append(np.stack([ids[rows["src"].to_numpy()], ids[rows["dst"].to_numpy()]]))
    return {name: np.concatenate(pairs, axis=1) for name, pairs in found.items()}


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


def mean(values):
    """Mean and standard deviation, in percent."""
    values = 100 * np.array(values)
    return f"{values.mean():.1f} ({values.std(ddof=1):.1f})"
