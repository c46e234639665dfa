//! The supervision pairs of a part, in memory and as its table `pairs`.

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, UInt32Type};
use serde::{Deserialize, Serialize};

use super::GraphShard;
use crate::as_given;
use crate::columns::{PairsMeta, Split};
use crate::dataset::SplitCounts;
use crate::error::{Result, SchemaError};
use crate::idx::Row;
use crate::parquet_file::{Batch, TableReader, list_array, list_field, number_array};
use crate::table_writer::Column;

/// The supervision pairs of a part, and its negatives. Every end and every negative is a target of
/// the part, and every target is one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartPairs {
    /// `[p]`, position of the src end among the nodes of type [`PairsMeta::from`].
    pub src: Vec<Row>,
    /// `[p]`, position of the dst end among the nodes of type [`PairsMeta::to`].
    pub dst: Vec<Row>,
    /// `[p]`, 1 for a link and 0 for a pair that is none; none if every pair is a link.
    pub label: Option<Vec<f32>>,
    /// `[p]`, where the input has weights of pairs.
    pub weight: Option<Vec<f32>>,
    /// `[p]`, never [`Split::None`].
    pub split: Vec<Split>,
    /// Where the input has hard negatives.
    pub hard: Option<HardNegatives>,
    /// Random negatives of the part: distinct nodes of type [`PairsMeta::to`], drawn uniformly by a
    /// hash of (seed, part); positions ascend.
    pub random: Vec<Row>,
}

/// The hard negatives of the pairs of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardNegatives {
    /// `[p + 1]`, from 0: pair i has the negatives `nodes[offset[i]..offset[i + 1]]`.
    pub offset: Vec<u32>,
    /// Positions among the nodes of type [`PairsMeta::to`], in the order of the input.
    pub nodes: Vec<Row>,
}

impl Default for HardNegatives {
    fn default() -> Self {
        Self {
            offset: vec![0],
            nodes: Vec::new(),
        }
    }
}

impl HardNegatives {
    /// Appends the hard negatives of the next pair.
    pub(super) fn push(&mut self, negatives: &[Row]) {
        self.nodes.extend_from_slice(negatives);
        let end = u32::try_from(self.nodes.len());
        self.offset
            .push(end.expect("a part has below 2^32 negatives"));
    }

    /// Returns the hard negatives of a pair.
    pub fn of(&self, pair: usize) -> &[Row] {
        &self.nodes[self.offset[pair] as usize..self.offset[pair + 1] as usize]
    }
}

impl PartPairs {
    /// Creates the columns of a part without pairs.
    pub fn empty(meta: &PairsMeta) -> Self {
        Self {
            label: meta.label.then(Vec::new),
            weight: meta.weight.then(Vec::new),
            hard: meta.negatives.then(HardNegatives::default),
            ..Self::default()
        }
    }

