//! The types whose rows each round computes.

use gnn::typed::Schema;

/// By round and type: whether rows of the type are computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NeededTypes(Vec<Vec<bool>>);

/// The rows that an output has.
pub(crate) struct Wanted<'a> {
    /// Whether embeddings of a type are written.
    pub(crate) is_written: &'a [bool],
    /// The layer whose rows are the embeddings.
    pub(crate) embedding_layer: usize,
    /// The type whose logits are computed, if any.
    pub(crate) logits_of: Option<usize>,
}

impl NeededTypes {
    /// Goes back from the output: a round's rows of a type are needed if the output has them, or if
    /// the next round reads them, as rows of the type itself or as sources of in-edges. `limits`
    /// has how many in-edges of each relation each layer reads.
    pub(crate) fn new(schema: &Schema, limits: &[Vec<usize>], wanted: &Wanted<'_>) -> Self {
        let num_types = schema.types.len();
        let mut rounds = vec![vec![false; num_types]; limits.len() + 1];
        for round in (0..=limits.len()).rev() {
            for node_type in 0..num_types {
                let is_embedding = round == wanted.embedding_layer && wanted.is_written[node_type];
                let is_logits = round == limits.len() && wanted.logits_of == Some(node_type);
                let is_read = rounds.get(round + 1).is_some_and(|next| {
                    let ends = schema.relations.iter().zip(&limits[round]);
                    let mut reads = ends.filter(|(_, limit)| **limit > 0);
                    next[node_type] || reads.any(|(of, _)| of.from == node_type && next[of.to])
                });
                rounds[round][node_type] = is_embedding || is_logits || is_read;
            }
        }
        Self(rounds)
    }

    /// Tells whether a round computes rows of a type.
    pub(crate) fn has(&self, round: usize, node_type: usize) -> bool {
        self.0[round][node_type]
    }

    /// Lists the types that a round computes.
    pub(crate) fn types(&self, round: usize) -> impl Iterator<Item = usize> {
        let types = self.0[round].iter().enumerate();
        types.filter_map(|(node_type, is_needed)| is_needed.then_some(node_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnn::typed::RelationEnds;

    const ALL: usize = usize::MAX;

    /// A chain of types: 0 to 1 to 2, and 3 to itself.
    fn chain() -> Schema {
        let ends = |(name, from, to): (&str, usize, usize)| RelationEnds {
            name: name.to_owned(),
            from,
            to,
        };
        Schema {
            types: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            relations: [("p", 0, 1), ("q", 1, 2), ("r", 3, 3)].map(ends).to_vec(),
        }
    }

    fn needed(limits: &[[usize; 3]], wanted: &Wanted<'_>) -> Vec<Vec<usize>> {
        let limits: Vec<Vec<usize>> = limits.iter().map(|of| of.to_vec()).collect();
        let found = NeededTypes::new(&chain(), &limits, wanted);
        let rounds = 0..=limits.len();
        rounds.map(|round| found.types(round).collect()).collect()
    }

    #[test]
    fn a_round_computes_what_later_rounds_and_the_output_read() {
        let only_c = Wanted {
            is_written: &[false, false, true, false],
            embedding_layer: 2,
            logits_of: Some(2),
        };
        let of_all = needed(&[[ALL; 3]; 2], &only_c);
        assert_eq!(of_all, [vec![0, 1, 2], vec![1, 2], vec![2]]);
        // Layer 2 reads no in-edges of the second relation.
        let of_few = needed(&[[ALL; 3], [ALL, 0, ALL]], &only_c);
        assert_eq!(of_few, [vec![1, 2], vec![2], vec![2]]);
        // Embeddings of an earlier layer are written of other types too.
        let inner = Wanted {
            is_written: &[true, false, false, true],
            embedding_layer: 1,
            logits_of: Some(2),
        };
        let of_inner = needed(&[[ALL; 3]; 2], &inner);
        assert_eq!(of_inner, [vec![0, 1, 2, 3], vec![0, 1, 2, 3], vec![2]]);
    }
}
