//! Nothing: a package must have a library or a program. The targets are in `tests/fuzz` of the service.

// Whatever is built for a fuzzer must be linked with it.
#[cfg(test)]
use bolero as _;
