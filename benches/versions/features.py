#!/usr/bin/env python3
"""A night's versions of graph features and embeddings against a full run, in turns.

As nightly.py, with flatten: a turn runs a version of the changes, one of the whole changed tables and
a full run (store, flatten and inference) on the changed tables. In the first turn, inference on the
neighbourhoods of each version is compared with that on the full run's, bit for bit.

    python features.py --program graphflat --dir DIR [--nodes N] [--edges M] [--turns T]
    python features.py --program graphflat --dir DIR --layouts shards rows --targets train
    python features.py --program graphflat --dir DIR --model gat --processes 2
    python features.py --program graphflat --dir DIR --tables nodes.parquet edges.parquet
"""
import argparse
import shutil
from pathlib import Path

import numpy as np
from nightly import CASES, INPUT, MODELS, changed_tables, copy_tables, draw_changes, graph_parser
from nightly import in_turns, make_graph, rows, run, size, written_share


def main():
    parser = graph_parser(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tables", type=Path, nargs=2)
    parser.add_argument("--layouts", nargs="+", choices=["shards", "rows"], default=["shards"])
    parser.add_argument("--targets", default="all")
    parser.add_argument("--model", choices=["sage", "gat"], default="sage")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    if args.tables:
        copy_tables(args)
    edges = make_graph(args)
    folders = {case: draw_changes(args, edges, case, at) for at, case in enumerate(CASES, 1)}
    print("| layout | changes | targets | bytes | changes | snapshot | full run | ratios | memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    start = INPUT.format(work="work", edges="edges.parquet")
    train = '[flatten]\noutput = "features-model"\nhops = 2\nfanouts = [10, 10]\ntargets = "train"\n'
    train += f'\n[train]\noutput = "model-{args.model}"\nhidden = [64]\nepochs = 1\n{MODELS[args.model][0]}'
    run(args, "train", start + train)
    for layout in args.layouts:
        stages = '[flatten]\noutput = "OUT/features"\nhops = 2\nfanouts = [10, 10]\n'
        stages += f'layout = "{layout}"\ntargets = "{args.targets}"\n\n'
        stages += f'[infer]\noutput = "OUT/rows"\nmodel = "model-{args.model}"\n\n'
        shutil.rmtree(args.dir / "first", ignore_errors=True)
        run(args, "first", start + stages.replace("OUT", "first") + "[incremental]\n")
        for case in args.cases:
            folder = folders[case]
            parents = '[incremental]\nparent = "first/rows"\nfeatures = "first/features"\n'
            tables = changed_tables(folder)
            jobs = {
                name: start + text + stages.replace("OUT", name) + parents
                for name, text in tables.items()
            }
            full = INPUT.format(work="work-full", edges=f"{folder.name}/edges.parquet")
            jobs["full"] = full + stages.replace("OUT", "full")

            def compare():
                alone = argparse.Namespace(**{**vars(args), "processes": 1})
                for name in jobs:
                    infer = f'[infer]\noutput = "by-{name}"\nmodel = "model-{args.model}"\n'
                    infer += f'input = "{name}/features"\nmethod = "neighborhoods"\n'
                    shutil.rmtree(args.dir / f"by-{name}", ignore_errors=True)
                    run(alone, "by", start + infer)
                of_full = rows(args.dir / "by-full")
                for name in tables:
                    same = map(np.array_equal, rows(args.dir / f"by-{name}"), of_full)
                    assert all(same), f"{layout}, {case}, {name}: the neighbourhoods differ"

            figures, manifest = in_turns(args, jobs, compare, "changes/features")
            counts = (
                of["targets"] for of in manifest["parts"] + manifest["version"]["kept"][0]["parts"]
                if of.get("targets")
            )
            num_targets = sum(sum(of.values()) for of in counts)
            share = written_share(manifest, num_targets)
            of_features = (size(args.dir / name / "features") for name in ["changes", "full"])
            written, whole = of_features
            cells = [layout, case, share, f"{written / whole:.1%}", *figures]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
