//! The checked plan of a graph: its node types and its relations.

use std::path::Path;
use std::sync::Arc;

use super::{Categories, EdgesPlan, KnownInput, NodesPlan, OpenFiles, PairsPlan, Table, TableName};
use crate::columns::{ColumnMeta, GraphMeta, LabelMeta, RelationMeta, TypeMeta};
use crate::config::{GRAPH, IN_GRAPH, InputSpec, NamedTables};
use crate::error::{Result, SchemaError};
use crate::input::{closest, pairs};
use crate::threads::spawn_scoped;

/// The tables of a graph, checked against the files' schemas.
///
/// An untyped graph has one type and one relation, both with the empty name.
#[derive(Clone, Debug)]
pub struct GraphPlan {
    /// The node types, sorted by name.
    pub types: Vec<TypePlan>,
    /// The relations, sorted by name.
    pub relations: Vec<RelationPlan>,
    /// The supervision pairs, where the task is one of links.
    pub pairs: Option<Arc<PairsPlan>>,
    /// Where graphs are the targets: position of the relation that leads from nodes to their graphs.
    pub in_graph: Option<usize>,
}

/// A node type and its table.
#[derive(Clone, Debug)]
pub struct TypePlan {
    /// Name; empty if nodes have no types.
    pub name: String,
    /// The table.
    pub nodes: Arc<NodesPlan>,
}

/// A relation and its table.
#[derive(Clone, Debug)]
pub struct RelationPlan {
    /// Name; empty if nodes have no types.
    pub name: String,
    /// Type of the sources.
    pub from: usize,
    /// Type of the destinations.
    pub to: usize,
    /// The table; a relation and its reverse have the same one.
    pub edges: Arc<EdgesPlan>,
    /// Whether the edges are the reverses of the table's: its `dst` is their source.
    pub reversed: bool,
}

/// Fingerprints of the files of all tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFingerprints {
    /// One for each type.
    pub nodes: Vec<String>,
    /// One for each relation.
    pub edges: Vec<String>,
}

impl InputSpec {
    /// Checks types, relations, files, columns and column types.
    ///
    /// # Errors
    ///
    /// Names the key, file or column, and the allowed values.
    pub fn into_plan(self, base: &Path) -> Result<GraphPlan> {
        self.plan(base).map_err(|mut found| found.swap_remove(0))
    }

    /// Checks as [`InputSpec::into_plan`] does, and names every key and column that is wrong.
    ///
    /// # Errors
    ///
    /// One error for each mistake; at least one.
    pub fn plan(self, base: &Path) -> Result<GraphPlan, Vec<SchemaError>> {
        self.plan_like(base, &KnownInput::new())
    }

    /// Checks as [`InputSpec::plan`] does. CSV columns whose values do not show it have the types
    /// that they had in the training of a model.
    ///
    /// # Errors
    ///
    /// One error for each mistake; at least one.
    pub fn plan_like(self, base: &Path, known: &KnownInput) -> Result<GraphPlan, Vec<SchemaError>> {
        let mut found = self.mistakes();
        let is_graph = found.is_empty();
        let mut files = OpenFiles::default();
        let mut types = Vec::new();
        let named = self.named_tables().filter(|_| is_graph);
        let (node_specs, edge_specs) = match &named {
            Some(named) => (named.nodes.clone(), named.edges.clone()),
            None => (self.nodes, self.edges),
        };
        for (name, spec) in node_specs {
            let table = table_of_nodes(&name, named.as_ref());
            let nodes = spec.plan_as(table, base, &mut files, known.get(&name));
            let nodes = nodes.map_err(|errors| found.extend(errors)).ok();
            types.push((name, nodes));
        }
        let mut tables = Vec::new();
        for (name, spec) in edge_specs {
            let table = table_of_edges(&name, named.as_ref());
            match spec.plan_as(table, base, &mut files) {
                Ok(edges) => tables.push((name, edges)),
                Err(errors) => found.extend(errors),
            }
        }
        let pairs = self.pairs.filter(|_| is_graph);
        if let Some(ends) = pairs.as_ref().and_then(pairs::ends_spec) {
            match ends.plan_as(TableName::pairs(), base, &mut files) {
                Ok(ends) => tables.push((PAIRS.to_owned(), ends)),
                Err(errors) => found.extend(errors),
            }
        }
        // Without a graph, the types of the ends are not known.
        let mut tables = match is_graph {
            true => fit_ids(tables, &mut types, &mut found),
            false => Vec::new(),
        };
        let ends = tables
            .pop_if(|(name, _)| name == PAIRS)
            .map(|(_, ends)| ends);
        if !found.is_empty() {
            return Err(found);
        }
        let types = types.into_iter().map(|(name, nodes)| TypePlan {
            name,
            nodes: Arc::new(nodes.expect("else an error was found")),
        });
        let types: Vec<TypePlan> = types.collect();
        let names: Vec<&str> = types.iter().map(|of| &*of.name).collect();
        let relations = tables.into_iter();
        let relations = relations.flat_map(|(name, edges)| relations_of(name, edges, &names));
        let mut relations: Vec<RelationPlan> = relations.collect();
        relations.sort_by(|a, b| a.name.cmp(&b.name));
        let mut graph = GraphPlan {
            types,
            relations,
            pairs: None,
            in_graph: None,
        };
        graph.in_graph = graph.relation_idx(IN_GRAPH).filter(|_| named.is_some());
        let pairs = pairs.map(|spec| PairsPlan::plan(spec, ends, &graph));
        graph.pairs = pairs.transpose()?.map(Arc::new);
        Ok(graph)
    }
}

