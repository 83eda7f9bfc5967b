//! A data segment, as `board.rs` names it.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) handle: u32,
    pub(crate) length: u32,
}
