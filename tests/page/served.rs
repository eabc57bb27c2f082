//! How the files of the page are served: with a policy that lets nothing else in, and once for each build.

use testing::http::{answer, get};
use testing::prelude::*;

use crate::support::node::Node;

fn named(text: &str) -> Vec<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    let files = quoted.filter(|it| it.starts_with("/page/") || it.starts_with("./"));
    files.map(|it| it.replace("./", "/page/")).collect()
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
