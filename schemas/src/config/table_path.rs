//! The path of an input table as written: one file, directory or glob, or several.

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Greatest number of paths that the braces of one path stand for.
const ALTERNATIVES_MAX: usize = 10_000;

/// Paths of an input table as written, at least one. `{a,b}` in a path stands for each of its
/// alternatives.
///
/// # Examples
///
/// ```
/// use schemas::TablePath;
///
/// let path = TablePath::from("edges/dt=2026-11-{19,20}/*.parquet");
/// let days = ["edges/dt=2026-11-19/*.parquet", "edges/dt=2026-11-20/*.parquet"];
/// assert_eq!(path.alternatives().unwrap(), days);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePath {
    written: Vec<String>,
}

impl TablePath {
    /// Returns the paths as written.
    pub fn written(&self) -> &[String] {
        &self.written
    }

    /// Returns all paths, one for each alternative of braces.
    ///
    /// # Errors
    ///
    /// Names the path that stands for more than 10,000 others.
    pub fn alternatives(&self) -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        for path in &self.written {
            all.extend(expand_braces(path)?);
        }
        Ok(all)
    }
}

impl From<&str> for TablePath {
    fn from(path: &str) -> Self {
        Self::from(path.to_owned())
    }
}

impl From<String> for TablePath {
    fn from(path: String) -> Self {
        let written = vec![path];
        Self { written }
    }
}

impl std::fmt::Display for TablePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.written.join(", "))
    }
}

impl Serialize for TablePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.written.as_slice() {
            [path] => serializer.serialize_str(path),
            paths => paths.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TablePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathVisitor)
    }
}

struct PathVisitor;

impl<'de> Visitor<'de> for PathVisitor {
    type Value = TablePath;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a path, or a list of at least one path")
    }

    fn visit_str<E: de::Error>(self, path: &str) -> Result<TablePath, E> {
        Ok(TablePath::from(path))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut paths: A) -> Result<TablePath, A::Error> {
        let mut written = Vec::new();
        while let Some(path) = paths.next_element()? {
            written.push(path);
        }
        if written.is_empty() {
            return Err(de::Error::invalid_length(0, &self));
        }
        Ok(TablePath { written })
    }
}

/// Returns the paths that a path with braces stands for, in the order of the alternatives. Braces
/// without a comma are part of a name.
pub(crate) fn expand_braces(path: &str) -> Result<Vec<String>, String> {
    let mut open = vec![path.to_owned()];
    let mut done = Vec::new();
    // The last entry comes next in the order of alternatives.
    while let Some(next) = open.pop() {
        match first_braces(&next) {
            None => done.push(next),
            Some((before, alternatives, after)) => {
                let alternatives = alternatives.into_iter().rev();
                open.extend(alternatives.map(|text| format!("{before}{text}{after}")));
            }
        }
        if open.len() + done.len() > ALTERNATIVES_MAX {
            return Err(format!(
                "the braces of {path} stand for more than {ALTERNATIVES_MAX} paths"
            ));
        }
    }
    Ok(done)
}

/// Splits a path at its first braces that hold alternatives: before, alternatives, after.
fn first_braces(path: &str) -> Option<(&str, Vec<&str>, &str)> {
    let starts = path.match_indices('{').map(|(start, _)| start);
    starts.filter_map(|start| braces_at(path, start)).next()
}

fn braces_at(path: &str, start: usize) -> Option<(&str, Vec<&str>, &str)> {
    let mut depth = 0;
    let mut alternatives = Vec::new();
    let mut from = start + 1;
    for (at, symbol) in path.char_indices().skip_while(|(at, _)| *at < start) {
        match symbol {
            '{' => depth += 1,
            ',' if depth == 1 => {
                alternatives.push(&path[from..at]);
                from = at + 1;
            }
            '}' if depth == 1 => {
                if alternatives.is_empty() {
                    return None;
                }
                alternatives.push(&path[from..at]);
                return Some((&path[..start], alternatives, &path[at + 1..]));
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_their_alternatives() {
        let check = |path: &str, expected: &[&str]| {
            assert_eq!(expand_braces(path).unwrap(), expected, "{path}");
        };
        check("a", &["a"]);
        check("{a,b}", &["a", "b"]);
        check("x{a,b}y{1,2}", &["xay1", "xay2", "xby1", "xby2"]);
        check("{a,b{1,2}}", &["a", "b1", "b2"]);
        check("{a,}.parquet", &["a.parquet", ".parquet"]);
        check("{{a,b},c}", &["a", "b", "c"]);
        // These braces are part of a name.
        for name in ["{a}", "{a", "a}", "{", "}{", "a,b"] {
            check(name, &[name]);
        }
        check("{x}{a,b}", &["{x}a", "{x}b"]);
        let many = "{0,1,2,3,4,5,6,7,8,9}".repeat(5);
        let problem = expand_braces(&many).unwrap_err();
        assert!(problem.ends_with("more than 10000 paths"), "{problem}");
    }

    #[test]
    fn one_path_reads_as_a_list_of_one() {
        let read = |text: &str| serde_json::from_str::<TablePath>(text);
        assert_eq!(read("\"a\"").unwrap(), TablePath::from("a"));
        assert_eq!(read("[\"a\"]").unwrap(), TablePath::from("a"));
        let two = read("[\"a\", \"b\"]").unwrap();
        assert_eq!(two.written(), ["a", "b"]);
        for path in [TablePath::from("a"), two] {
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(read(&text).unwrap(), path);
        }
        for wrong in ["[]", "1", "[1]"] {
            let problem = read(wrong).unwrap_err().to_string();
            let expected = "expected a";
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
