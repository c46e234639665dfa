"""Runs six jobs with two builds of the program and compares their outputs.

    tests/compare_builds.py OLD NEW [--jobs NAME,...] [--keep DIR]

Graph features and weights must be the same bytes. `model.json` is compared without
`extra.columns`, which only newer programs write; embeddings, predictions and logits of one named
layer are compared column by column, bit by bit. The script needs Python with pyarrow. It runs both
programs on this machine, since the last bits of a model depend on the processor. The exit code is
the number of jobs that differ.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parent.parent

# By name of a job: arguments of `generate`, the tables [flatten], [train] and [infer], arguments of
# `run`.
GENERATED = {
    "gcn-rows": (
        "--classes 5",
        'hops = 2\nfanouts = ["all", 5]\nlayout = "rows"',
        'model = "gcn"\nhidden = [16]\nepochs = 3\ndropout = 0.3',
        "layer = 1\nlogits = true",
        "",
    ),
    "gat-weighted": (
        "--weights",
        'hops = 2\nfanouts = [6, 4]\nsampling = "weighted"',
        'model = "gat"\nhidden = [16]\nheads = 4\nout_heads = 2\nactivation = "elu"\nepochs = 2',
        "layer = 2\nprobabilities = true",
        "",
    ),
    "gin-top": (
        "--weights",
        'hops = 3\nfanouts = [4, 3, 2]\nsampling = "top"\nsamples_per_target = 2',
        'model = "gin"\nhidden = [16, 8]\nnorm = "batch"\nepochs = 2',
        'layer = 2\nsampling = "none"',
        "",
    ),
    "sage-streamed": (
        "--hubs 2 --hub-in-edges 9000",
        "hops = 2\nfanouts = [8, 4]",
        'model = "sage"\naggregator = "max"\nhidden = [16, 8]\nresidual = true\nnorm = "layer"\n'
        "streamed = true\nepochs = 2",
        "layer = 1\nlogits = true\ncompare_sampling = true",
        "",
    ),
    "gatv2-processes": (
        "",
        "hops = 2\nfanouts = [5, 5]",
        'model = "gatv2"\nhidden = [16]\nheads = 2\nworkers = 2\nepochs = 2',
        "layer = 1\nnormalize = true",
        "--processes 2 --workers 1",
    ),
}

INPUT = """name = "compared"
seed = 5
[input.nodes]
path = "data/nodes.parquet"
id = "id"
features = ["features"]
transform = "standardize"
label = "label"
split = "split"
[input.edges]
path = "data/edges.parquet"
src = "src"
dst = "dst"
"""


def run(program, args, cwd):
    done = subprocess.run([program, *args], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} {' '.join(args)} in {cwd}: exit code {done.returncode}\n{done.stderr}")


def generated(name, old, work):
    """Writes the tables and the job; both programs read them."""
    graph, flatten, train, infer, args = GENERATED[name]
    size = "--nodes 10000 --edges 60000 --features 12 --seed 3"
    run(old, ["generate", "data", *size.split(), *graph.split()], work)
    weight = 'weight = "weight"\n' if "--weights" in graph else ""
    output = "" if "streamed" in train else 'output = "out/features"\n'
    job = (
        f'{INPUT}{weight}[flatten]\n{output}{flatten}\n[train]\noutput = "out/model"\n{train}\n'
        f'[infer]\noutput = "out/embeddings"\n{infer}\n'
    )
    (work / "job.toml").write_text(job)
    return args.split()


def debian(work):
    job = (ROOT / "jobs/debian.toml").read_text()
    job = job.replace("epochs = 45", "epochs = 2").replace("out/debian/graphfeatures", "out/features")
    job = job.replace("out/debian/", "out/").replace('"jobs/data', f'"{ROOT}/jobs/data')
    (work / "job.toml").write_text(job.rstrip() + "\nlayer = 1\n")
    return []


def files(directory):
    """Returns the data files of an output, without the manifest, by path."""
    all_files = (path for path in directory.rglob("*") if path.is_file())
    named = {str(path.relative_to(directory)): path for path in all_files}
    return {
        name: path
        for name, path in sorted(named.items())
        if not any(part.startswith("_") for part in name.split("/")) and path.name != "manifest.json"
    }


def model_json(path):
    model = json.loads(path.read_text())
    model["extra"].pop("columns", None)
    return model


def same(name, old, new):
    """Returns whether two files have the same content, and how they were compared."""
    if name == "model.json":
        return model_json(old) == model_json(new), "but for extra.columns"
    if name.endswith(".parquet") and old.parent.name == "embeddings":
        return pq.read_table(old).equals(pq.read_table(new)), "by column"
    return old.read_bytes() == new.read_bytes(), "by byte"


def compare(name, programs, work):
    args = debian(work) if name == "debian" else generated(name, programs[0], work)
    for which, program in zip(("old", "new"), programs):
        run(program, ["run", "job.toml", "--quiet", *args], work)
        (work / "out").rename(work / which)
        subprocess.run(["rm", "-rf", work / "work"], check=True)
    found, is_same = [files(work / which) for which in ("old", "new")], True
    for path in sorted({*found[0], *found[1]}):
        if path in found[0] and path in found[1]:
            are_equal, how = same(path.split("/")[-1], found[0][path], found[1][path])
        else:
            are_equal, how = False, "only one program writes it"
        if not are_equal:
            is_same = False
            print(f"{name}: {path} differs ({how})")
    print(f"{name}: {'same' if is_same else 'DIFFERS'}, {len(found[0])} files")
    return is_same


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--jobs", default=",".join(["debian", *GENERATED]))
    parser.add_argument("--keep", type=pathlib.Path, help="a new directory for the outputs")
    args = parser.parse_args()
    programs = [str(args.old.resolve()), str(args.new.resolve())]
    with tempfile.TemporaryDirectory() as temporary:
        base = args.keep or pathlib.Path(temporary)
        differ = 0
        for name in args.jobs.split(","):
            (base / name).mkdir(parents=True)
            differ += not compare(name, programs, base / name)
    sys.exit(differ)


if __name__ == "__main__":
    main()
