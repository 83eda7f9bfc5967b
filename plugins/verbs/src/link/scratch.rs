//! Memory of a connection that the device uses beside the application's: the heads of messages, and a key of the peer.

use std::io;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::{HEAD, Head, WINDOW};
use crate::ibv::{IBV_ACCESS_LOCAL_WRITE, ibv_sge};
use crate::pages::Registered;
use crate::tags::{Key, Tag};

const HEADS: usize = WINDOW as usize * HEAD as usize;
/// Heads of sends, heads of receives, and the key.
const RECEIVES_AT: usize = HEADS;
const KEY_AT: usize = 2 * HEADS;
const BYTES: usize = KEY_AT + size_of::<Key>();

pub(super) struct Scratch(Registered);

impl Scratch {
    pub(super) fn new(tag: &Arc<Tag>) -> io::Result<Scratch> {
        Registered::new(tag.domain(), BYTES, IBV_ACCESS_LOCAL_WRITE).map(Scratch)
    }

    #[inline(always)]
    fn segment(&self, at: usize, length: u32) -> ibv_sge {
        ibv_sge {
            addr: self.0.pages().address() + at as u64,
            length,
            lkey: self.0.memory().local_key(),
        }
    }

    #[inline(always)]
    fn at(number: u32) -> usize {
        (number % WINDOW) as usize * HEAD as usize
    }

    /// Writes the head of a send.
    #[inline(always)]
    pub(super) fn put(&self, number: u32, head: Head) {
        let words: [u64; 2] = zerocopy::transmute!(head);
        let at = self.0.pages().base().wrapping_add(Self::at(number));
        let at = at.cast::<u64>();
        // Two words: a volatile structure would pass through the stack.
        // SAFETY: inside the pages and aligned; the device does not read it before the post.
        unsafe {
            at.write_volatile(words[0]);
            at.add(1).write_volatile(words[1]);
        }
    }

    /// The segment of the head of a send.
    #[inline(always)]
    pub(super) fn head(&self, number: u32) -> ibv_sge {
        self.segment(Self::at(number), HEAD)
    }

    /// The segment for the head of a receive.
    #[inline(always)]
    pub(super) fn room(&self, number: u32) -> ibv_sge {
        self.segment(RECEIVES_AT + Self::at(number), HEAD)
    }

    /// The head that the device has put there.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Head {
        let at = RECEIVES_AT + Self::at(number);
        // SAFETY: inside the pages and aligned; every bit pattern is a head.
        unsafe { self.0.pages().base().add(at).cast::<Head>().read_volatile() }
    }

    /// The segment for a key of the peer.
    pub(super) fn key_room(&self) -> ibv_sge {
        self.segment(KEY_AT, size_of::<Key>() as u32)
    }

    /// The key that the device has put there.
    pub(super) fn key(&self) -> Key {
        let mut key = Key::default();
        // SAFETY: inside the pages; every bit pattern is a key.
        unsafe {
            let from = self.0.pages().base().add(KEY_AT);
            std::ptr::copy_nonoverlapping(from, key.as_mut_bytes().as_mut_ptr(), size_of::<Key>());
        }
        key
    }
}
