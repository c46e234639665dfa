//! A server whose answers a test defines.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Method, path and query, such as `GET /b?list-type=2`.
    pub(crate) line: String,
    /// Lines of the head, in lower case.
    pub(crate) head: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// An answer: status, lines of the head, body.
pub(crate) type Reply = (u16, Vec<String>, Vec<u8>);

/// Serves until the process ends.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a server on a free port.
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                std::thread::spawn(move || serve(stream.unwrap(), &*answer, &seen));
            }
        });
        Self { url, requests }
    }

    pub(crate) fn num_requests(&self, start: &str) -> usize {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .filter(|one| one.line.starts_with(start))
            .count()
    }
}

/// Answers one request, and closes the connection.
fn serve(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Reply, seen: &Mutex<Vec<Request>>) {
    let Some(request) = read(&mut stream) else {
        return;
    };
    seen.lock().unwrap().push(request.clone());
    let (status, head, body) = answer(&request);
    let mut text = format!("HTTP/1.1 {status} Test\r\nconnection: close\r\n");
    let is_head = request.line.starts_with("HEAD");
    if !head.iter().any(|line| line.starts_with("content-length")) {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.iter()
        .for_each(|line| text.push_str(&format!("{line}\r\n")));
    text.push_str("\r\n");
    stream.write_all(text.as_bytes()).ok();
    if !is_head {
        stream.write_all(&body).ok();
    }
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let line = lines.remove(0).trim_end_matches(" HTTP/1.1").to_owned();
    let head: Vec<String> = lines.iter().map(|text| text.to_lowercase()).collect();
    let length = head
        .iter()
        .find_map(|text| text.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Request { line, head, body })
}
