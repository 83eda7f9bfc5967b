//! A simulated world for the engine: two hosts with memory and queues ([`host`]), a network with faults
//! between them ([`network`]), both in virtual time and from one seed.
#![allow(dead_code, unreachable_pub)] // each test uses what it needs

pub mod host;
pub mod network;
pub mod rival;
pub mod script;
pub mod world;

use vipl_sys::random::Random;

/// One of a list that is not empty.
pub fn pick<T: Copy>(random: &mut Random, list: &[T]) -> T {
    random.pick(list).expect("the list is not empty")
}
