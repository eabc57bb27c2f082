//! A node of this build, and its sender; [`testing`] has everything that needs no node.

pub(crate) mod load;
pub(crate) mod node;
