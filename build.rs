//! Tells the code which commit it is built from, as `BUILT_FROM`: what `BUILD_COMMIT` says (for a build without the
//! repository, as in a container), or what is checked out here, or "unknown".
//!
//! Neither begins with `EDS_`: cargo leaves the first in the environment of what it runs, where a node would take it for a
//! misspelt key.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    let given = env::var("BUILD_COMMIT").ok().filter(|it| !it.is_empty());
    let commit = given.or_else(checked_out);
    println!("cargo::rustc-env=BUILT_FROM={}", commit.as_deref().unwrap_or("unknown"));
}

/// The commit of the checkout whose top this directory is; one that merely lies around it says nothing of this code.
fn checked_out() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != env::current_dir().ok()?.canonicalize().ok()? {
        return None;
    }
    // The log of HEAD grows with each commit and checkout. A file that is not there would have it built each time.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let answer = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| answer.trim().to_owned())
}
