//! Cursors over frames with big-endian numbers.

use vipl_sys::crc::crc32c;

use super::{FRAME_MAX, Refused, TRAILER};

/// Parses a frame from front to back.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Refused> {
        if bytes > self.0.len() {
            return Err(Refused::Length);
        }
        let (front, rest) = self.0.split_at(bytes);
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Refused> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn truth(&mut self) -> Result<bool, Refused> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Refused::Value),
        }
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Refused> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refused> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refused> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Fails unless all bytes were read.
    pub(crate) fn end(&self) -> Result<(), Refused> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Refused::Length)
        }
    }
}

/// Formats a frame. The buffer has room for the longest one, so nothing here can fail.
pub(crate) struct Writer<'a> {
    room: &'a mut [u8; FRAME_MAX],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(room: &'a mut [u8; FRAME_MAX]) -> Self {
        Writer { room, at: 0 }
    }

    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.room[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.copy(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.copy(&value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.copy(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.copy(&value.to_be_bytes());
    }

    /// Writes length and CRC; returns the length.
    pub(crate) fn finish(mut self) -> usize {
        let length = self.at + TRAILER;
        self.room[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let crc = crc32c(&self.room[..self.at]);
        self.u32(crc);
        length
    }
}
