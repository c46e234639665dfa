//! Names of types and relations, and the types that each relation joins.

/// The types and relations of a graph, each sorted by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Schema {
    /// Names of the types.
    pub types: Vec<String>,
    /// The relations.
    pub relations: Vec<RelationEnds>,
}

/// A relation and the types that it joins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RelationEnds {
    /// Name of the relation.
    pub name: String,
    /// Type of the src nodes, by position.
    pub from: usize,
    /// Type of the dst nodes, by position.
    pub to: usize,
}

impl Schema {
    /// Returns the relations into a type, in the order of their names.
    pub fn into_type(&self, node_type: usize) -> impl Iterator<Item = usize> {
        let all = self.relations.iter().enumerate();
        all.filter(move |(_, ends)| ends.to == node_type)
            .map(|(at, _)| at)
    }

    /// Joins the names of a relation and its two types, as `PyG` names the relation.
    pub(crate) fn joined(&self, relation: usize, by: &str) -> String {
        let ends = &self.relations[relation];
        [&self.types[ends.from], &ends.name, &self.types[ends.to]]
            .map(String::as_str)
            .join(by)
    }
}
