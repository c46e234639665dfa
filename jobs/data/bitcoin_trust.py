"""Writes the tables of jobs/bitcoin-trust.toml, made of the ratings of bitcoin-otc.

    python jobs/data/bitcoin_trust.py $GRAPHFLAT_DATA/bitcoin-otc $GRAPHFLAT_DATA/bitcoin-trust

The ratings are cut by time: the earlier four fifths are the edges, so the graph ends before the
labels begin. The label of a user is 1 if the mean of the ratings that the user gets in the latest
fifth is above 0, else 0. Users whom nobody rated in one of the two times have no label.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

EARLIER = 0.8


def mean_received(ratings, ids):
    """Returns the mean rating that each user gets; null without ratings."""
    means = ratings.group_by("dst").aggregate([("weight", "mean")])
    return means["weight_mean"].take(pc.index_in(ids, value_set=means["dst"]))


def main():
    source, target = (Path(folder) for folder in sys.argv[1:])
    ids = pq.read_table(source / "nodes.parquet")["id"]
    ratings = pq.read_table(source / "edges.parquet").sort_by("timestamp")
    earlier = ratings[: int(EARLIER * len(ratings))]
    later = mean_received(ratings[len(earlier) :], ids)
    is_known = pc.is_valid(mean_received(earlier, ids))
    label = pc.if_else(is_known, pc.greater(later, 0).cast(pa.int32()), None)
    target.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids, "label": label}), target / "nodes.parquet")
    pq.write_table(earlier.select(["src", "dst", "weight"]), target / "edges.parquet")


if __name__ == "__main__":
    main()
