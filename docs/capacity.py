"""Predicts bytes and seconds of each round of a graphflat job; capacity.md explains the model."""

import argparse
import json
from dataclasses import dataclass

import numpy as np

EDGE_WIRE = 8  # an edge sent to its owner: node, source
HASH_WIRE = 8  # the hash of an edge; the owner computes it if the ids of both ends have no gaps
ROW_WIRE = 16  # a node's row without features and label: id, in-degree, split
ROW_REPORT = 17  # the report counts: id, in-degree, label, a byte of the split
BATCH_ROWS = 1 << 16  # edge rows of a batch
HUB_BUCKETS, BUCKET_NODES, BUCKETS_MAX = 64, 1 << 11, 512
PARTS_COUNTED = 64  # parts computed by degrees, at equal distances
EDGES_WALKED = 4e8  # edges visited by edges, or those of twelve parts
STRETCHES = 256  # pieces of the order of targets, for few parts of `rows`
PART_ROWS = 1 << 14  # edge rows that one worker reads at least
MESSAGE_WIRE = 550  # bytes for each part, worker and other process: progress, headers; measured
CPU_NS = {  # nanoseconds, measured: see capacity.md
    "node": 67.0, "row_byte": 2.1, "edge": 79.0, "in_edge": 50.0, "crossing_byte": 4.5,
    "written_byte": {"shards": 3.1, "rows": 1.6},
}


HUB_EDGES = 8192  # in-edges above which a node is a hub of inference
ROWS = "rows"


@dataclass
class Graph:
    """Groups of nodes with the same degrees, or single nodes with the edges between them.

    `kept[f]` is how many of a node's out-edges are among the first f in-edges of their destinations
    (few if these are hubs). `kept[ROWS]` does not count out-edges to hubs of inference. Without `src`
    and `dst`, ids are independent of degrees, and edges of each other.
    """

    count: np.ndarray
    inn: np.ndarray
    out: np.ndarray
    kept: dict
    src: np.ndarray | None = None
    dst: np.ndarray | None = None

    @property
    def nodes(self) -> float:
        return float(self.count.sum())

    def slots(self, limit: float) -> float:
        """Returns the number of in-edges of all nodes, at most `limit` of each."""
        return float((self.count * np.minimum(limit, self.inn)).sum())

    @staticmethod
    def of_table(o: argparse.Namespace) -> "Graph":
        """Reads an edge table; nodes without edges are counted too."""
        import pyarrow.parquet as pq

        table = pq.read_table(o.edges, columns=[o.src, o.dst])
        ends = [table.column(name).to_numpy() for name in (o.src, o.dst)]
        ids, number = np.unique(np.concatenate(ends), return_inverse=True)
        src, dst = np.split(number, 2)
        if o.undirected:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        num = max(int(o.nodes), len(ids))
        inn, out = (np.bincount(n, minlength=num).astype(float) for n in (dst, src))
        kept = {f: np.bincount(src, np.minimum(f / inn[dst], 1), num) for f in limits(o.fanouts)}
        widest = max(o.fanouts)
        kept[ROWS] = np.bincount(src, np.where(is_hub(inn, widest)[dst], 0, np.minimum(widest / inn[dst], 1)), num)
        if o.by == "edges":
            return Graph(np.ones(num), inn, out, kept, src, dst)
        columns = np.stack([inn, out, *kept.values()])
        # Groups nodes whose degrees differ by at most 5 %.
        like = np.unique(np.round(np.log1p(columns) * 20).astype(np.int64), axis=1, return_inverse=True)[1].ravel()
        count = np.bincount(like).astype(float)
        means = [np.bincount(like, column) / count for column in columns]
        return Graph(count, means[0], means[1], dict(zip(kept, means[2:])))

    @staticmethod
    def power_law(o: argparse.Namespace) -> "Graph":
        """P(degree > x) ~ x^(1 - exponent) with the given mean; a node's in- and out-degree are equal."""
        tails = np.geomspace(1.0, 1.0 / o.nodes, 80 if o.independent else 400)
        share = -np.diff(np.append(tails, 0.0))
        degree = np.append(np.sqrt(tails[:-1] * tails[1:]), tails[-1]) ** (-1.0 / (o.exponent - 1.0))
        degree *= o.num_edges / o.nodes / (share * degree).sum()
        if not o.independent:
            return Graph.of_degrees(o.nodes * share, degree, degree, o.fanouts)
        inn, out = (x.ravel() for x in np.meshgrid(degree, degree))
        return Graph.of_degrees(o.nodes * np.outer(share, share).ravel(), inn, out, o.fanouts)

    @staticmethod
    def of_degrees(count: np.ndarray, inn: np.ndarray, out: np.ndarray, fanouts: list) -> "Graph":
        """Keeps the same share of each node's out-edges."""
        share = lambda slots: (count * slots).sum() / (count * inn).sum()
        kept = {f: out * share(np.minimum(f, inn)) for f in limits(fanouts)}
        kept[ROWS] = out * share(np.where(is_hub(inn, max(fanouts)), 0, np.minimum(max(fanouts), inn)))
        return Graph(count, inn, out, kept)


