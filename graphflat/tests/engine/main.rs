//! Compares the flatten engine with slow twins, and checks its invariants.
#![cfg(test)]

mod draw;
mod errors;
mod graph;
mod independence;
mod lawful;
mod naive;
mod pairs;
mod paper;
mod reference;
mod resume;
mod run;
mod stream;
mod tables;
mod typed;
