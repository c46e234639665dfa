//! Changes of random graphs: what they reach, compared with slow twins; and changes that are
//! refused.
#![cfg(test)]

mod case;
mod night;
mod pairs;
mod reached;
mod refused;
mod twin;
