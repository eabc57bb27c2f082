//! A node of this build and its sender. [`testing`] contains everything that does not depend on a node.

pub(crate) mod load;
pub(crate) mod node;
