//! Reads the hosts file, which lists the addresses of a job's processes.

use crate::ClusterError;
use std::path::Path;

/// Reads the addresses of the processes: one `host:port` a line; `#` begins a comment.
///
/// # Errors
///
/// If the file cannot be read, a line is not an address, or an address is listed twice.
pub fn read_hosts(path: &Path) -> Result<Vec<String>, ClusterError> {
    let text = std::fs::read_to_string(path).map_err(|source| ClusterError::Read {
        path: path.to_owned(),
        source,
    })?;
    let wrong = |problem: String| ClusterError::Hosts {
        path: path.to_owned(),
        problem,
    };
    let mut hosts: Vec<String> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let host = line.split('#').next().unwrap_or_default().trim();
        if host.is_empty() {
            continue;
        }
        let port = host.rsplit_once(':').filter(|(name, _)| !name.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            let problem = format!("line {number} is `{host}`; allowed is host:port");
            return Err(wrong(problem));
        }
        if hosts.iter().any(|earlier| earlier == host) {
            return Err(wrong(format!("line {number}: {host} is listed twice")));
        }
        hosts.push(host.to_owned());
    }
    if hosts.is_empty() {
        return Err(wrong(
            "names no process; a host:port a line is needed".to_owned(),
        ));
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_hosts(file.path()).map_err(|error| {
            let said = error.to_string();
            said.split_once(": ").unwrap().1.to_owned()
        })
    }

    #[test]
    fn hosts_stand_a_line_each() {
        let found = hosts("a.example:7000 # the first\n\n# none\n10.0.0.2:7000\n[::1]:7001\n");
        let expected = ["a.example:7000", "10.0.0.2:7000", "[::1]:7001"];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn lines_that_are_no_hosts_are_named() {
        for (text, problem) in [
            ("a:1\nb\n", "line 2 is `b`; allowed is host:port"),
            ("a:0\n", "line 1 is `a:0`; allowed is host:port"),
            (":70\n", "line 1 is `:70`; allowed is host:port"),
            ("a:1\n#\na:1", "line 3: a:1 is listed twice"),
            ("# a:1\n", "names no process; a host:port a line is needed"),
        ] {
            assert_eq!(hosts(text).unwrap_err(), problem);
        }
        let missing = read_hosts(Path::new("/nowhere/hosts.txt")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /nowhere/hosts.txt");
    }
}
