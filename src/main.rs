//! The `eds` binary: hands the arguments to the library and its verdict to the shell.

use std::process::ExitCode;

fn main() -> ExitCode {
    event_data_service::cli::main()
}
