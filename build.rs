//! Sets `BUILT_FOR` to the target of the build, and `BUILT_FROM` to its commit: `BUILD_COMMIT` (for a build without the
//! repository, as in a container), or the commit that is checked out, or "unknown".
//!
//! None begins with `EDS_`: cargo leaves the first in the environment of programs that it runs, and a node would refuse it as a
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
    println!("cargo::rustc-env=BUILT_FOR={}", env::var("TARGET").unwrap_or_default());
}

/// Returns the commit of the checkout with this directory as its top; another checkout around it has other code.
fn checked_out() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != env::current_dir().ok()?.canonicalize().ok()? {
        return None;
    }
    // The log of HEAD grows with each commit and checkout. A missing file would cause a build each time.
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
