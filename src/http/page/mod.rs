//! The status page at `/`, whose files are embedded in the binary. The page may send requests only to the node itself.

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_64;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The path, media type and content of each file.
const FILES: [(&str, &str, &str); 9] = [
    ("/", HTML, include_str!("page.html")),
    ("/page/page.css", CSS, include_str!("page.css")),
    ("/page/icon.svg", SVG, include_str!("icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("main.js")),
    ("/page/ask.js", SCRIPT, include_str!("ask.js")),
    ("/page/counts.js", SCRIPT, include_str!("counts.js")),
    ("/page/dom.js", SCRIPT, include_str!("dom.js")),
    ("/page/plot.js", SCRIPT, include_str!("plot.js")),
    ("/page/status.js", SCRIPT, include_str!("status.js")),
];
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The entity tag. It is the same for all files, so that a browser never combines files from different builds.
static ETAG: LazyLock<String> = LazyLock::new(|| {
    let all: String = FILES.iter().map(|(_, _, content)| *content).collect();
    format!("\"{:016x}\"", xxh3_64(all.as_bytes()))
});

pub(super) fn router() -> Router {
    FILES.iter().fold(Router::new(), |router, &(path, kind, content)| {
        router.route(path, get(async move |asked: HeaderMap| answer(&asked, kind, content)))
    })
}

fn answer(asked: &HeaderMap, kind: &'static str, content: &'static str) -> Response {
    let head = [
        (header::CONTENT_TYPE, kind),
        // Browsers must revalidate their copy of a file on each use, and get a 304 response if the copy is current.
        (header::CACHE_CONTROL, "no-cache"),
        (header::ETAG, ETAG.as_str()),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let has = asked.get_all(header::IF_NONE_MATCH).iter();
    let mut has = has.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(','));
    if has.any(|tag| tag.trim().trim_start_matches("W/") == ETAG.as_str()) {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    (head, content).into_response()
}
