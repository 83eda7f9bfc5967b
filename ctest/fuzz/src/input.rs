//! An input as a source of choices. Past its end there are only zeroes.

/// The rest of an input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, fewer at the end.
    pub fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = later;
        now
    }

    fn word<const N: usize>(&mut self) -> [u8; N] {
        let mut word = [0; N];
        let taken = self.take(N);
        word[..taken.len()].copy_from_slice(taken);
        word
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        self.word::<1>()[0]
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.word())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.word())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.word())
    }

    /// True half of the time.
    pub fn coin(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u32) -> u32 {
        if end <= 256 {
            u32::from(self.u8()) % end
        } else {
            self.u32() % end
        }
    }

    /// A number that is likely to be near some limit.
    pub fn odd_u32(&mut self) -> u32 {
        const EDGES: [u32; 16] = [
            0,
            1,
            39,
            40,
            41,
            255,
            256,
            4095,
            4096,
            16_384,
            65_535,
            65_536,
            262_143,
            262_144,
            1 << 31,
            u32::MAX,
        ];
        match self.u8() {
            edge @ 0..=95 => EDGES[usize::from(edge % 16)],
            near @ 96..=159 => EDGES[usize::from(near % 16)]
                .wrapping_add(u32::from(self.u8()))
                .wrapping_sub(128),
            160..=223 => u32::from(self.u16()),
            _ => self.u32(),
        }
    }
}
