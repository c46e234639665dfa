//! Random negatives that are drawn in proportion to in-degree^0.75.
//!
//! The power is that of word2vec (Mikolov et al., 2013, section 2.2) and of GraphSAGE's unsupervised
//! loss.

use schemas::{GraphShard, Row, hash_int};

const POWER: f64 = 0.75;

/// The random negatives of a part, to be drawn by degree.
#[derive(Debug)]
pub(crate) struct DegreeDraws {
    /// By node of the type of dst ends: in-degree^0.75.
    weight: Vec<f64>,
    /// By random negative of the part: the sum of the weights up to it.
    sums: Vec<f64>,
}

impl DegreeDraws {
    /// Weighs the nodes of type `to` of a part by their in-edges of all relations.
    pub(crate) fn of(shard: &GraphShard, to: usize) -> Self {
        let mut degrees = vec![0.0; shard.nodes[to].len()];
        for edges in shard.edges.iter().filter(|edges| edges.to == to) {
            let of_relation = degrees.iter_mut().zip(&edges.in_degree);
            of_relation.for_each(|(sum, &degree)| *sum += f64::from(degree));
        }
        let random = shard.pairs.iter().flat_map(|pairs| &pairs.random);
        Self::new(&degrees, random)
    }

    fn new<'a>(degrees: &[f64], random: impl IntoIterator<Item = &'a Row>) -> Self {
        let weight: Vec<f64> = degrees.iter().map(|degree| degree.powf(POWER)).collect();
        let mut sum = 0.0;
        let sums = random.into_iter().map(|row| {
            sum += weight[row.index()];
            sum
        });
        Self {
            sums: sums.collect(),
            weight,
        }
    }

    fn total(&self) -> f64 {
        self.sums.last().copied().unwrap_or_default()
    }

    /// Draws positions of random negatives by hashes of the key, with replacement; none if all have
    /// in-degree 0.
    pub(crate) fn draw(&self, key: u64, count: usize) -> impl Iterator<Item = usize> {
        let total = self.total();
        let count = if total > 0.0 { count } else { 0 };
        (0..count as u64).map(move |at| {
            let hash = hash_int(key ^ hash_int(at));
            let drawn = (hash >> 11) as f64 / (1u64 << 53) as f64 * total;
            let position = self.sums.partition_point(|&sum| sum <= drawn);
            // Rounding may give the total itself, which is past the last node with a weight.
            position.min(self.sums.partition_point(|&sum| sum < total))
        })
    }

    /// Returns how likely a draw is a node, drawn from the random negatives and the node.
    pub(crate) fn chance(&self, node: u32) -> f32 {
        let total = self.total();
        if total == 0.0 {
            return 0.0;
        }
        #[expect(clippy::cast_possible_truncation, reason = "chances are kept as f32")]
        let chance = (self.weight[node as usize] / total) as f32;
        chance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_degrees() {
        let degrees = [0.0, 1.0, 16.0, 3.0, 0.0, 81.0];
        let random: Vec<Row> = [0, 1, 2, 4, 5].map(Row::from_index).to_vec();
        let draws = DegreeDraws::new(&degrees, &random);
        // 1^0.75 + 16^0.75 + 81^0.75 = 1 + 8 + 27.
        let expected = [0.0, 1.0 / 36.0, 8.0 / 36.0, 0.0, 27.0 / 36.0];
        let (num_keys, per_key) = (5_000u64, 10);
        let mut counts = [0u32; 5];
        for key in 0..num_keys {
            let drawn: Vec<usize> = draws.draw(hash_int(key), per_key).collect();
            assert_eq!(drawn.len(), per_key);
            drawn.into_iter().for_each(|at| counts[at] += 1);
        }
        for ((count, share), row) in counts.into_iter().zip(expected).zip(&random) {
            // Five standard deviations of a binomial count.
            let mean = share * (num_keys * per_key as u64) as f64;
            let allowed = 5.0 * (mean * (1.0 - share)).sqrt();
            assert!((f64::from(count) - mean).abs() <= allowed, "{counts:?}");
            let chance = f64::from(draws.chance(row.raw()));
            assert!((chance - share).abs() < 1e-7);
        }
    }

    #[test]
    fn nodes_without_in_edges_are_not_drawn() {
        let random = [0, 1].map(Row::from_index);
        let draws = DegreeDraws::new(&[0.0, 0.0], &random);
        assert_eq!(draws.draw(1, 4).count(), 0);
        assert_eq!(draws.chance(1), 0.0);
    }
}
