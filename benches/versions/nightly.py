#!/usr/bin/env python3
"""A night's versions against a full run, in turns: seconds, rows, bytes and peak memory.

A graph of `graphflat generate` changes by random edges: half of them go, as many new ones lead to
the destinations of other edges. A turn runs a version of the changes, one of the whole changed
tables ([input.snapshot]) and a full run (store and inference) on the changed tables, each as a
whole process, and compares all rows bit for bit in the first turn. The full run is `graphflat run`
of a job without [incremental].

    python nightly.py --program graphflat --dir DIR [--nodes N] [--edges M] [--turns T]
    python nightly.py --program graphflat --dir DIR --tables nodes.parquet edges.parquet
    python nightly.py --program graphflat --dir DIR --models gcn sage-all
    python nightly.py --program graphflat --dir DIR --processes 2
    python nightly.py --program graphflat --dir DIR --pairs 0.2 --models sage

T turns are counted, after one that is not. With --pairs, a hash makes so many of the edges pairs,
which carry no messages, and a model of links gives the rows. With --processes, all jobs have as
many, each with one worker; memory is that of the first. With --tables, the graph of these tables
changes. Its first column of nodes is the id, the first two of edges are the ends. Nodes have the
column `features`, or 64 random numbers.
"""
import argparse
import json
import re
import shutil
import statistics
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

# What changes: share of the edges, share of the nodes to which they lead.
CASES = {
    "nothing": (0.0, 1.0),
    "0.1 % of the edges": (0.001, 1.0),
    "1 %, to 1 % of the nodes": (0.01, 0.01),
    "1 % of the edges": (0.01, 1.0),
}
# Keys of [train], and the fan-outs of both hops.
MODELS = {
    "sage": ('model = "sage"\n', "10"),
    "gat": ('model = "gat"\nheads = 8\n', "10"),
    "gcn": ('model = "gcn"\n', "10"),
    "sage-all": ('model = "sage"\n', '"all"'),
}
INPUT = """name = "nightly"
seed = 1
work_dir = "{work}"

[input.nodes]
path = "nodes.parquet"
id = "id"
features = ["features"]
label = "label"
num_classes = 16
split = "split"

[input.edges]
path = "{edges}"
src = "src"
dst = "dst"

"""


def graph_parser(doc):
    """Returns a parser of the program, the directory and the size of the graph."""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("--program", type=find_program, default="graphflat")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=1 << 20)
    parser.add_argument("--edges", type=int, default=1 << 24)
    return parser


def find_program(name):
    """Returns the path of a program, since jobs run in another directory."""
    path = shutil.which(name)
    if path is None:
        raise argparse.ArgumentTypeError(f"there is no program {name}")
    return str(Path(path).resolve())


def run(args, name, text, *more):
    """Runs a job; returns its seconds and its peak memory in GB."""
    path = args.dir / f"{name}.toml"
    path.write_text(text)
    started = time.monotonic()
    command = [args.program, "run", path.name, "--quiet", *more]
    if args.processes > 1:
        command += ["--processes", str(args.processes), "--workers", "1"]
    process = subprocess.Popen(command, cwd=args.dir)
    peaks = [0]
    watch = threading.Thread(target=watch_memory, args=(process, peaks))
    watch.start()
    process.wait()
    seconds = time.monotonic() - started
    watch.join()
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return seconds, max(peaks) * 1024 / 1e9


def watch_memory(process, peaks):
    """Appends the peak memory of a process since its program was loaded, in KiB, until it ends.

    The peak that the system tells of a process that ended counts this script's own memory.
    """
    while process.returncode is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        peaks += [int(kib) for kib in re.findall(r"VmHWM:\s+(\d+) kB", status)]
        time.sleep(0.005)


def head(args, work, edges):
    """Returns name, input and working directory of a job."""
    text = INPUT.format(work=work, edges=edges)
    if args.pairs:
        labels = 'label = "label"\nnum_classes = 16\nsplit = "split"\n'
        rest = args.pairs / 10
        share = f"{{ train = {args.pairs - 2 * rest}, val = {rest}, test = {rest} }}"
        text = text.replace(labels, "") + f"[input.pairs]\nfrom_edges = true\nshare = {share}\n\n"
    return text


