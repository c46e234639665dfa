"""Checks pairs in layout `rows` against the input tables and against layout `shards`, by brute force.

Independent of the program: it reads Parquet files with pyarrow only.

    pair_rows.py NODES EDGES ROWS SHARDS FANOUT,FANOUT [undirected]

Ids are in the columns `id`, `src` and `dst`. Checked for each row: its ends and negatives are the
nodes of hop 0; nodes are by hop and then by id, at their distance from the ends; every in-edge is an
edge of the input that equals no pair; a node of hop h keeps as many in-edges as the fan-outs say, the
same ones in the same order in every row. The pairs and negatives of a part are those of the part of
the same name in layout `shards`.
"""

import glob
import os
import sys
from collections import Counter

import pyarrow.parquet as pq


def fail(message):
    sys.exit(f"FAIL: {message}")


def main():
    nodes, edges, rows, shards, fanouts = sys.argv[1:6]
    is_undirected = sys.argv[6:] == ["undirected"]
    fanouts = [float("inf") if of == "all" else int(of) for of in fanouts.split(",")]
    hops = len(fanouts)
    known = set(pq.read_table(nodes).column("id").to_pylist())
    table = pq.read_table(edges)
    ends = list(zip(table.column("src").to_pylist(), table.column("dst").to_pylist()))
    ends += [(dst, src) for src, dst in ends] if is_undirected else []

    files = sorted(glob.glob(f"{rows}/*.parquet"))
    parts = {os.path.basename(path): pq.read_table(path).to_pylist() for path in files}
    pairs = {
        (row["node_id"][row["src"]], row["node_id"][row["dst"]])
        for part in parts.values()
        for row in part
        if row["src"] is not None
    }
    in_edges = {}
    for src, dst in ends:
        if (src, dst) not in pairs and (dst, src) not in pairs:
            in_edges.setdefault(dst, Counter())[src] += 1

    kept, num_random, num_nodes = {}, 0, 0
    for name, part in parts.items():
        expected = of_shards(shards, name)
        found = []
        for row in part:
            what = f"{name}, row {len(found)}"
            ids, offset = row["node_id"], row["hop_offset"]
            if len(offset) != hops + 2 or offset[0] != 0 or offset[-1] != len(ids):
                fail(f"{what}: hop_offset {offset} of {len(ids)} nodes")
            roots = {row["dst"], *row.get("negatives", [])}
            roots |= {row["src"]} - {None}
            if roots != set(range(offset[1])):
                fail(f"{what}: hop 0 is {offset[1]} nodes, the ends are {roots}")
            if len(set(ids)) != len(ids) or not known.issuperset(ids):
                fail(f"{what}: a node stands twice or is unknown")
            hop_of = []
            for hop in range(hops + 1):
                own = ids[offset[hop] : offset[hop + 1]]
                if own != sorted(own):
                    fail(f"{what}: hop {hop} is not sorted")
                hop_of += [hop] * len(own)
            reached = set(roots)
            if len(row["in_offset"]) != offset[hops] + 1:
                fail(f"{what}: in_offset")
            for at in range(offset[hops]):
                own = row["in_src"][row["in_offset"][at] : row["in_offset"][at + 1]]
                sources = [ids[src] for src in own]
                all_of = in_edges.get(ids[at], Counter())
                if row["in_degree"][at] != sum(all_of.values()):
                    fail(f"{what}: in_degree of {ids[at]}")
                if len(own) != min(sum(all_of.values()), max(fanouts[hop_of[at] :])):
                    fail(f"{what}: node {ids[at]} of hop {hop_of[at]} keeps {len(own)}")
                if Counter(sources) - all_of:
                    fail(f"{what}: an edge to {ids[at]} is none of the input, or a pair")
                longer, shorter = sorted([kept.get(ids[at], []), sources], key=len, reverse=True)
                if longer[: len(shorter)] != shorter:
                    fail(f"{what}: node {ids[at]} keeps other in-edges than elsewhere")
                kept[ids[at]] = longer
                for src in own:
                    if hop_of[src] > hop_of[at] + 1:
                        fail(f"{what}: an edge from hop {hop_of[src]} to {hop_of[at]}")
                    if hop_of[src] == hop_of[at] + 1:
                        reached.add(src)
            if len(reached) != len(ids):
                fail(f"{what}: a node is not reached at its hop")
            num_random += row["src"] is None
            num_nodes += len(ids)
            found.append(named(row, ids))
        if found != expected:
            fail(f"{name}: the pairs are not those of layout `shards`")
    print(sum(map(len, parts.values())), num_random, num_nodes)


def named(row, ids):
    """A pair with ids in place of positions."""
    own = {}
    for key in ("src", "dst"):
        own[key] = None if row[key] is None else ids[row[key]]
    for key in ("label", "weight", "split"):
        own[key] = row.get(key)
    own["negatives"] = [ids[at] for at in row.get("negatives", [])]
    return own


def of_shards(shards, name):
    ids = pq.read_table(f"{shards}/nodes/{name}").column("id").to_pylist()
    rows = pq.read_table(f"{shards}/pairs/{name}").to_pylist()
    return [named(row, ids) for row in rows]


main()
