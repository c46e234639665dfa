#!/usr/bin/env python3
"""Chains of versions of random graphs against full runs, row by row and bit by bit.

Each night some nodes and edges come, go and change, and rows of both tables change places. A
version is computed from the whole tables ([input.snapshot]) and compared with a full run on them.
Chains differ in the type of ids, gaps between ids, direction, model, sampling and workers; edges have
weights and features, tables are several files with several row groups, and `where` leaves out half
of the edges.

    python chains.py --program graphflat --dir DIR [--chains N] [--nights N] [--processes N]
"""
import argparse
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from nightly import rows

ID_TYPES = [pa.uint32(), pa.uint64(), pa.int32(), pa.int64(), pa.string()]
MODELS = ["sage", "gat", "gin"]
SAMPLINGS = ["uniform", "weighted", "top"]
INPUT = """name = "chains"
seed = {seed}
work_dir = "{work}"
workers = {workers}

[input.nodes]
path = "{tables}/nodes-*.parquet"
id = "id"
features = ["x", "y"]
label = "label"
split = "split"

[input.edges]
path = "{tables}/edges-*.parquet"
src = "src"
dst = "dst"
weight = "weight"
features = ["feature"]
undirected = {undirected}
where = {{ kind = "a" }}

"""


class Chain:
    """A random graph that changes from night to night."""

    def __init__(self, args, seed):
        self.args, self.seed, self.rng = args, seed, np.random.default_rng(seed)
        self.dir = args.dir / f"chain-{seed}"
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        self.id_type = ID_TYPES[seed % len(ID_TYPES)]
        ids = np.arange(400) if seed % 3 else self.rng.choice(3000, 400, replace=False)
        self.nodes = {int(of): self.features() for of in ids}
        self.edges = [self.edge() for _ in range(3000)]
        # Parallel edges with other values.
        self.edges += [(*of[:2], *self.edge()[2:]) for of in self.edges[:300]]

    def features(self):
        return self.rng.standard_normal(2).astype(np.float32)

    def edge(self):
        src, dst = (int(of) for of in self.rng.choice(list(self.nodes), 2))
        weight = np.float32(self.rng.integers(1, 4))
        return src, dst, weight, self.features(), "ab"[self.rng.integers(2)]

    def night(self):
        """Draws and applies changes of every kind."""
        for node in self.rng.choice(list(self.nodes), 5):
            self.nodes[int(node)] = self.features()
        gone = int(self.rng.choice(list(self.nodes)))
        del self.nodes[gone]
        self.edges = [of for of in self.edges if gone not in of[:2]]
        for node in self.rng.choice(3200, 3, replace=False):
            self.nodes.setdefault(int(node), self.features())
        for _ in range(8):
            del self.edges[self.rng.integers(len(self.edges))]
            self.edges.insert(self.rng.integers(len(self.edges)), self.edge())
        one, other = self.rng.integers(len(self.edges), size=2)
        self.edges[one], self.edges[other] = self.edges[other], self.edges[one]
        at = self.rng.integers(len(self.edges))
        self.edges[at] = (*self.edges[at][:2], *self.edge()[2:])

    def ids(self, of):
        if self.id_type == pa.string():
            return pa.array([str(value) for value in of])
        shift = 0 if pa.types.is_unsigned_integer(self.id_type) else 50
        return pa.array([value - shift for value in of], pa.int64()).cast(self.id_type)

    def write(self, name):
        """Writes the tables of a night; nodes stand in any order."""
        (self.dir / name).mkdir()
        ids = self.rng.permutation(list(self.nodes)).tolist()
        nodes = {
            "id": self.ids(ids),
            "x": pa.array([self.nodes[of][0] for of in ids]),
            "y": pa.array([self.nodes[of][1] for of in ids]),
            "label": pa.array([of % 3 for of in ids], pa.int32()),
            "split": pa.array(["train" if of % 2 else "test" for of in ids]),
        }
        src, dst, weights, features, kinds = zip(*self.edges)
        edges = {
            "src": self.ids(src),
            "dst": self.ids(dst),
            "weight": pa.array(weights),
            "feature": pa.array([of.tolist() for of in features], pa.list_(pa.float32(), 2)),
            "kind": pa.array(kinds),
        }
        for kind, columns in [("nodes", nodes), ("edges", edges)]:
            table = pa.table(columns)
            cut = len(table) // 3
            for at, part in enumerate([table.slice(0, cut), table.slice(cut)]):
                path = self.dir / name / f"{kind}-{at}.parquet"
                parquet.write_table(part, path, row_group_size=70)

    def run(self, name, work, tables, text):
        undirected = str(bool(self.seed % 2)).lower()
        keys = {"seed": self.seed, "workers": 1 + self.seed % 3, "undirected": undirected}
        (self.dir / name).write_text(INPUT.format(work=work, tables=tables, **keys) + text)
        command = [self.args.program, "run", name, "--quiet"]
        # Full runs are in one process.
        if work == "work":
            command += ["--processes", str(self.args.processes)]
        done = subprocess.run(command, cwd=self.dir, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.dir / name}: {done.stderr}")

    def check(self):
        """Runs the chain; returns the number of rows that versions wrote."""
        model = MODELS[self.seed % 3]
        first = f'[flatten]\noutput = "features"\nhops = 2\nfanouts = [4, 3]\n'
        first += f'sampling = "{SAMPLINGS[self.seed // 3 % 3]}"\n\n'
        first += f'[train]\noutput = "model"\nmodel = "{model}"\nhidden = [8]\nepochs = 1\n'
        first += 'edge_weight = false\n\n[infer]\noutput = "version-0"\n\n[incremental]\n'
        self.write("tables-0")
        self.run("first.toml", "work", "tables-0", first)
        written = []
        for night in range(1, self.args.nights + 1):
            tables, own = f"tables-{night}", f"version-{night}"
            self.night()
            self.write(tables)
            version = f'[input.snapshot]\nnodes = "{tables}/nodes-*.parquet"\n'
            version += f'edges = "{tables}/edges-*.parquet"\n\n'
            version += f'[infer]\noutput = "{own}"\nmodel = "model"\n\n'
            version += f'[incremental]\nparent = "version-{night - 1}"\n'
            self.run("version.toml", "work", "tables-0", version)
            full = f'[infer]\noutput = "full-{night}"\nmodel = "model"\n'
            self.run("full.toml", f"work-{night}", tables, full)
            same = map(np.array_equal, rows(self.dir / own), rows(self.dir / f"full-{night}"))
            assert all(same), f"chain {self.seed}, night {night}: the rows differ"
            manifest = json.loads((self.dir / own / "_manifest.json").read_text())
            written.append(manifest["version"]["upserts"])
        shutil.rmtree(self.dir)
        return written


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--program", default="graphflat")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--chains", type=int, default=90)
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="of versions")
    args = parser.parse_args()
    args.program = str(Path(shutil.which(args.program)).resolve())
    written = [count for seed in range(args.chains) for count in Chain(args, seed).check()]
    print(f"{len(written)} versions are equal to full runs; they wrote {sum(written)} rows")


if __name__ == "__main__":
    main()