def is_hub(inn: np.ndarray, keep: float) -> np.ndarray:
    """Returns the nodes whose in-edges inference aggregates in segments, which send states."""
    return (inn > HUB_EDGES) & (inn <= keep)


def segments(inn: np.ndarray) -> np.ndarray:
    """Returns the number of segments of a hub."""
    return 240 * 2 ** np.clip(np.floor(np.log2(np.maximum(inn / 7680, 1))), 0, 4)


def limits(fanouts: list) -> list:
    """Returns how many in-edges a node keeps at each distance."""
    return [max(fanouts[hop:]) for hop in range(len(fanouts))]


def first_sources(graph: Graph, left: float) -> float:
    """Returns the position t in 0..1 for which a share `left` of the nodes has no source before t."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        more = (graph.count * (1 - middle) ** graph.inn).sum() > left * graph.nodes
        low, high = (middle, high) if more else (low, middle)
    return high


def part(graph: Graph, share: float, span: tuple, size: float, fanouts: list) -> list:
    """Returns requested nodes and answered in-edges of each round of a part, and then all its nodes.

    The part's targets are a `share` of the nodes whose first source lies in `span`, an interval [a, b)
    of all out-edges in the order of ids; the source of each in-edge is drawn in proportion to `kept`.
    """
    count, inn, (a, b) = graph.count, graph.inn, span
    chosen = np.where(inn > 0, ((1 - a) ** inn - (1 - b) ** inn) * share, 0)
    alone = (count * (inn == 0)).sum()
    chosen[inn == 0] = max(size - (count * chosen).sum(), 0) / max(alone, 1)
    others, widest = np.maximum(inn - 1, 0), max(fanouts)
    first = count * np.minimum(widest, inn) * share / graph.slots(widest)
    inside = (first * (1 - a) ** others).sum()
    behind = inside - (first * (1 - b) ** others).sum()
    width = np.array([[a], [b - a], [1 - b]])  # of sources before, in and after the span
    sent_first = np.array([[0.0], [inside], [behind]])
    frontier, unseen, reached, rounds = count * chosen, 1 - chosen, np.ones((3, 1)), []
    total = size
    for hop, limit in enumerate(limits(fanouts)):
        edges = (frontier * np.minimum(limit, inn)).sum()
        rounds.append((frontier.sum(), edges))
        sent = sent_first if hop == 0 else edges / graph.slots(limit)
        kept = graph.kept[limit] / np.maximum(graph.out, 1e-12)
        still = reached * (1 - np.minimum(sent * kept, 1)) ** graph.out
        frontier = count * unseen * (width * (reached - still)).sum(axis=0)
        reached = still
        total += frontier.sum()
    return [*rounds, (total, 0.0)]


def walk(graph: Graph, targets: np.ndarray, fanouts: list) -> list:
    """As `part`, from the edges, as if nodes were requested independently."""
    met = np.zeros(len(graph.inn))
    met[targets] = 1
    unseen, rounds, total = 1 - met, [], float(len(targets))
    for limit in limits(fanouts):
        keep = np.minimum(limit, graph.inn)
        rounds.append((met.sum(), (met * keep).sum()))
        chance = (met * keep / np.maximum(graph.inn, 1))[graph.dst]
        missed = np.exp(np.bincount(graph.src, np.log1p(-np.minimum(chance, 1 - 1e-15)), len(met)))
        met, unseen = unseen * (1 - missed), unseen * missed
        total += met.sum()
    return [*rounds, (total, 0.0)]


def deal(order: np.ndarray, per_part: int, rounds: int) -> list:
    """Returns the targets of each part: parts take stretches of the order in turn, forth and back."""
    ends = np.minimum(np.arange(0, len(order) + per_part, per_part), len(order))
    sizes, dealt, at = np.diff(ends), [[] for _ in ends[1:]], 0
    for r in range(rounds):
        turns = range(len(sizes)) if r % 2 == 0 else reversed(range(len(sizes)))
        for p in turns:
            size = sizes[p] * (r + 1) // rounds - sizes[p] * r // rounds
            dealt[p].append(order[at : at + size])
            at += size
    return [np.concatenate(stretches) for stretches in dealt]


def parts(graph: Graph, targets: float, per_part: float, fanouts: list, layout: str) -> tuple:
    """Returns the number of parts, some of the parts, and the result of `part` or `walk` for these."""
    num = int(np.ceil(targets / per_part))
    rounds = STRETCHES // num if layout == "rows" else 1
    if layout == "rows":
        per_part = np.ceil(targets / num)
    most = PARTS_COUNTED if graph.src is None else max(12, int(EDGES_WALKED / len(graph.src)))
    # The middles of equal stretches.
    places = np.unique(((np.arange(min(num, most)) + 0.5) * num / min(num, most)).astype(int))
    if graph.src is None and rounds > 1:
        # The targets of each part are a random sample of all targets.
        places, size = np.zeros(1, int), targets / num
        found = [part(graph, size / graph.nodes, (0.0, 1.0), size, fanouts)]
    elif graph.src is None:
        cut = lambda p: first_sources(graph, max(1 - p * per_part / targets, 0.0)) if p else 0.0
        share, size = targets / graph.nodes, lambda p: min(per_part, targets - p * per_part)
        found = [part(graph, share, (cut(p), cut(p + 1)), size(p), fanouts) for p in places]
    else:
        first = np.full(len(graph.inn), len(graph.inn))
        np.minimum.at(first, graph.dst, graph.src)
        drawn = np.random.default_rng(0).permutation(len(first))[: int(targets)]
        order = drawn[np.lexsort((drawn, first[drawn]))]
        dealt = deal(order, int(per_part), max(rounds, 1))
        found = [walk(graph, dealt[p], fanouts) for p in places]
    return num, places, np.array(found)


def spread(values: np.ndarray, places: np.ndarray, num: int, workers: int) -> float:
    """Returns the most that a worker writes, divided by the mean; worker p % workers writes part p."""
    each = np.interp(np.arange(num), places, values) if num <= 1 << 22 else np.ones(1)
    sums = np.bincount(np.arange(len(each)) % workers, each, workers)
    return float(sums.max() / sums.mean()) if num <= 1 << 22 else 1.0


def model(graph: Graph, o: argparse.Namespace) -> dict:
    """Computes all rounds: `total` bytes as in the report, `crossing` bytes between processes."""
    n, e, workers = graph.nodes, graph.slots(np.inf), o.processes * o.workers
    remote, row, weight, label = 1 - 1 / o.processes, 4 * o.features, 4 * o.weights, 4 * (not o.no_labels)
    targets = o.targets or n
    num, places, of_parts = parts(graph, targets, o.targets_per_part, o.fanouts, o.layout)
    mean = of_parts.mean(axis=0) if num > len(places) else of_parts.sum(axis=0) / num
    ns, rounds = CPU_NS, []

    def add(name: str, nodes: float, edges: float, total: float, crossing: float, cpu: float, disk: float, most=1.0):
        wire, hosts = crossing * remote, o.processes
        seconds = {
            "cpu": (cpu + wire * ns["crossing_byte"]) * 1e-9 / workers * most,
            "network": wire / hosts / (o.network * 1e9),
            "disk": disk * most / hosts / (o.disk * 1e9),
        }
        rounds.append({"name": name, "nodes": nodes, "in_edges": edges, "bytes": total, "crossing": wire,
                       "disk": disk, "worker_max": total / workers * most, "max_over_mean": most, **seconds})

    # Ids are read first, then whole rows. Ids without gaps are sent as bits, each to one worker; of
    # others, words of 64 ids are sent to every worker.
    words = 0.0 if o.ids_without_gaps else 16 * n / 64
    numbers = n / 8 * workers if o.ids_without_gaps else (8 + 8 + 4) * n + words * workers
    add("numbering", n, 0, numbers, numbers, ns["node"] * n, 8 * n)
    rows = (ROW_WIRE + label + row) * n
    kept_rows = (9 + label + row) * n
    add("node rows", n, 0, rows, rows, ns["row_byte"] * rows, rows + kept_rows)
    local = n / workers
    bucket = 2 ** np.ceil(np.log2(max(local / BUCKETS_MAX, BUCKET_NODES)))
    ends = 4 * (np.ceil(local / bucket) + HUB_BUCKETS) * workers * np.ceil(e / BATCH_ROWS)
    # In-edges that a hub received before it was detected are sent twice.
    known = o.hub_threshold * min(np.ceil(e / PART_ROWS) / workers, 1)
    forwarded = known * graph.count[graph.inn > known].sum()
    hashed = HASH_WIRE * (not o.ids_without_gaps)
    moved = (EDGE_WIRE + hashed + weight + 4 * o.edge_features) * (e + forwarded) + ends
    kept = graph.slots(max(o.fanouts))
    stored = (12 + 8 + 8 * (weight > 0) + 8 * o.weights) * n + (4 + weight + 4 * o.edge_features) * kept
    # Edges that do not fit a worker's share of the memory are written to disk and read again.
    spilled = moved if moved / o.processes > 0.45 * o.memory * 1e9 else 0.0
    add("edges", n, e, moved, moved, ns["edge"] * e, 16 * e + 2 * spilled + stored)
    messages = MESSAGE_WIRE * num * workers * o.processes  # a share of 1 - 1 / P of it crosses
    order = 8 * targets * workers
    add("target order", targets, 0, order, order, 0.0, 0.0)
    for hop in range(len(o.fanouts)):
        nodes, edges = mean[hop] * num
        answered = 8 * nodes + (4 + weight + 4 * o.edge_features) * edges
        add(f"round {hop + 1}", nodes, edges, answered, answered + 4 * nodes, ns["in_edge"] * edges, answered)
    nodes, edges = mean[-1][0] * num, sum(r[1] for r in mean) * num
    loops = 4 * o.self_loops * (1 + o.weights)
    wire = (4 + 4 + ROW_WIRE + label + row + weight + loops) * nodes  # the number is in the request and in the answer
    add("features", nodes, 0, (ROW_REPORT + row) * nodes, wire + messages, 0.0, row * nodes)
    sizes = of_parts[:, -1, 0] * (o.disk_features + o.disk_node)
    sizes += of_parts[:, :, 1].sum(axis=1) * (o.disk_edge + weight)
    if o.layout == "shards":
        written = (o.disk_features + o.disk_node) * nodes + (o.disk_edge + weight) * edges
    else:
        alone = part(graph, 1 / n, (0.0, 1.0), 1.0, o.fanouts)
        sizes = of_parts[:, 0, 0] + of_parts[:, 0, 1] * (alone[-1][0] - 1) / alone[0][1]
        written = targets * ((o.disk_features + 9) * alone[-1][0] + (1 + weight) * sum(r[1] for r in alone))
    add("write", nodes, edges, written, 0.0, ns["written_byte"][o.layout] * written, written,
        spread(sizes, places, num, workers))
    slots = 2 ** np.ceil(np.log2(max(min(n, 16 * e * workers / o.hub_threshold), 2)))
    memory = {
        "hub counts": 4 * slots * o.workers,
        "ids of edges": 2 * words * o.workers,
        "target order": 16 * targets * o.workers + 4 * targets,
        "budget": o.memory * 1e9,
    }
    return {"nodes": n, "edges": e, "parts": num, "rounds": rounds, "infer": infer(graph, o, remote),
            "store_bytes_host": (kept_rows + stored) / o.processes, "memory_host": memory}


def infer(graph: Graph, o: argparse.Namespace, remote: float) -> list:
    """Computes the bytes of inference in several processes: each remote row is sent once a round to each
    process, and one state for each segment of a hub."""
    p, rounds = o.processes, []
    chance = np.minimum(graph.kept[ROWS] / np.maximum(graph.out, 1e-12), 1) / p
    needed = p * remote * (graph.count * (1 - (1 - chance) ** graph.out)).sum()
    hubs = is_hub(graph.inn, max(o.fanouts))
    states = (graph.count[hubs] * segments(graph.inn[hubs])).sum() * remote
    for layer, width in enumerate([o.features, *o.hidden[:-1]], 1):
        crossing = 4 * width * (needed + states)
        rounds.append({"round": layer, "rows": needed, "states": states, "crossing": crossing})
    rounds.insert(0, {"round": 0, "rows": needed, "crossing": (4 + 4) * needed})
    written = graph.nodes * remote
    rounds.append({"round": len(rounds), "rows": written, "crossing": 4 * o.hidden[-1] * written})
    return rounds


def fanouts(text: str) -> list:
    return [np.inf if one == "all" else float(one) for one in text.split(",")]


def arguments() -> argparse.Namespace:
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--edges", help="edge table (Parquet, integer ids)")
    a.add_argument("--by", choices=["degrees", "edges"], default="degrees", help="use only degrees of the edge table, or its edges")
    a.add_argument("--src", default="src")
    a.add_argument("--dst", default="dst")
    a.add_argument("--undirected", action="store_true")
    a.add_argument("--nodes", type=float, required=True, help="number of nodes, also those without edges")
    a.add_argument("--ids-without-gaps", action="store_true", help="ids are integers, each one more than the last")
    a.add_argument("--histogram", help="file with lines: number of nodes, in-degree, out-degree")
    a.add_argument("--num-edges", type=float, help="edges of a power law")
    a.add_argument("--exponent", type=float, default=2.5, help="of a power law")
    a.add_argument("--independent", action="store_true", help="in- and out-degrees are independent")
    a.add_argument("--fanouts", type=fanouts, required=True, help="hop 1 first, such as 15,10")
    a.add_argument("--targets", type=float, help="number of targets (default: all nodes)")
    a.add_argument("--targets-per-part", type=float, help="default: as the program")
    a.add_argument("--layout", choices=["shards", "rows"], default="shards")
    a.add_argument("--features", type=int, default=0, help="dense features of a node")
    a.add_argument("--edge-features", type=int, default=0)
    a.add_argument("--weights", action="store_true", help="edges have weights")
    a.add_argument("--self-loops", action="store_true", help="some node has an edge to itself")
    a.add_argument("--no-labels", action="store_true")
    a.add_argument("--hidden", type=lambda s: [int(w) for w in s.split(",")], default=[64, 64], help="widths of layers")
    a.add_argument("--processes", type=int, default=1)
    a.add_argument("--workers", type=int, default=1, help="workers of a process")
    a.add_argument("--memory", type=float, default=2.147, help="GB of a process: memory_budget")
    a.add_argument("--hub-threshold", type=float, default=10_000)
    a.add_argument("--network", type=float, default=1.25, help="GB/s of a host, each way")
    a.add_argument("--disk", type=float, default=1.0, help="GB/s of a host")
    a.add_argument("--disk-features", type=float, help="compressed bytes of a node's features (default: 4 each)")
    a.add_argument("--disk-node", type=float, default=8.0, help="compressed bytes of the rest of a node")
    a.add_argument("--disk-edge", type=float, default=3.0, help="compressed bytes of an edge")
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    o.disk_features = 4 * o.features if o.disk_features is None else o.disk_features
    targets, most = o.targets or o.nodes, max(262_144 * 64 // max(o.features, 64), 8192)
    default = 4096 if o.layout == "rows" else min(max(np.ceil(targets / 4), 8192), most)
    o.targets_per_part = o.targets_per_part or default
    return o


def main() -> None:
    o = arguments()
    if o.edges:
        graph = Graph.of_table(o)
    elif o.histogram:
        graph = Graph.of_degrees(*np.loadtxt(o.histogram, delimiter=",", ndmin=2).T, o.fanouts)
    else:
        graph = Graph.power_law(o)
    result = model(graph, o)
    if o.json:
        print(json.dumps(result))
        return
    print(f"{result['nodes']:.4g} nodes, {result['edges']:.4g} edges, {result['parts']} parts; bytes of all")
    names = [f"{name:>10}" for name in ("nodes", "in-edges", "bytes", "a worker", "crossing")]
    print(f"{'round':14}{''.join(names)}{'cpu s':>9}{'net s':>9}{'disk s':>9}")
    for r in result["rounds"]:
        figures = "".join(f"{r[k]:10.3g}" for k in ("nodes", "in_edges", "bytes", "worker_max", "crossing"))
        print(f"{r['name']:14}{figures}" + "".join(f"{r[k]:9.3g}" for k in ("cpu", "network", "disk")))
    total = sum(r["cpu"] + r["network"] + r["disk"] for r in result["rounds"])
    print(f"one after the other: {total:.3g} s; store of a host: {result['store_bytes_host']:.3g} bytes")
    print("memory of a host: " + ", ".join(f"{k} {v:.3g}" for k, v in result["memory_host"].items()))
    for r in result["infer"]:
        print(f"infer round {r['round']}: {r['rows']:.3g} rows, {r['crossing']:.3g} bytes cross")


if __name__ == "__main__":
    main()
