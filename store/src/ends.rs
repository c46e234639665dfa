//! Turns the ids of edge ends into node numbers.

use crate::StoreError;
use crate::edge_hash::EdgeHasher;
use crate::id_table::IdTable;
use crate::number::{Dictionary, IdRange, MISSING, RunIds};
use crate::sample::relation_salt;
use crate::units::OwnUnits;
use cluster::Peer;
use schemas::{EdgeRows, EdgeSource, GraphPlan, Ids, NodeIdx, PairsPlan, RelationPlan};
use serde::{Deserialize, Serialize};

/// Looks up ends of edges on one worker.
pub(crate) struct Ends {
    types: Vec<TypeEnds>,
}

/// Numbers and hashes of the ends of some edges.
#[derive(Default)]
pub(crate) struct Resolved {
    pub(crate) src: End,
    pub(crate) dst: End,
}

/// One end of some edges.
#[derive(Debug, Default)]
pub struct End {
    /// [`MISSING`] where no node has the id.
    pub numbers: Vec<NodeIdx>,
    /// Hashes of the ids. Empty where they follow from the numbers.
    pub hashes: Vec<u64>,
}

/// Finds nodes by their ids.
pub trait FindNodes {
    /// Replaces `out` by the numbers of some ids of a type, [`MISSING`] where no node has the id, and
    /// by the hashes of the ids.
    fn look_up(&self, type_idx: usize, ids: &Ids, out: &mut End);
}

/// Looks up ends of edges that are nodes of one type.
enum TypeEnds {
    /// Integer ids without gaps.
    Run(RunIds),
    /// Integer ids that lie close together: every worker has a bitmap of all ids.
    Dense(DenseIds),
    /// Any other ids: the distinct ones that this worker read. Each was looked up once, at the
    /// worker of its range.
    Distinct {
        /// The ids, each with its position.
        table: IdTable,
        /// The node number of each position.
        numbers: Vec<NodeIdx>,
    },
}

/// How the ends of a type are looked up, before edges are read.
enum Known {
    Ends(TypeEnds),
    /// The ids are asked for at the worker of their range.
    Range(IdRange),
}

/// All ids of a type as a bitmap in which the bits are counted.
struct DenseIds {
    first_key: u64,
    /// 64 ids a word, and the number of the first node in the word.
    words: Vec<(u64, u32)>,
}

/// The keys of one worker's range of ids.
#[derive(Clone, Serialize, Deserialize)]
struct KeyRange {
    /// Least and greatest key; `None` if the range has no node.
    bounds: Option<(u64, u64)>,
    count: u64,
}

impl DenseIds {
    /// Makes the bitmap of all workers' ids; none if they are strings or the bitmap would take more
    /// than 16 bytes a node. `first` is the number of the type's first node.
    ///
    /// # Errors
    ///
    /// If a peer fails.
    fn gather(peer: &mut Peer<'_>, ids: &Ids, first: NodeIdx) -> Result<Option<Self>, StoreError> {
        let Some(keys) = ids.keys() else {
            return Ok(None);
        };
        let bounds = keys.first().copied().zip(keys.last().copied());
        let count = keys.len() as u64;
        let ranges = peer.gather_all::<_, StoreError>(Ok(KeyRange { bounds, count }))?;
        let num_nodes: u64 = ranges.iter().map(|r| r.count).sum();
        let least = ranges.iter().filter_map(|r| Some(r.bounds?.0)).min();
        let greatest = ranges.iter().filter_map(|r| Some(r.bounds?.1)).max();
        let Some((first_key, last_key)) = least.zip(greatest) else {
            return Ok(None);
        };
        let num_words = (last_key - first_key) / 64 + 1;
        if num_words > num_nodes.max(64) {
            return Ok(None);
        }
        let mut mine: Vec<(u64, u64)> = Vec::new();
        for key in keys {
            let (word, bit) = ((key - first_key) / 64, 1 << ((key - first_key) % 64));
            match mine.last_mut() {
                Some((last, bits)) if *last == word => *bits |= bit,
                _ => mine.push((word, bit)),
            }
        }
        let num_words = usize::try_from(num_words).expect("no more than nodes");
        let mut words = vec![(0u64, 0); num_words];
        for (word, bits) in peer.gather_all::<_, StoreError>(Ok(mine))?.concat() {
            words[usize::try_from(word).expect("below num_words")].0 |= bits;
        }
        let mut number = first.raw();
        for (bits, before) in &mut words {
            *before = number;
            number += bits.count_ones();
        }
        Ok(Some(Self { first_key, words }))
    }

