//! The `eds` binary: passes the arguments to the library and returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    event_data_service::cli::main()
}