/// Names the table of a node type, which may be that of graphs.
fn table_of_nodes(name: &str, named: Option<&NamedTables>) -> TableName {
    match named {
        Some(_) if name == GRAPH => TableName::graphs(),
        Some(named) if name == named.of_nodes => TableName::nodes(&named.written),
        _ => TableName::nodes(name),
    }
}

/// Names the table of a relation, which may be that of the nodes of graphs.
fn table_of_edges(name: &str, named: Option<&NamedTables>) -> TableName {
    match named {
        Some(named) if name == IN_GRAPH => TableName::members(&named.written),
        // Without names of its own, the graph has one other relation.
        Some(named) if named.written.is_empty() => TableName::edges(""),
        _ => TableName::edges(name),
    }
}

/// Stands for the table of pairs among the edge tables; no relation has such a name.
const PAIRS: &str = "[pairs]";

/// Names and tables of node types; none for a table that is not usable.
type NodeTables = [(String, Option<NodesPlan>)];

/// Gives the ends of edges the types of the nodes' ids. Ids in CSV files become strings if another
/// table has them as strings.
fn fit_ids(
    tables: Vec<(String, EdgesPlan)>,
    types: &mut NodeTables,
    found: &mut Vec<SchemaError>,
) -> Vec<(String, EdgesPlan)> {
    let names: Vec<String> = types.iter().map(|(name, _)| name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (_, edges) in &tables {
        for (end, is_string) in ends_of(edges, &names)
            .into_iter()
            .zip(edges.fixed_strings())
        {
            if let Some(nodes) = types[end].1.as_mut().filter(|_| is_string) {
                nodes.take_text_ids();
            }
        }
    }
    let mut fitted = Vec::new();
    for (name, edges) in tables {
        let [from, to] = ends_of(&edges, &names);
        // A type whose table is not usable is not compared.
        let edges = match (&types[from].1, &types[to].1) {
            (Some(from), Some(to)) => edges.with_ends(from, to),
            _ => Ok(edges),
        };
        match edges {
            Ok(edges) => fitted.push((name, edges)),
            Err(errors) => found.extend(errors),
        }
    }
    let nodes = types.iter_mut().filter_map(|(_, nodes)| nodes.as_mut());
    let nodes = nodes.map(|nodes| {
        let text = nodes.text_columns();
        (nodes.table_mut(), text)
    });
    let edges = fitted.iter_mut().map(|(_, edges)| {
        let text = edges.text_columns();
        (edges.table_mut(), text)
    });
    Table::read_as_text(&mut nodes.chain(edges).collect::<Vec<_>>());
    fitted
}

/// Returns the positions of the types of sources and destinations.
fn ends_of(edges: &EdgesPlan, names: &[&str]) -> [usize; 2] {
    [&edges.spec().from, &edges.spec().to].map(|end| {
        let end = end.as_deref().unwrap_or_default();
        let found = names.iter().position(|known| *known == end);
        found.expect("the ends of relations were checked")
    })
}

/// Returns the relation of a table, and the reverse relation if the job has it.
fn relations_of(name: String, edges: EdgesPlan, names: &[&str]) -> Vec<RelationPlan> {
    let [from, to] = ends_of(&edges, names);
    let (edges, reverse) = (Arc::new(edges.clone()), edges.spec().reverse.clone());
    let reverse = reverse.map(|reverse_name| RelationPlan {
        name: reverse_name,
        from: to,
        to: from,
        edges: Arc::clone(&edges),
        reversed: true,
    });
    let mut relations = vec![RelationPlan {
        name,
        from,
        to,
        edges,
        reversed: false,
    }];
    relations.extend(reverse);
    relations
}

impl GraphPlan {
    /// Makes the plan of an untyped graph.
    ///
    /// # Errors
    ///
    /// If the ends of edges are strings and the ids of nodes are integers, or the other way.
    pub fn untyped(nodes: NodesPlan, edges: EdgesPlan) -> Result<Self> {
        let mut types = [(String::new(), Some(nodes))];
        let mut found = Vec::new();
        let mut tables = fit_ids(vec![(String::new(), edges)], &mut types, &mut found);
        if let Some(error) = found.into_iter().next() {
            return Err(error);
        }
        let [(_, of_type)] = types;
        let of_type = of_type.expect("it is the table of the only type");
        let (_, fitted) = tables.pop().expect("it fits the nodes");
        Ok(Self {
            types: vec![TypePlan {
                name: String::new(),
                nodes: Arc::new(of_type),
            }],
            relations: vec![RelationPlan {
                name: String::new(),
                from: 0,
                to: 0,
                edges: Arc::new(fitted),
                reversed: false,
            }],
            pairs: None,
            in_graph: None,
        })
    }

    /// Tells whether nodes have types.
    pub fn is_typed(&self) -> bool {
        !self.types[0].name.is_empty()
    }

    /// Returns the position of a type; none if there is no such type.
    pub fn type_idx(&self, name: &str) -> Option<usize> {
        self.types.iter().position(|of_type| of_type.name == name)
    }

    /// Returns the position of the type of graphs, where graphs are the targets.
    pub fn graphs_type(&self) -> Option<usize> {
        self.in_graph.map(|relation| self.relations[relation].to)
    }

    /// Returns the position of a relation; none if there is no such relation.
    pub fn relation_idx(&self, name: &str) -> Option<usize> {
        self.relations.iter().position(|r| r.name == name)
    }

    /// Makes a negative weight an error in every table, as weighted sampling needs it.
    pub fn with_non_negative_weights(mut self) -> Self {
        let mut changed: Vec<(Arc<EdgesPlan>, Arc<EdgesPlan>)> = Vec::new();
        for relation in &mut self.relations {
            // A relation and its reverse keep one table.
            let known = changed
                .iter()
                .find(|(old, _)| Arc::ptr_eq(old, &relation.edges));
            let new = known.map(|(_, new)| Arc::clone(new)).unwrap_or_else(|| {
                let edges = relation.edges.as_ref().clone();
                Arc::new(edges.with_non_negative_weights())
            });
            changed.push((Arc::clone(&relation.edges), Arc::clone(&new)));
            relation.edges = new;
        }
        self
    }

    /// Returns the target type: graphs, or the one of the src ends of pairs, or the one that
    /// `flatten.target_type` names, else the one with labels.
    ///
    /// # Errors
    ///
    /// If there is no such type, or if none is named and not exactly one has labels. If one is named
    /// although there are pairs.
    pub fn target_type(&self, named: Option<&str>) -> Result<usize> {
        let wrong = |problem: String| SchemaError::Key {
            key: "flatten.target_type".to_owned(),
            problem,
        };
        let names: Vec<&str> = self.types.iter().map(|of| of.name.as_str()).collect();
        let allowed = names.join(", ");
        match named {
            Some(name) if self.pairs.as_ref().is_some_and(|of| self.types[of.from()].name != name) => {
                Err(wrong(
                    "is for models of nodes; with [input.pairs] the ends of pairs are the targets; \
                     leave it out"
                        .to_owned(),
                ))
            }
            Some(name) if self.graphs_type().is_some_and(|of| self.types[of].name != name) => {
                let problem = "is for models of nodes; with [input.graphs] graphs are the targets; \
                               leave it out";
                Err(wrong(problem.to_owned()))
            }
            _ if self.in_graph.is_some() => Ok(self.graphs_type().unwrap_or_default()),
            _ if self.pairs.is_some() => Ok(self.pairs.as_ref().map_or(0, |of| of.from())),
            Some(_) if !self.is_typed() => Err(wrong(
                "is for node types, as in [input.nodes.TYPE]; leave it out".to_owned(),
            )),
            Some(name) => self.type_idx(name).ok_or_else(|| {
                let meant = closest(name, &names).map(|name| format!("did you mean {name}? "));
                let meant = meant.unwrap_or_default();
                wrong(format!(
                    "is {name:?}, which is no node type; {meant}allowed are {allowed}"
                ))
            }),
            None if !self.is_typed() => Ok(0),
            None => {
                let labelled = |idx: &usize| self.types[*idx].nodes.has_label();
                let labelled: Vec<usize> = (0..names.len()).filter(labelled).collect();
                match labelled[..] {
                    [target] => Ok(target),
                    [] => Err(wrong(format!(
                        "is missing, and no node type has `label`; allowed are {allowed}"
                    ))),
                    _ => {
                        let labelled = labelled.into_iter().map(|idx| names[idx]);
                        let labelled = labelled.collect::<Vec<_>>().join(", ");
                        Err(wrong(format!(
                            "is missing, and several node types have `label`; allowed are {labelled}"
                        )))
                    }
                }
            }
        }
    }

    /// Describes the graph of these tables, with `label` as the labels of the target type.
    ///
    /// Only the rows show categories, gaps and self-loops; the graph has none here.
    pub fn meta(&self, target_type: usize, label: Option<LabelMeta>) -> GraphMeta {
        let types = self.types.iter().enumerate().map(|(idx, of_type)| {
            let is_target = idx == target_type;
            TypeMeta {
                name: of_type.name.clone(),
                id_type: of_type.nodes.id_type(),
                features: of_type.nodes.feature_meta(),
                columns: ColumnMeta::of_graph(
                    of_type.nodes.column_meta(Categories::default(), &[]),
                ),
                label: label.clone().filter(|_| is_target && self.pairs.is_none()),
                split: of_type.nodes.split_meta().filter(|_| is_target),
            }
        });
        let relations = self.relations.iter().map(|relation| RelationMeta {
            name: relation.name.clone(),
            from: relation.from,
            to: relation.to,
            edge_weight: relation.edges.has_weight(),
            edge_feature_dim: relation.edges.feature_dim(),
            self_loops: false,
        });
        GraphMeta {
            types: types.collect(),
            relations: relations.collect(),
            target_type,
            pairs: self.pairs.as_ref().map(|pairs| pairs.meta()),
        }
    }

    /// Returns fingerprints of the files of all tables; reads each file once.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprints(&self) -> Result<FileFingerprints> {
        let (node_sources, edge_sources) = (self.node_sources(), self.edge_sources());
        // Nodes and edges are read at the same time.
        let read = std::thread::scope(|scope| {
            let nodes = spawn_scoped(scope, "fingerprint", || {
                let sources = node_sources.iter();
                let read = sources.map(|source| source.types()[0].1.fingerprint());
                read.collect::<Result<Vec<String>>>()
            })?;
            let edges = edge_sources.iter().map(|of| of.tables()[0].fingerprint());
            let edges = edges.collect::<Result<Vec<String>>>();
            let nodes = nodes.join().expect("a panic has ended the process");
            Ok::<_, SchemaError>((nodes?, edges?))
        })?;
        let mut nodes = vec![String::new(); self.types.len()];
        for (source, files) in node_sources.iter().zip(&read.0) {
            source
                .types()
                .iter()
                .for_each(|(of, _)| nodes[*of].clone_from(files));
        }
        let mut edges = vec![String::new(); self.relations.len()];
        for (source, files) in edge_sources.iter().zip(&read.1) {
            source
                .relations()
                .iter()
                .for_each(|(of, _)| edges[*of].clone_from(files));
        }
        Ok(FileFingerprints { nodes, edges })
    }
}