    fn number(&self, key: u64) -> NodeIdx {
        let at = key.wrapping_sub(self.first_key);
        let Some((bits, before)) = usize::try_from(at / 64)
            .ok()
            .and_then(|word| self.words.get(word))
        else {
            return MISSING;
        };
        let bit = 1u64 << (at % 64);
        if bits & bit == 0 {
            return MISSING;
        }
        NodeIdx::from_raw(before + (bits & (bit - 1)).count_ones())
    }
}

impl Known {
    fn of(peer: &mut Peer<'_>, dictionary: Dictionary, first: NodeIdx) -> Result<Self, StoreError> {
        let range = match dictionary {
            Dictionary::Run(run) => return Ok(Self::Ends(TypeEnds::Run(run))),
            Dictionary::Range(range) => range,
        };
        Ok(match DenseIds::gather(peer, range.ids(), first)? {
            Some(dense) => Self::Ends(TypeEnds::Dense(dense)),
            None => Self::Range(range),
        })
    }
}

impl Ends {
    /// Prepares the lookup of the ends in the rows that this worker reads. `dictionaries` has one
    /// entry for each type, and `first` the number of its first node.
    ///
    /// # Errors
    ///
    /// If a table cannot be read, or a peer fails.
    pub(crate) fn gather(
        peer: &mut Peer<'_>,
        graph: &GraphPlan,
        sources: &[EdgeSource],
        work: OwnUnits,
        dictionaries: Vec<Dictionary>,
        first: impl Fn(usize) -> NodeIdx,
    ) -> Result<Self, StoreError> {
        let mut known = Vec::with_capacity(dictionaries.len());
        for (type_idx, dictionary) in dictionaries.into_iter().enumerate() {
            known.push(Known::of(peer, dictionary, first(type_idx))?);
        }
        let tables = known.iter().map(|of| match of {
            Known::Ends(_) => None,
            Known::Range(range) => Some(IdTable::new(range.ids())),
        });
        let tables = gather_distinct(graph, sources, work, tables.collect());
        let tables = peer.agree(tables)?;
        let mut types = Vec::with_capacity(known.len());
        for (of, table) in known.into_iter().zip(tables) {
            types.push(match of {
                Known::Ends(ends) => ends,
                Known::Range(range) => {
                    let table = table.expect("made where ids are not dense");
                    let numbers = range.resolve(peer, table.ids())?;
                    TypeEnds::Distinct { table, numbers }
                }
            });
        }
        Ok(Self { types })
    }

    /// Looks up both ends of some rows of a table, one of whose relations is `relation`. Hashes
    /// are left out where [`Ends::hasher`] gives them.
    pub(crate) fn resolve(&self, relation: &RelationPlan, rows: &EdgeRows, out: &mut Resolved) {
        let (src, dst) = table_ends(relation);
        let is_hashed = self.hasher(relation).is_none();
        self.types[src].resolve(&rows.src, is_hashed, &mut out.src);
        self.types[dst].resolve(&rows.dst, is_hashed, &mut out.dst);
    }

    /// Returns the hashes of a relation's edges, if they follow from the numbers of the ends.
    pub(crate) fn hasher(&self, relation: &RelationPlan) -> Option<EdgeHasher> {
        match (&self.types[relation.from], &self.types[relation.to]) {
            (TypeEnds::Run(src), TypeEnds::Run(dst)) => Some(EdgeHasher {
                salt: relation_salt(&relation.name),
                src: src.ids(),
                dst: dst.ids(),
            }),
            _ => None,
        }
    }
}

impl FindNodes for Ends {
    fn look_up(&self, type_idx: usize, ids: &Ids, out: &mut End) {
        self.types[type_idx].resolve(ids, true, out);
    }
}

