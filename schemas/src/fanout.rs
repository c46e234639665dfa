//! Types of sampling: fan-outs, the order of in-edges, and the settings of flatten.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How many in-edges of a node are kept: a number of at least 1, or all.
///
/// Written as an integer or as `"all"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fanout {
    /// At most this many in-edges, the first in rank order.
    Count(u32),
    /// Every in-edge.
    All,
}

impl Fanout {
    /// Returns the number of in-edges kept at most; `usize::MAX` for all.
    pub fn limit(self) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::All => usize::MAX,
        }
    }
}

impl std::fmt::Display for Fanout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::All => f.write_str("all"),
        }
    }
}

impl Serialize for Fanout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::All if serializer.is_human_readable() => serializer.serialize_str("all"),
            Self::All => serializer.serialize_u32(0),
        }
    }
}

impl<'de> Deserialize<'de> for Fanout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(FanoutVisitor);
        }
        // Binary formats carry no types: a fan-out is a plain number there, 0 for all.
        let count = u32::deserialize(deserializer)?;
        Ok(if count == 0 {
            Self::All
        } else {
            Self::Count(count)
        })
    }
}

struct FanoutVisitor;

impl de::Visitor<'_> for FanoutVisitor {
    type Value = Fanout;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number of in-edges from 1 to 4294967295, or \"all\"")
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<Fanout, E> {
        match u32::try_from(count) {
            Ok(count @ 1..) => Ok(Fanout::Count(count)),
            // PyG and DGL write -1 for all in-edges.
            _ if count == -1 => Err(E::invalid_value(
                de::Unexpected::Signed(count),
                &"a number of in-edges from 1 to 4294967295, or \"all\" in place of -1",
            )),
            _ => Err(E::invalid_value(de::Unexpected::Signed(count), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Fanout, E> {
        match i64::try_from(count) {
            Ok(signed) => self.visit_i64(signed),
            Err(_) => Err(E::invalid_value(de::Unexpected::Unsigned(count), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Fanout, E> {
        match text {
            "all" => Ok(Fanout::All),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

/// Order in which in-edges are ranked; the first ones are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// Every in-edge is as likely as any other.
    Uniform,
    /// Without replacement, in proportion to the weight.
    Weighted,
    /// The heaviest in-edges.
    Top,
}

/// How graph features lie on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// A row is one target with its whole neighbourhood.
    Rows,
    /// A part is the union of many neighbourhoods, each node and edge once.
    Shards,
}

/// How graph features were made; the manifest and each file's metadata hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlattenMeta {
    /// Greatest distance of a node from its target.
    pub hops: usize,
    /// In-edges kept per node, hop 1 first; one entry a hop.
    pub fanouts: Vec<Fanout>,
    /// Order of the in-edges.
    pub sampling: Sampling,
    /// Random seed of the samples.
    pub seed: u64,
    /// Independent samples written for each target.
    pub samples_per_target: u32,
    /// Layout of the files.
    pub layout: Layout,
}

/// Returns how many in-edges a node at distance `hop` from the target keeps (hop 0 is the target).
///
/// A node at hop h serves every layer whose fan-out belongs to a hop after h, hence the greatest of
/// `fanouts[hop..]`. From the last hop on, a node keeps none.
///
/// # Examples
///
/// ```
/// use schemas::{Fanout, keep_at_hop};
///
/// let fanouts = [Fanout::Count(5), Fanout::Count(10)];
/// assert_eq!([0, 1, 2].map(|hop| keep_at_hop(&fanouts, hop)), [10, 10, 0]);
/// ```
pub fn keep_at_hop(fanouts: &[Fanout], hop: usize) -> usize {
    let later = fanouts.get(hop..).unwrap_or_default();
    later.iter().map(|fanout| fanout.limit()).max().unwrap_or(0)
}

/// Returns how many in-edges of a node layer `layer` (1-based) reads, those of the lowest ranks.
///
/// # Panics
///
/// If `layer` is 0 or greater than the number of fan-outs.
///
/// # Examples
///
/// ```
/// use schemas::{Fanout, use_at_layer};
///
/// let fanouts = [Fanout::Count(5), Fanout::All];
/// assert_eq!([1, 2].map(|layer| use_at_layer(&fanouts, layer)), [usize::MAX, 5]);
/// ```
pub fn use_at_layer(fanouts: &[Fanout], layer: usize) -> usize {
    assert!(
        (1..=fanouts.len()).contains(&layer),
        "layer {layer} of {}",
        fanouts.len()
    );
    fanouts[fanouts.len() - layer].limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fanouts(text: &str) -> Vec<Fanout> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn fanouts_are_numbers_from_1_or_all() {
        let check = |text: &str, expected: &str| match serde_json::from_str::<Fanout>(text) {
            Ok(fanout) => {
                assert_eq!(serde_json::to_string(&fanout).unwrap(), expected);
                assert_eq!(format!("{fanout}"), expected.trim_matches('"'));
            }
            Err(error) => {
                let says = error.to_string();
                assert!(says.contains(expected), "{says} should say: {expected}");
                assert!(says.contains("from 1 to 4294967295, or \"all\""), "{says}");
            }
        };
        check("1", "1");
        check("4294967295", "4294967295");
        check("\"all\"", "\"all\"");
        check("0", "integer `0`");
        check("-1", "integer `-1`");
        check("-1", "or \"all\" in place of -1");
        check("4294967296", "integer `4294967296`");
        check("18446744073709551615", "integer `18446744073709551615`");
        check("\"most\"", "string \"most\"");
        check("2.5", "floating point `2.5`");
    }

    #[test]
    fn nodes_keep_what_any_layer_reads() {
        let check = |text: &str, keep: &[usize], used: &[usize]| {
            let fanouts = fanouts(text);
            let hops = 0..=fanouts.len();
            assert_eq!(
                hops.map(|hop| keep_at_hop(&fanouts, hop))
                    .collect::<Vec<_>>(),
                keep
            );
            let layers = 1..=fanouts.len();
            assert_eq!(
                layers
                    .map(|l| use_at_layer(&fanouts, l))
                    .collect::<Vec<_>>(),
                used
            );
        };
        let all = usize::MAX;
        check("[10, 5]", &[10, 5, 0], &[5, 10]);
        check("[5, 10]", &[10, 10, 0], &[10, 5]);
        check("[3, \"all\", 2]", &[all, all, 2, 0], &[2, all, 3]);
        check("[]", &[0], &[]);
        assert_eq!(keep_at_hop(&[Fanout::All], 9), 0);
    }
}
