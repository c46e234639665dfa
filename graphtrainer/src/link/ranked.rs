//! The ranking of pairs among all nodes of their part.

use std::ops::Range;
use std::sync::Arc;

use schemas::{Ids, PairsMeta, Split};

use super::{SharedTargets, exists, narrow};
use crate::TrainError;
use crate::ranking::Query;
use crate::source::Source;

/// The targets of a part as rows of a model's output, by which its pairs are ranked.
#[derive(Debug)]
pub(crate) struct RankedPart {
    targets: Arc<SharedTargets>,
    /// Types of src and dst ends.
    ends: (usize, usize),
    /// By type: the row of the first target.
    first: Vec<u32>,
}

/// Src and dst row of each of some links, ascending and distinct.
pub(crate) type RowLinks = Vec<(u32, u32)>;

/// Links of some splits, by the ids of their ends.
#[derive(Debug)]
pub(crate) struct KnownLinks {
    src: Ids,
    dst: Ids,
}

impl KnownLinks {
    /// Collects the links of the splits before one, of all parts.
    pub(crate) fn before(
        split: Split,
        source: &Source,
        meta: &PairsMeta,
    ) -> Result<Self, TrainError> {
        let id_type = |of: usize| source.graph.types[of].id_type;
        let (mut src, mut dst) = (Ids::new(id_type(meta.from)), Ids::new(id_type(meta.to)));
        let before: &[Split] = match split {
            Split::Train | Split::None => &[],
            Split::Val => &[Split::Train],
            Split::Test => &[Split::Train, Split::Val],
        };
        for &known in before {
            let counts = source.counts_of(known).into_iter().enumerate();
            for (part, _) in counts.filter(|(_, count)| *count > 0) {
                let part = source.part(source.key(part, None))?;
                let (pairs, nodes) = (part.pairs(), &part.shard.nodes);
                let links = part.targets(known).iter().map(|&pair| pair as usize);
                for pair in links.filter(|&pair| exists(pairs, pair)) {
                    src.push_from(&nodes[meta.from].ids, pairs.src[pair].index());
                    dst.push_from(&nodes[meta.to].ids, pairs.dst[pair].index());
                }
            }
        }
        Ok(Self { src, dst })
    }
}

impl RankedPart {
    /// Makes it of the targets, the types of src and dst ends, and the first row of each type.
    pub(super) fn new(targets: &Arc<SharedTargets>, ends: (usize, usize), first: Vec<u32>) -> Self {
        Self {
            targets: Arc::clone(targets),
            ends,
            first,
        }
    }

    /// Returns the rows of the candidates: all targets of the type of dst ends.
    pub(crate) fn items(&self) -> Range<usize> {
        let to = self.ends.1;
        let first = self.first[to] as usize;
        first..first + self.targets.rows.roots[to].len()
    }

    /// Returns the links whose ends are targets of the part.
    pub(crate) fn rows_of(&self, links: &KnownLinks) -> RowLinks {
        let (from, to) = self.ends;
        let row = |of: usize, ids: &Ids, at: usize| {
            let target = self.targets.rows.index[of].find(ids, at)?;
            Some(self.first[of] + narrow(target))
        };
        let of_part = (0..links.src.len()).filter_map(|at| {
            let src = row(from, &links.src, at)?;
            Some((src, row(to, &links.dst, at)?))
        });
        let mut rows: RowLinks = of_part.collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Makes the queries of some links of the part. Known links are no candidates.
    pub(crate) fn queries(&self, mut links: RowLinks, known: &RowLinks) -> Vec<Query> {
        let first = self.first[self.ends.1];
        links.sort_unstable();
        links.dedup();
        let item = |&(_, dst): &(u32, u32)| dst - first;
        let of_src = links.chunk_by(|a, b| a.0 == b.0);
        let queries = of_src.map(|own| {
            let row = own[0].0;
            let wanted: Vec<u32> = own.iter().map(item).collect();
            let start = known.partition_point(|&(src, _)| src < row);
            let of_row = known[start..].iter().take_while(|&&(src, _)| src == row);
            let of_row = of_row.map(item);
            // A link of this split is wanted, even if it is also one of an earlier split.
            let others = of_row.filter(|other| wanted.binary_search(other).is_err());
            Query {
                row,
                known: others.collect(),
                wanted,
            }
        });
        queries.collect()
    }
}