impl TypeEnds {
    fn resolve(&self, ids: &Ids, is_hashed: bool, out: &mut End) {
        out.numbers.clear();
        out.hashes.clear();
        let keys = || {
            ids.keys()
                .expect("edges have ids of the nodes' type")
                .iter()
        };
        match self {
            Self::Run(run) => {
                out.numbers.extend(keys().map(|&key| run.number(key)));
                if is_hashed {
                    ids.hashes_into(&mut out.hashes);
                }
            }
            Self::Dense(dense) => {
                out.numbers.extend(keys().map(|&key| dense.number(key)));
                ids.hashes_into(&mut out.hashes);
            }
            Self::Distinct {
                table,
                numbers: known,
            } => {
                let out = (&mut out.numbers, &mut out.hashes);
                table.look_up(ids, (known, MISSING), out);
            }
        }
    }
}

/// Returns the types of the columns `src` and `dst` of a relation's table.
fn table_ends(relation: &RelationPlan) -> (usize, usize) {
    match relation.reversed {
        false => (relation.from, relation.to),
        true => (relation.to, relation.from),
    }
}

/// Collects the distinct ends of the types that have a table.
fn gather_distinct(
    graph: &GraphPlan,
    sources: &[EdgeSource],
    work: OwnUnits,
    mut tables: Vec<Option<IdTable>>,
) -> Result<Vec<Option<IdTable>>, StoreError> {
    for source in sources {
        // One relation of each table.
        let of_table = |table| {
            let mut relations = source.relations().iter();
            let found = relations.find(|(_, of)| *of == table);
            let (relation, _) = found.expect("each table has a relation");
            table_ends(&graph.relations[*relation])
        };
        let ends: Vec<(usize, usize)> = (0..source.tables().len()).map(of_table).collect();
        let is_needed =
            |&(src, dst): &(usize, usize)| tables[src].is_some() || tables[dst].is_some();
        if !ends.iter().any(is_needed) {
            continue;
        }
        for unit in work.of(source.units()) {
            for batch in source.end_batches(&unit)? {
                for (rows, &(src, dst)) in batch?.iter().zip(&ends) {
                    for (ids, type_idx) in [(&rows.dst, dst), (&rows.src, src)] {
                        if let Some(table) = &mut tables[type_idx] {
                            table.add(ids);
                        }
                    }
                }
            }
        }
    }
    if let Some(pairs) = &graph.pairs {
        gather_of_pairs(pairs, work, &mut tables)?;
    }
    Ok(tables)
}

/// Collects the distinct ends and hard negatives of pairs that are in no edge table.
fn gather_of_pairs(
    pairs: &PairsPlan,
    work: OwnUnits,
    tables: &mut [Option<IdTable>],
) -> Result<(), StoreError> {
    let is_needed = tables[pairs.from()].is_some() || tables[pairs.to()].is_some();
    let is_of_edges = pairs.is_of_edges() && pairs.spec().negatives.is_none();
    if is_of_edges || !is_needed {
        return Ok(());
    }
    for unit in work.of(pairs.units()) {
        for batch in pairs.batches(&unit)? {
            let rows = batch?;
            let negatives = rows.negatives.as_ref().map(|(_, ids)| (ids, pairs.to()));
            let ends = [(&rows.ends.src, pairs.from()), (&rows.ends.dst, pairs.to())];
            for (ids, type_idx) in ends.into_iter().chain(negatives) {
                if let Some(table) = &mut tables[type_idx] {
                    table.add(ids);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_numbers_ids_in_order_and_knows_what_is_missing() {
        let mut words = vec![(0u64, 0); 4];
        let present: [u64; 6] = [0, 1, 63, 64, 130, 255];
        present
            .iter()
            .for_each(|p| words[usize::try_from(p / 64).unwrap()].0 |= 1 << (p % 64));
        let mut number = 0;
        for (bits, before) in &mut words {
            *before = number;
            number += bits.count_ones();
        }
        let dense = DenseIds {
            first_key: 1000,
            words,
        };
        for key in 900..1400 {
            let expected = present.iter().position(|p| 1000 + p == key);
            let expected = expected.map_or(MISSING, NodeIdx::from_index);
            assert_eq!(dense.number(key), expected, "{key}");
        }
        assert_eq!(dense.number(u64::MAX), MISSING);
    }
}
