//! Types of sampling: fan-outs, the order of in-edges, and the settings of flatten.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How many in-edges of a node are kept: a number, or all.
///
/// Written as an integer of at least 1 or as `"all"`. Only [`HopFanouts`] of several relations
/// allow 0.
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
            Self::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for Fanout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FanoutVisitor { least: 1 })
    }
}

struct FanoutVisitor {
    /// The least number of in-edges that is allowed.
    least: u32,
}

impl de::Visitor<'_> for FanoutVisitor {
    type Value = Fanout;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let least = self.least;
        write!(
            f,
            "a number of in-edges from {least} to 4294967295, or \"all\""
        )
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<Fanout, E> {
        match u32::try_from(count) {
            Ok(count) if count >= self.least => Ok(Fanout::Count(count)),
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

/// Fan-outs of one hop, by relation.
///
/// Written as one [`Fanout`] if there is one relation, else as a list in the order of the
/// relations. A fan-out of a list may be 0: a node keeps no in-edges of the relation.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HopFanouts(Vec<Fanout>);

impl HopFanouts {
    /// Makes the fan-outs of an untyped graph, hop 1 first.
    pub fn untyped(fanouts: &[Fanout]) -> Vec<Self> {
        fanouts.iter().map(|&fanout| fanout.into()).collect()
    }
}

impl From<Fanout> for HopFanouts {
    fn from(fanout: Fanout) -> Self {
        Self(vec![fanout])
    }
}

impl From<Vec<Fanout>> for HopFanouts {
    fn from(by_relation: Vec<Fanout>) -> Self {
        Self(by_relation)
    }
}

impl AsRef<[Fanout]> for HopFanouts {
    fn as_ref(&self) -> &[Fanout] {
        &self.0
    }
}

/// The fan-outs of a hop of an untyped graph.
impl AsRef<[Fanout]> for Fanout {
    fn as_ref(&self) -> &[Fanout] {
        std::slice::from_ref(self)
    }
}

impl std::fmt::Debug for HopFanouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0[..] {
            [only] => std::fmt::Debug::fmt(only, f),
            all => f.debug_list().entries(all).finish(),
        }
    }
}

impl std::fmt::Display for HopFanouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let [only] = &self.0[..] {
            return write!(f, "{only}");
        }
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", all.join(", "))
    }
}

impl Serialize for HopFanouts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [only] if *only != Fanout::Count(0) => only.serialize(serializer),
            all => serializer.collect_seq(all),
        }
    }
}

impl<'de> Deserialize<'de> for HopFanouts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HopVisitor)
    }
}

struct HopVisitor;

