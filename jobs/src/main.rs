//! The program `graphflat`.

fn main() {}
