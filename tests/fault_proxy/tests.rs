//! The proxy in front of a server that records its requests.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::Instant;

use super::*;

/// A server that records the bytes of each request and answers `hello world`, except to HEAD.
struct Upstream {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

fn upstream() -> Upstream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read_request(&mut stream);
            let body = if request.starts_with("HEAD") {
                ""
            } else {
                "hello world"
            };
            seen.lock().unwrap().push(request);
            let head = "HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: 11\r\n\r\n";
            stream.write_all(format!("{head}{body}").as_bytes()).ok();
        }
    });
    Upstream { url, requests }
}

/// Reads the head and, for `content-length: 4`, the four bytes of the body.
fn read_request(stream: &mut std::net::TcpStream) -> String {
    let mut request = Vec::new();
    let mut byte = [0];
    let ended = |read: &[u8]| {
        let text = String::from_utf8_lossy(read).to_lowercase();
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.len());
        body.is_some_and(|length| length == 4 || !text.contains("content-length: 4"))
    };
    while !ended(&request) && stream.read(&mut byte).unwrap() == 1 {
        request.push(byte[0]);
    }
    String::from_utf8(request).unwrap()
}

/// Sends one request; returns all bytes of the answer.
fn send(proxy: &FaultProxy, request: &str) -> String {
    let mut stream = std::net::TcpStream::connect(&proxy.url()["http://".len()..]).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).ok(); // some faults end the connection
    String::from_utf8(reply).unwrap()
}

const GET: &str = "GET /b/k?x=%2F HTTP/1.1\r\nHost: signed.example:1\r\nConnection: close\r\n\r\n";
const HEAD: &str = "HEAD /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const PUT: &str =
    "PUT /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody";

fn always(fault: Fault) -> Plan {
    let stall = Duration::from_millis(300);
    Plan {
        per_million: 1_000_000,
        faults: vec![fault],
        stall,
        ..Plan::new(1)
    }
}

/// Sends one request under `fault`; checks the reply, the number of requests that arrived, and the
/// fault counted.
fn check(fault: Fault, request: &str, expected: &str, arrived: usize, counted: Fault) {
    let upstream = upstream();
    let proxy = FaultProxy::start(&upstream.url, always(fault));
    let reply = send(&proxy, request);
    assert!(reply.starts_with(expected), "{fault:?}: {reply:?}");
    assert_eq!(
        expected.is_empty(),
        reply.is_empty(),
        "{fault:?}: {reply:?}"
    );
    assert_eq!(
        upstream.requests.lock().unwrap().len(),
        arrived,
        "{fault:?}"
    );
    assert_eq!(
        (proxy.count(counted), proxy.num_faults()),
        (1, 1),
        "{fault:?}"
    );
    assert_eq!(proxy.num_requests(), 1);
}

#[test]
fn requests_pass_as_they_were_signed() {
    let upstream = upstream();
    let proxy = FaultProxy::start(
        &upstream.url,
        Plan {
            per_million: 0,
            ..Plan::new(1)
        },
    );
    assert!(send(&proxy, GET).ends_with("\r\n\r\nhello world"));
    assert!(send(&proxy, PUT).ends_with("\r\n\r\nhello world"));
    assert!(send(&proxy, HEAD).ends_with("\r\n\r\n"));
    let requests = upstream.requests.lock().unwrap();
    assert!(
        requests[0].starts_with("GET /b/k?x=%2F HTTP/1.1\r\n"),
        "{}",
        requests[0]
    );
    assert!(
        requests[0].contains("host: signed.example:1\r\n"),
        "{}",
        requests[0]
    );
    assert!(requests[1].ends_with("\r\n\r\nbody"), "{}", requests[1]);
    assert_eq!((proxy.num_requests(), proxy.num_faults()), (3, 0));
}

#[test]
fn each_fault_does_what_it_says() {
    use Fault::*;
    check(LostRequest, PUT, "", 0, LostRequest);
    check(LostReply, PUT, "", 1, LostReply);
    check(SlowDown, PUT, "HTTP/1.1 503 ", 0, SlowDown);
    check(InternalError, GET, "HTTP/1.1 500 ", 0, InternalError);
    check(TruncatedBody, GET, "HTTP/1.1 200 ", 1, TruncatedBody);
    check(TruncatedBody, HEAD, "", 1, LostReply);
    check(Stall, GET, "HTTP/1.1 200 ", 1, Stall);
    check(Stall, HEAD, "HTTP/1.1 200 ", 1, Stall);
    check(Delay, GET, "HTTP/1.1 200 ", 1, Delay);
}

#[test]
fn a_truncated_body_promises_its_whole_length() {
    let upstream = upstream();
    let proxy = FaultProxy::start(&upstream.url, always(Fault::TruncatedBody));
    let reply = send(&proxy, GET);
    assert!(reply.contains("content-length: 11\r\n"), "{reply}");
    assert!(reply.ends_with("\r\n\r\nhello"), "{reply}");
}

#[test]
fn stalls_and_delays_lose_nothing() {
    for (fault, at_least_ms) in [(Fault::Stall, 300), (Fault::Delay, 50)] {
        let upstream = upstream();
        let proxy = FaultProxy::start(&upstream.url, always(fault));
        let start = Instant::now();
        assert!(
            send(&proxy, GET).ends_with("\r\n\r\nhello world"),
            "{fault:?}"
        );
        assert!(
            start.elapsed() >= Duration::from_millis(at_least_ms),
            "{fault:?}"
        );
    }
}

#[test]
fn an_absent_server_is_no_fault() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let proxy = FaultProxy::start(
        &url,
        Plan {
            per_million: 0,
            ..Plan::new(1)
        },
    );
    assert!(send(&proxy, GET).starts_with("HTTP/1.1 502 "));
}

#[test]
fn one_request_in_twenty_fails_and_in_every_way() {
    let faults = |seed| {
        let plan = Plan::new(seed);
        (0..100_000)
            .map(|number| plan.fault(number))
            .collect::<Vec<_>>()
    };
    let first = faults(7);
    assert_eq!(first, faults(7));
    assert_ne!(first, faults(8));
    assert!((4_500..5_500).contains(&first.iter().flatten().count()));
    for fault in Fault::ALL {
        let count = first.iter().filter(|drawn| **drawn == Some(fault)).count();
        assert!((600..830).contains(&count), "{fault:?}: {count}");
    }
    for number in 0..1_000 {
        assert!((50..=500).contains(&Plan::new(7).delay(number).as_millis()));
    }
}

#[test]
fn a_refused_upload_is_read_to_its_end() {
    let upstream = upstream();
    let proxy = FaultProxy::start(&upstream.url, always(Fault::SlowDown));
    let body = "x".repeat(32 << 20);
    let head = "PUT /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    assert!(send(&proxy, &request).starts_with("HTTP/1.1 503 "));
}

#[test]
fn a_held_request_arrives_when_it_is_released() {
    let upstream = upstream();
    let proxy = FaultProxy::start(&upstream.url, Plan::hold("/k"));
    let client = std::thread::spawn({
        let url = proxy.url().to_owned();
        move || {
            let mut stream = std::net::TcpStream::connect(&url["http://".len()..]).unwrap();
            stream.write_all(PUT.as_bytes()).unwrap();
            stream
        }
    });
    let stream = client.join().unwrap();
    while !proxy.is_holding() {
        std::thread::yield_now();
    }
    assert!(upstream.requests.lock().unwrap().is_empty());
    drop(stream);
    assert_eq!(proxy.release(), StatusCode::OK);
    assert!(upstream.requests.lock().unwrap()[0].ends_with("body"));
}
