//! `tern`: the command line.
fn main() {}