    /// Returns the number of pairs.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there are none"
    )]
    pub fn len(&self) -> usize {
        self.src.len()
    }

    /// Returns the row `at` of the table alone: a pair, or a random negative.
    pub(super) fn row(&self, at: usize) -> Self {
        let is_pair = at < self.len();
        let pair = if is_pair { at..at + 1 } else { 0..0 };
        let floats = |values: &Option<Vec<f32>>| Some(values.as_ref()?[pair.clone()].to_vec());
        Self {
            src: self.src[pair.clone()].to_vec(),
            dst: self.dst[pair.clone()].to_vec(),
            label: floats(&self.label),
            weight: floats(&self.weight),
            split: self.split[pair.clone()].to_vec(),
            hard: self.hard.as_ref().map(|hard| {
                let mut own = HardNegatives::default();
                pair.clone().for_each(|pair| own.push(hard.of(pair)));
                own
            }),
            random: match is_pair {
                true => Vec::new(),
                false => vec![self.random[at - self.len()]],
            },
        }
    }

    /// Returns the number of rows of the table: pairs and random negatives.
    pub(super) fn num_rows(&self) -> usize {
        self.len() + self.random.len()
    }

    /// Returns the ends and negatives, each with its type; they may repeat.
    pub(super) fn roots(&self, meta: &PairsMeta) -> impl Iterator<Item = (usize, Row)> {
        let (from, to) = (meta.from, meta.to);
        let hard = self.hard.iter().flat_map(|hard| &hard.nodes);
        let dsts = self.dst.iter().chain(hard).chain(&self.random);
        let srcs = self.src.iter().map(move |&row| (from, row));
        srcs.chain(dsts.map(move |&row| (to, row)))
    }

    /// Replaces each position by another one; `place` gets the type of the node too.
    pub(super) fn relabel(&mut self, meta: &PairsMeta, place: impl Fn(usize, Row) -> Row) {
        let of_src = self.src.iter_mut();
        of_src.for_each(|row| *row = place(meta.from, *row));
        let hard = self.hard.iter_mut().flat_map(|hard| &mut hard.nodes);
        let dsts = self.dst.iter_mut().chain(hard).chain(&mut self.random);
        dsts.for_each(|row| *row = place(meta.to, *row));
    }

    /// Appends the rows of another part, whose positions are those of this one.
    pub(super) fn extend(&mut self, other: &Self) {
        self.src.extend_from_slice(&other.src);
        self.dst.extend_from_slice(&other.dst);
        self.split.extend_from_slice(&other.split);
        self.random.extend_from_slice(&other.random);
        for (own, others) in [
            (&mut self.label, &other.label),
            (&mut self.weight, &other.weight),
        ] {
            if let (Some(own), Some(others)) = (own, others) {
                own.extend_from_slice(others);
            }
        }
        if let (Some(own), Some(others)) = (&mut self.hard, &other.hard) {
            (0..other.src.len()).for_each(|pair| own.push(others.of(pair)));
        }
    }

    /// Counts the pairs by split.
    pub fn split_counts(&self) -> SplitCounts {
        let mut counts = SplitCounts::default();
        self.split.iter().for_each(|&split| counts.add(split));
        counts
    }

    /// Returns the bytes of memory the columns take.
    pub fn size_bytes(&self) -> usize {
        let floats = |values: &Option<Vec<f32>>| values.as_ref().map_or(0, Vec::len);
        let hard = self.hard.as_ref();
        let hard = hard.map_or(0, |hard| hard.offset.len() + hard.nodes.len());
        let words = 2 * self.len() + floats(&self.label) + floats(&self.weight);
        4 * (words + hard + self.random.len()) + self.split.len()
    }

    /// Checks lengths, positions and that the ends and negatives are the targets of the shard.
    ///
    /// # Errors
    ///
    /// Names the first disagreement.
    pub(super) fn validate(&self, shard: &GraphShard, meta: &PairsMeta) -> Result<()> {
        let num_pairs = self.len();
        let len = |column: &str, len: usize, want: usize| match len == want {
            true => Ok(()),
            false => Err(broken(format!("`{column}` holds {len} values, not {want}"))),
        };
        let optional = |name: &str, column: &Option<Vec<f32>>, wanted: bool| match column {
            Some(values) if wanted => len(name, values.len(), num_pairs),
            None if !wanted => Ok(()),
            _ => Err(broken(format!("`{name}`: the graph's pairs say {wanted}"))),
        };
        len("dst", self.dst.len(), num_pairs)?;
        len("split", self.split.len(), num_pairs)?;
        optional("label", &self.label, meta.label)?;
        optional("weight", &self.weight, meta.weight)?;
        if self.split.contains(&Split::None) {
            return Err(broken("a pair is in no split".to_owned()));
        }
        match &self.hard {
            Some(hard) if meta.negatives => {
                len("offset of negatives", hard.offset.len(), num_pairs + 1)?;
                let end = hard.offset[num_pairs] as usize;
                if hard.offset[0] != 0 || !hard.offset.is_sorted() || end != hard.nodes.len() {
                    let problem = "the offsets of `negatives` do not rise from 0 to their number";
                    return Err(broken(problem.to_owned()));
                }
            }
            None if !meta.negatives => {}
            _ => {
                let wanted = meta.negatives;
                return Err(broken(format!(
                    "`negatives`: the graph's pairs say {wanted}"
                )));
            }
        }
        if !self.random.is_sorted_by(|left, right| left < right) {
            return Err(broken("random negatives do not ascend".to_owned()));
        }
        self.are_targets(shard, meta)
    }

    /// Checks that the ends and negatives are targets, and no other node is one.
    fn are_targets(&self, shard: &GraphShard, meta: &PairsMeta) -> Result<()> {
        let mut is_named: Vec<Vec<bool>> = shard
            .nodes
            .iter()
            .map(|nodes| vec![false; nodes.len()])
            .collect();
        for (type_idx, row) in self.roots(meta) {
            let nodes = &shard.nodes[type_idx];
            let is_target = nodes.is_target.get(row.index());
            if is_target != Some(&true) {
                let num_nodes = nodes.len();
                return Err(broken(format!(
                    "node {row} of {num_nodes} nodes of its type is no target"
                )));
            }
            is_named[type_idx][row.index()] = true;
        }
        let targets = shard.nodes.iter().map(|nodes| &nodes.is_target);
        match targets.eq(&is_named) {
            true => Ok(()),
            false => Err(broken("a target is the end of no pair".to_owned())),
        }
    }

    /// Columns of some rows of the table, in the order of [`schema`]: pairs, then random negatives.
    pub(super) fn columns(&self, rows: Range<usize>, meta: &PairsMeta) -> Result<Vec<Column>> {
        let (num_pairs, num_random) = (self.len(), self.random.len());
        let pairs = rows.start.min(num_pairs)..rows.end.min(num_pairs);
        let random = rows.start.max(num_pairs) - num_pairs..rows.end.max(num_pairs) - num_pairs;
        debug_assert!(random.end <= num_random, "rows are those of the table");
        let src = self.src[pairs.clone()].iter().map(|row| Some(row.raw()));
        let dst = self.dst[pairs.clone()].iter();
        let dst = dst.chain(&self.random[random.clone()]).map(|row| row.raw());
        let floats = |values: &Vec<f32>| -> ArrayRef {
            let of_pairs = values[pairs.clone()].iter().copied().map(Some);
            Arc::new(
                of_pairs
                    .chain(repeat_n(None, random.len()))
                    .collect::<Float32Array>(),
            )
        };
        let src: UInt32Array = src.chain(repeat_n(None, random.len())).collect();
        let mut arrays: Vec<ArrayRef> =
            vec![Arc::new(src), number_array::<UInt32Type>(dst.collect())];
        arrays.extend(self.label.as_ref().map(floats));
        arrays.extend(self.weight.as_ref().map(floats));
        let mut split = self.split[pairs.clone()].to_vec();
        split.resize(rows.len(), Split::None);
        arrays.push(as_given::split_array(&split, &meta.split)?);
        if let Some(hard) = &self.hard {
            let first = hard.offset[pairs.start] as usize;
            let end = hard.offset[pairs.end] as usize;
            let ends = pairs
                .clone()
                .map(|pair| hard.offset[pair + 1] as usize - first);
            let ends: Vec<usize> = ends.chain(random.map(|_| end - first)).collect();
            let nodes = Row::raw_slice(&hard.nodes[first..end]).to_vec();
            arrays.push(list_array(&ends, number_array::<UInt32Type>(nodes))?);
        }
        Ok(arrays.into_iter().map(Column::from).collect())
    }

    /// Reads the table `pairs` of a part.
    pub(super) fn read(reader: TableReader<'_>, meta: &PairsMeta) -> Result<Self> {
        let mut pairs = Self::empty(meta);
        reader.for_each(|batch| pairs.append(batch, meta))?;
        Ok(pairs)
    }

    /// Appends the columns of [`schema`] of a batch.
    pub(super) fn append(&mut self, batch: &Batch<'_>, meta: &PairsMeta) -> Result<()> {
        let src = batch.column("src")?;
        let Some(src) = src.as_primitive_opt::<UInt32Type>() else {
            return Err(batch.broken("column `src` is not uint32".to_owned()));
        };
        let num_pairs = src.len() - src.null_count();
        let is_ordered = src.slice(0, num_pairs).null_count() == 0;
        if !is_ordered || (num_pairs > 0 && !self.random.is_empty()) {
            let problem = "a pair follows a random negative, whose `src` is null";
            return Err(batch.broken(problem.to_owned()));
        }
        let dst = Row::slice(batch.numbers::<UInt32Type>("dst")?);
        self.src
            .extend_from_slice(Row::slice(&src.values()[..num_pairs]));
        self.dst.extend_from_slice(&dst[..num_pairs]);
        self.random.extend_from_slice(&dst[num_pairs..]);
        for (name, values) in [("label", &mut self.label), ("weight", &mut self.weight)] {
            if let Some(values) = values {
                let column = batch.column(name)?.slice(0, num_pairs);
                match column.as_primitive_opt::<Float32Type>() {
                    Some(floats) if floats.null_count() == 0 => {
                        values.extend_from_slice(floats.values());
                    }
                    _ => {
                        let problem = format!("column `{name}` is not float32 for every pair");
                        return Err(batch.broken(problem));
                    }
                }
            }
        }
        let num_before = self.split.len();
        as_given::read_splits(batch, &meta.split, &mut self.split)?;
        self.split.truncate(num_before + num_pairs);
        if let Some(hard) = &mut self.hard {
            let lists = batch.number_list::<UInt32Type>("negatives")?;
            for len in lists.lens().take(num_pairs) {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let end = hard.offset[hard.offset.len() - 1].checked_add(len);
                let end = end.ok_or_else(|| batch.broken("2^32 negatives or more".to_owned()))?;
                hard.offset.push(end);
            }
            hard.nodes.extend_from_slice(Row::slice(lists.all()));
        }
        Ok(())
    }
}

/// Columns of the table `pairs`: pairs, then the random negatives of the part, whose `src` is null.
pub(super) fn schema(meta: &PairsMeta) -> Result<Schema> {
    let mut fields = vec![
        Field::new("src", DataType::UInt32, true),
        Field::new("dst", DataType::UInt32, false),
    ];
    for (name, there) in [("label", meta.label), ("weight", meta.weight)] {
        if there {
            fields.push(Field::new(name, DataType::Float32, true));
        }
    }
    fields.push(as_given::split_field(&meta.split)?);
    if meta.negatives {
        fields.push(list_field("negatives", DataType::UInt32));
    }
    Ok(Schema::new(fields))
}

fn broken(problem: String) -> SchemaError {
    SchemaError::Invalid {
        what: "pairs",
        problem,
    }
}
