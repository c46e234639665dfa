#!/usr/bin/env python3
"""What a night costs late in a chain: seconds and peak memory of each version.

The graph of nightly.py changes night after night by random edges. Each night is a version of the
one before, as a whole process. The last one is compared with a full run on the tables of its day,
bit for bit.

    python nights.py --program graphflat --dir DIR [--nights 30] [--share 0.001] [--model sage]
"""
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import nightly


def main():
    parser = nightly.graph_parser(__doc__)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--share", type=float, default=0.001, help="of the edges, each night")
    parser.add_argument("--model", choices=nightly.MODELS, default="sage")
    parser.set_defaults(processes=1, pairs=None)
    args = parser.parse_args()
    edges = nightly.make_graph(args)
    ids = parquet.read_table(args.dir / "nodes.parquet", columns=["id"])["id"].to_numpy()
    assert np.array_equal(ids, np.arange(len(ids))), "generated ids are the numbers from 0"
    src, dst = (edges[name].to_numpy().astype(np.int64) for name in ("src", "dst"))
    keys = np.sort((src << 32) | dst)  # with parallel edges
    rng = np.random.default_rng(1)
    keys_of_model, most = nightly.MODELS[args.model]
    start = nightly.head(args, "work", "edges.parquet")
    for left in args.dir.glob("chain-*"):
        shutil.rmtree(left)
    first = start + (
        f"[flatten]\noutput = \"chain-features\"\nhops = 2\nfanouts = [{most}, {most}]\n"
        f"targets = \"train\"\n\n[train]\noutput = \"chain-model\"\nepochs = 1\n{keys_of_model}"
        "hidden = [64]\n\n[infer]\noutput = \"chain-0\"\n\n[incremental]\n"
    )
    nightly.run(args, "first", first)

    def write(changed, name, op):
        table = {"src": pa.array(changed >> 32), "dst": pa.array(changed & 0xFFFFFFFF), **op}
        parquet.write_table(pa.table(table), args.dir / name)

    infer = "[infer]\nmodel = \"chain-model\"\noutput = \"chain-OUT\"\n\n"
    count = int(len(keys) * args.share)
    print("| night | edges changed since the first run | version | memory |\n|---|---|---|---|")
    for night in range(1, args.nights + 1):
        picked = rng.choice(len(keys), count, replace=False)
        removed = np.unique(keys[picked[: count // 2]])
        targets = keys[picked[count // 2 :]] & 0xFFFFFFFF
        added = np.unique((rng.integers(0, len(ids), len(targets)) << 32) | targets)
        # The keys are ascending, so that no night sorts all of them.
        places = np.searchsorted(keys, added)
        added = added[keys[np.minimum(places, len(keys) - 1)] != added]
        first, last = (np.searchsorted(keys, removed, side) for side in ("left", "right"))
        gone = np.concatenate([np.arange(*of) for of in zip(first, last)])
        keys = np.delete(keys, gone)
        keys = np.insert(keys, np.searchsorted(keys, added), added)
        op = {"op": pa.array(["delete"] * len(removed) + ["upsert"] * len(added))}
        write(np.concatenate([removed, added]), "chain-changes.parquet", op)
        job = start + "[input.changes]\nedges = \"chain-changes.parquet\"\n\n"
        job += infer.replace("OUT", str(night))
        job += f"[incremental]\nparent = \"chain-{night - 1}\"\n"
        seconds, peak = nightly.run(args, "night", job)
        share = night * args.share
        print(f"| {night} | {share:.1%} | {seconds:.2f} s | {peak:.2f} GB |", flush=True)
    write(keys, "chain-edges.parquet", {})
    full = nightly.head(args, "chain-work", "chain-edges.parquet") + infer.replace("OUT", "full")
    seconds, peak = nightly.run(args, "full", full)
    print(f"| full run | | {seconds:.2f} s | {peak:.2f} GB |")
    of_full = nightly.rows(args.dir / "chain-full")
    last = nightly.rows(args.dir / f"chain-{args.nights}")
    assert all(map(np.array_equal, last, of_full)), "the rows differ"


if __name__ == "__main__":
    main()
