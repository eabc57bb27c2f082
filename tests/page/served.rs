//! Tests that the page's files are served with a strict content security policy, and cached until the next build.

use testing::http::{answer, get};
use testing::prelude::*;

use crate::support::node::Node;

fn named(text: &str) -> Vec<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    let files = quoted.filter(|path| path.starts_with("/page/") || path.starts_with("./"));
    files.map(|path| path.replace("./", "/page/")).collect()
}

#[test]
fn files_are_served_with_a_strict_policy_and_cached() {
    let node = Node::start("one", &[("store.url", "memory:"), ("output.url", "stdout:")]);
    let mut left = vec!["/".to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(path) = left.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let file = node.get(&path).unwrap();
        assert_eq!(file.status, 200, "{path}");
        let header = |name: &str| file.headers[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert_contains(
            &policy,
            [
                "default-src 'none'",
                "script-src 'self'",
                "style-src 'self'",
                "frame-ancestors 'none'",
            ],
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("cache-control"), "no-cache");
        let again = get(node.http(), &path).header("if-none-match", header("etag"));
        let again = answer(again).unwrap();
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        assert!(again.headers.contains_key("content-security-policy"));
        left.extend(named(&file.body));
    }
    assert!(seen.len() >= 9, "{seen:?}");
}
