//! Holds the flatten engine against slow twins and against its invariants.
#![cfg(test)]

mod draw;
mod graph;
mod naive;
mod reference;
mod run;
mod tables;
