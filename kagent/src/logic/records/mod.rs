//! Records that several tables know of: kept and taken in one step, so that the tables agree.

mod calls;
mod connections;
mod exchanges;
mod nics;
