#!/usr/bin/env python3
"""A night's versions of a graph with node types against a full run, in turns.

A graph of `graphflat generate --types` changes: of each relation, half of the changed edges go, and
as many new ones lead to the destinations of other edges. A turn runs a version of the changes, one
of the whole changed tables and a full run (store and inference), each as a whole process. All rows
of all types are compared bit for bit in the first turn.

    python typed.py --program graphflat --dir DIR [--nodes N] [--edges M] [--turns T]
"""
import re
import shutil
import subprocess
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from nightly import graph_parser, in_turns, rows, run, written_share

SHARES = {"nothing": 0.0, "0.1 % of the edges": 0.001, "1 % of the edges": 0.01}
MODELS = {
    "sage": 'model = "sage"\n',
    "rgcn": 'model = "rgcn"\n',
    "hgt": 'model = "hgt"\nheads = 8\n',
    "simple_hgn": 'model = "simple_hgn"\nheads = 8\n',
}


def draw_changes(folder, relation, share, seed):
    """Writes the changes of a relation and its changed table of edges."""
    edges = parquet.read_table(folder.parent / f"edges-{relation}.parquet")
    src, dst = (edges[name].to_numpy() for name in ("src", "dst"))
    rng = np.random.default_rng(seed)
    count = int(len(src) * share)
    picked = rng.choice(len(src), count, replace=False)
    keys = (src << 32) | dst
    removed = np.unique(keys[picked[: count // 2]])
    added = (rng.choice(src, count - count // 2) << 32) | dst[picked[count // 2 :]]
    added = np.setdiff1d(np.unique(added), keys)
    left = ~np.isin(keys, removed)

    def table(ends, **columns):
        return pa.table({"src": ends >> 32, "dst": ends & 0xFFFFFFFF, **columns})

    op = ["delete"] * len(removed) + ["upsert"] * len(added)
    changes = table(np.concatenate([removed, added]), op=pa.array(op, pa.string()))
    parquet.write_table(changes, folder / f"changes-{relation}.parquet")
    whole = table(np.concatenate([keys[left], added]))
    parquet.write_table(whole, folder / f"edges-{relation}.parquet")


def main():
    parser = graph_parser(__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if not (args.dir / "job.toml").exists():
        generate = [args.program, "generate", args.dir, "--seed", "1", "--features", "64"]
        counts = ["--nodes", args.nodes, "--edges", args.edges, "--types", 3, "--relations", 4]
        subprocess.run([str(of) for of in generate + counts], check=True)
    text = (args.dir / "job.toml").read_text()
    tables = tomllib.loads(text)["input"]
    # The jobs lie beside the tables.
    start = re.sub(r'path = ".*/', 'path = "', text.split("[flatten]")[0])
    start = re.sub(r"work_dir = .*", 'work_dir = "work"', start)
    files = [args.dir / f"nodes-{name}.parquet" for name in tables["nodes"]]
    num_nodes = sum(parquet.read_metadata(file).num_rows for file in files)
    folders = {}
    for seed, (case, share) in enumerate(SHARES.items()):
        folders[case] = args.dir / f"changes-{seed}"
        folders[case].mkdir(exist_ok=True)
        for relation in tables["edges"]:
            draw_changes(folders[case], relation, share, seed)
    print("| model | changes | rows | changes | snapshot | full run | ratios | memory |")
    print("|---|---|---|---|---|---|---|---|")
    for model, keys in MODELS.items():
        job = f'[flatten]\noutput = "features"\nhops = 2\nfanouts = [10, 10]\ntargets = "train"\n\n'
        job += f'[train]\noutput = "model-{model}"\n{keys}hidden = [64]\nepochs = 1\n\n'
        run(args, "train", start + job)
        infer = f'[infer]\nmodel = "model-{model}"\noutput = "OUT"\ntypes = "all"\n\n'
        shutil.rmtree(args.dir / f"first-{model}", ignore_errors=True)
        first = infer.replace("OUT", f"first-{model}")
        run(args, "first", f"{start}{first}[incremental]\n")
        for case, folder in folders.items():

            def keys_of(kind):
                path = lambda name: f"{folder.name}/{kind}-{name}.parquet"
                return "".join(f'edges.{name} = "{path(name)}"\n' for name in tables["edges"])

            nodes = "".join(f'nodes.{name} = "nodes-{name}.parquet"\n' for name in tables["nodes"])
            lists = {
                "changes": f"[input.changes]\n{keys_of('changes')}\n",
                "snapshot": f"[input.snapshot]\n{nodes}{keys_of('edges')}\n",
            }
            jobs = {
                name: f"{start}{of}{infer.replace('OUT', name)}"
                f'[incremental]\nparent = "first-{model}"\n'
                for name, of in lists.items()
            }
            of_day = start.replace('"edges-', f'"{folder.name}/edges-')
            of_day = of_day.replace('work_dir = "work"', 'work_dir = "work-full"')
            jobs["full"] = of_day + infer.replace("OUT", "full")

            def compare():
                for name, of in ((name, of) for name in lists for of in tables["nodes"]):
                    found, expected = (rows(args.dir / output, of) for output in (name, "full"))
                    same = map(np.array_equal, found, expected)
                    assert all(same), f"{model}, {case}, {name}, {of}: the rows differ"

            figures, manifest = in_turns(args, jobs, compare)
            cells = [model, case, written_share(manifest, num_nodes), *figures]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
