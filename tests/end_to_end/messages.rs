//! Error messages of nodes and commands name their subject, and each cause only once.

use crate::prelude::*;

#[track_caller]
fn stderr_of(arguments: &[&str], code: i32) -> String {
    let output = eds().args(arguments).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn error_names_its_cause_once_with_the_address() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (http, input) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    let (http, input) = (http.to_string(), input.to_string());
    let holder = format!("process {} (", std::process::id());
    for command in [&["run"][..], &["relay", "--to", "127.0.0.1:9", "--passthrough", "none:"]] {
        for (listen, http, whom, key) in [
            (input.as_str(), "127.0.0.1:0", &input, "input.listen"),
            ("127.0.0.1:0", http.as_str(), &http, "http.listen"),
        ] {
            let arguments = [command, &["--listen", listen, "--http", http]].concat();
            let text = stderr_of(&arguments, 1);
            let last = text.lines().last().unwrap();
            assert_contains(last, [whom, key, &holder]);
            assert_eq!(last.matches("in use").count(), 1, "{last}");
        }
    }
    let text = stderr_of(&["send", "--to", "127.0.0.1", "--events", "1"], 1);
    assert_eq!(text.matches("invalid socket address").count(), 1, "{text}");
}
