//! Builds the library that sets the clock of a process (`src/clock.c`), with the C compiler that also links Rust programs.

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/clock.c");
    println!("cargo:rerun-if-env-changed=CC");
    let library = Path::new(&env::var("OUT_DIR")?).join("libclock.so");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"])
        .args(["src/clock.c", "-o"])
        .arg(&library)
        .status();
    let is_built = status.is_ok_and(|status| status.success());
    assert!(is_built, "cannot compile src/clock.c with {}", compiler.display());
    println!("cargo:rustc-env=CLOCK_LIBRARY={}", library.display());
    Ok(())
}