impl<'de> de::Visitor<'de> for HopVisitor {
    type Value = HopFanouts;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        FanoutVisitor { least: 1 }.expecting(f)?;
        f.write_str(", or a list of them")
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<HopFanouts, E> {
        FanoutVisitor { least: 1 }.visit_i64(count).map(Into::into)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<HopFanouts, E> {
        FanoutVisitor { least: 1 }.visit_u64(count).map(Into::into)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HopFanouts, E> {
        FanoutVisitor { least: 1 }.visit_str(text).map(Into::into)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut all: A) -> Result<HopFanouts, A::Error> {
        let mut by_relation = Vec::new();
        while let Some(Listed(fanout)) = all.next_element()? {
            by_relation.push(fanout);
        }
        Ok(HopFanouts(by_relation))
    }
}

/// A fan-out in a list, which may be 0.
struct Listed(Fanout);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fanout = deserializer.deserialize_any(FanoutVisitor { least: 0 })?;
        Ok(Self(fanout))
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
    /// In-edges kept per node and relation, hop 1 first; one entry a hop.
    pub fanouts: Vec<HopFanouts>,
    /// Order of the in-edges.
    pub sampling: Sampling,
    /// Random seed of the samples.
    pub seed: u64,
    /// Independent samples written for each target.
    pub samples_per_target: u32,
    /// Layout of the files.
    pub layout: Layout,
}

/// Returns how many in-edges of a relation a node at distance `hop` from the target keeps (hop 0 is
/// the target). The one relation of an untyped graph is 0.
///
/// A node at hop h serves every layer whose fan-out belongs to a hop after h, hence the greatest of
/// `fanouts[hop..]`. From the last hop on, a node keeps none.
///
/// # Panics
///
/// If there is no such relation.
///
/// # Examples
///
/// ```
/// use schemas::{Fanout, HopFanouts, keep_at_hop};
///
/// let fanouts = [Fanout::Count(5), Fanout::Count(10)];
/// assert_eq!([0, 1, 2].map(|hop| keep_at_hop(&fanouts, 0, hop)), [10, 10, 0]);
///
/// let of_two_relations = HopFanouts::from(vec![Fanout::Count(0), Fanout::All]);
/// assert_eq!(keep_at_hop(&[of_two_relations], 1, 0), usize::MAX);
/// ```
pub fn keep_at_hop(fanouts: &[impl AsRef<[Fanout]>], relation: usize, hop: usize) -> usize {
    let later = fanouts.get(hop..).unwrap_or_default();
    let limits = later.iter().map(|of_hop| of_hop.as_ref()[relation].limit());
    limits.max().unwrap_or(0)
}

/// Returns how many in-edges of a relation of a node layer `layer` (1-based) reads, those of the
/// lowest ranks. The one relation of an untyped graph is 0.
///
/// # Panics
///
/// If `layer` is 0 or greater than the number of fan-outs, or there is no such relation.
///
/// # Examples
///
/// ```
/// use schemas::{Fanout, use_at_layer};
///
/// let fanouts = [Fanout::Count(5), Fanout::All];
/// assert_eq!([1, 2].map(|layer| use_at_layer(&fanouts, 0, layer)), [usize::MAX, 5]);
/// ```
pub fn use_at_layer(fanouts: &[impl AsRef<[Fanout]>], relation: usize, layer: usize) -> usize {
    assert!(
        (1..=fanouts.len()).contains(&layer),
        "layer {layer} of {}",
        fanouts.len()
    );
    fanouts[fanouts.len() - layer].as_ref()[relation].limit()
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
                hops.map(|hop| keep_at_hop(&fanouts, 0, hop))
                    .collect::<Vec<_>>(),
                keep
            );
            let layers = 1..=fanouts.len();
            assert_eq!(
                layers
                    .map(|l| use_at_layer(&fanouts, 0, l))
                    .collect::<Vec<_>>(),
                used
            );
        };
        let all = usize::MAX;
        check("[10, 5]", &[10, 5, 0], &[5, 10]);
        check("[5, 10]", &[10, 10, 0], &[10, 5]);
        check("[3, \"all\", 2]", &[all, all, 2, 0], &[2, all, 3]);
        check("[]", &[0], &[]);
        assert_eq!(keep_at_hop(&[Fanout::All], 0, 9), 0);
    }

    #[test]
    fn relations_have_fanouts_of_their_own() {
        let text = r#"[[3,"all",0],[0,2,0]]"#;
        let fanouts: Vec<HopFanouts> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&fanouts).unwrap(), text);
        assert_eq!(fanouts[0].to_string(), "[3, all, 0]");
        let keep = |hop| [0, 1, 2].map(|relation| keep_at_hop(&fanouts, relation, hop));
        assert_eq!(
            [keep(0), keep(1), keep(2)],
            [[3, usize::MAX, 0], [0, 2, 0], [0; 3]]
        );
        let used = |layer| [0, 1, 2].map(|relation| use_at_layer(&fanouts, relation, layer));
        assert_eq!([used(1), used(2)], [[0, 2, 0], [3, usize::MAX, 0]]);
    }

    #[test]
    fn fanouts_of_one_relation_are_written_as_before() {
        let check = |text: &str| {
            let fanouts: Vec<HopFanouts> = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&fanouts).unwrap(), text);
        };
        check(r#"[15,"all",1]"#);
        // A sole relation that a hop does not follow.
        check("[[0],5]");
        let error = serde_json::from_str::<Vec<HopFanouts>>("[0]").unwrap_err();
        assert!(error.to_string().contains("in-edges from 1 to"), "{error}");
        let in_list = serde_json::from_str::<HopFanouts>("[3, -2]").unwrap_err();
        assert!(
            in_list.to_string().contains("in-edges from 0 to"),
            "{in_list}"
        );
    }
}
