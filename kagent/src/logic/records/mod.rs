//! Insertion and removal of records that several tables refer to, in one step.

mod calls;
mod connections;
mod exchanges;
mod nics;