def in_turns(args, jobs, compare, version="changes"):
    """Runs versions and the job "full" in turns, of which the first is not counted; calls `compare`
    after that one. In it, a version hashes the files that the first run of the chain has written.

    Returns the cells of their figures, and the manifest of the output `version`.
    """
    seconds, peaks = ({name: [] for name in jobs} for _ in range(2))
    for turn in range(1 + args.turns):
        for name, text in jobs.items():
            for left in [name, "work-full" if name == "full" else name]:
                shutil.rmtree(args.dir / left, ignore_errors=True)
            of_run = run(args, name, text)
            seconds[name].append(of_run[0])
            peaks[name].append(of_run[1])
        if turn == 0:
            compare()
    medians = {name: statistics.median(of[1:]) for name, of in seconds.items()}
    versions = [name for name in jobs if name != "full"]
    cells = [f"{of:.2f} s" for of in medians.values()]
    cells.append(", ".join(f"{medians[name] / medians['full']:.3f}" for name in versions))
    cells.append(", ".join(f"{max(of):.2f}" for of in peaks.values()) + " GB")
    return cells, json.loads((args.dir / version / "_manifest.json").read_text())


def written_share(manifest, num_nodes):
    """Returns the cell of the share of the rows that a version has written."""
    mode = " (full)" if manifest["report"]["mode"] == "full" else ""
    return f"{manifest['version']['upserts'] / num_nodes:.1%}{mode}"


def draw_changes(args, edges, case, seed):
    """Writes changes and the changed table of edges; returns their folder."""
    share, of_nodes = CASES[case]
    ids = parquet.read_table(args.dir / "nodes.parquet", columns=["id"])["id"].combine_chunks()
    num_nodes = len(ids)
    numbers = (pc.index_in(edges[name], ids) for name in ("src", "dst"))
    src, dst = (of.to_numpy().astype(np.int64) for of in numbers)
    rng = np.random.default_rng(seed)
    candidates = np.arange(len(src))
    if of_nodes < 1:
        chosen = np.zeros(num_nodes, bool)
        chosen[rng.choice(num_nodes, int(num_nodes * of_nodes), replace=False)] = True
        candidates = np.flatnonzero(chosen[dst])
    count = min(int(len(src) * share), len(candidates))
    picked = rng.choice(candidates, count, replace=False)
    keys = (src << 32) | dst
    removed = np.unique(keys[picked[: count // 2]])
    added = (rng.integers(0, num_nodes, count - count // 2) << 32) | dst[picked[count // 2 :]]
    added = np.setdiff1d(np.unique(added), keys)
    left = ~np.isin(keys, removed)
    folder = args.dir / case.replace(" ", "-").replace(",", "").replace("%", "percent")
    folder.mkdir(exist_ok=True)

    def table(ends, **columns):
        ends = {"src": ids.take(ends >> 32), "dst": ids.take(ends & 0xFFFFFFFF)}
        return pa.table({**ends, **columns})

    op = ["delete"] * len(removed) + ["upsert"] * len(added)
    changes = table(np.concatenate([removed, added]), op=pa.array(op, pa.string()))
    parquet.write_table(changes, folder / "changes.parquet")
    parquet.write_table(table(np.concatenate([keys[left], added])), folder / "edges.parquet")
    return folder


def rows(output, node_type=""):
    """Returns ids and embeddings of an output or a type there, a version or not, sorted by id."""
    manifest = json.loads((output / "_manifest.json").read_text())
    replaced, kept = {}, []
    version = manifest.get("version")
    if version and version["kept"]:
        table = parquet.read_table(output / "_replaced.parquet")
        for file, row in zip(*(table[name].to_pylist() for name in table.column_names)):
            replaced.setdefault(file, []).append(row)
        kept = [(of["path"], part) for of in version["kept"] for part in of["parts"]]
    own = [(".", part) for part in manifest["parts"] if part["name"] != "version"]
    ids, values = [], []
    of_type = f"{node_type}/" if node_type else ""
    for path, part in (of for of in kept + own if of[1]["name"].startswith(of_type)):
        for entry in part["files"]:
            table = parquet.read_table(output / path / entry["path"])
            if len(table) == 0:
                continue
            there = np.ones(len(table), bool)
            there[replaced.get(f"{path}/{entry['path']}", [])] = False
            ids.append(table["id"].to_numpy()[there])
            flat = np.concatenate([of.flatten().to_numpy() for of in table["embedding"].chunks])
            values.append(flat.reshape(len(table), -1)[there])
    ids, values = np.concatenate(ids), np.concatenate(values)
    order = np.argsort(ids)
    return ids[order], values[order].view(np.uint32)


def copy_tables(args):
    """Writes the tables of a graph with the columns of a generated one."""
    args.dir.mkdir(exist_ok=True)
    nodes, edges = (parquet.read_table(path) for path in args.tables)
    rng = np.random.default_rng(0)
    if "features" in nodes.column_names:
        features = nodes["features"].combine_chunks()
    else:
        values = rng.standard_normal(64 * len(nodes), np.float32)
        features = pa.FixedSizeListArray.from_arrays(values, 64)
    columns = {
        "id": nodes.column(0),
        "features": features,
        "label": pa.array(rng.integers(0, 16, len(nodes)), pa.int32()),
        "split": pa.array(rng.choice(["train", "val", "test"], len(nodes))),
    }
    parquet.write_table(pa.table(columns), args.dir / "nodes.parquet")
    ends = {"src": edges.column(0), "dst": edges.column(1)}
    parquet.write_table(pa.table(ends), args.dir / "edges.parquet")


def make_graph(args):
    """Writes the graph of `graphflat generate`, if it is not there; returns its edges."""
    if not (args.dir / "nodes.parquet").exists():
        generate = [args.program, "generate", args.dir, "--seed", "1", "--features", "64"]
        counts = ["--nodes", args.nodes, "--edges", args.edges]
        subprocess.run([str(of) for of in generate + counts], check=True)
    return parquet.read_table(args.dir / "edges.parquet")


def changed_tables(folder):
    """Returns the tables of a job with changes, and of one with a snapshot, by its name."""
    return {
        "changes": f"[input.changes]\nedges = \"{folder.name}/changes.parquet\"\n\n",
        "snapshot": "[input.snapshot]\nnodes = \"nodes.parquet\"\n"
        f"edges = \"{folder.name}/edges.parquet\"\n\n",
    }


def size(output):
    return sum(file.stat().st_size for file in output.rglob("*") if file.is_file())


def main():
    parser = graph_parser(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tables", type=Path, nargs=2)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--pairs", type=float, help="share of the edges")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["sage", "gat"])
    args = parser.parse_args()
    if args.tables:
        copy_tables(args)
    edges = make_graph(args)
    folders = {case: draw_changes(args, edges, case, at) for at, case in enumerate(CASES, 1)}
    print("| model | changes | rows | bytes | changes | snapshot | full run | ratios | memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in args.models:
        keys, most = MODELS[model]
        train = f"[flatten]\noutput = \"features-{model}\"\nhops = 2\nfanouts = [{most}, {most}]\n"
        targets = "" if args.pairs else "targets = \"train\"\n"
        train += f"{targets}\n[train]\noutput = \"model-{model}\"\nepochs = 1\n{keys}"
        hidden = "[64, 64]\nnegatives = { random = 4 }" if args.pairs else "[64]"
        train += f"hidden = {hidden}\n\n"
        run(args, "train", head(args, "work", "edges.parquet") + train)
        infer = f"[infer]\nmodel = \"model-{model}\"\noutput = \"OUT\"\n\n"
        start = head(args, "work", "edges.parquet")
        first = start + infer.replace("OUT", f"first-{model}") + "[incremental]\n"
        shutil.rmtree(args.dir / f"first-{model}", ignore_errors=True)
        run(args, "first", first)
        for case, folder in folders.items():
            of_parent = f"\n[incremental]\nparent = \"first-{model}\"\n"
            tables = changed_tables(folder)
            jobs = {
                name: start + text + infer.replace("OUT", name) + of_parent
                for name, text in tables.items()
            }
            full = head(args, "work-full", f"{folder.name}/edges.parquet")
            jobs["full"] = full + infer.replace("OUT", "full")

            def compare():
                of_full = rows(args.dir / "full")
                for name in tables:
                    same = map(np.array_equal, rows(args.dir / name), of_full)
                    assert all(same), f"{model}, {case}, {name}: the rows differ"

            figures, manifest = in_turns(args, jobs, compare)
            num_nodes = parquet.read_metadata(args.dir / "nodes.parquet").num_rows
            share = written_share(manifest, num_nodes)
            bytes_share = size(args.dir / "changes") / size(args.dir / "full")
            cells = [model, case, share, f"{bytes_share:.1%}", *figures]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
