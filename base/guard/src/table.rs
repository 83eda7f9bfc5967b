//! The table of the instructions that may fault: one in each library and plug-in that has the routines.
//!
//! The routines leave entries in the section `vipl_guard`, which the linker joins. Nothing references them,
//! so the section must be retained (R); an entry holds distances from the entry itself, so that it needs no
//! relocations.

/// Instructions that may fault, and their fixup address. Each field is the distance from its own address.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    start: i32,
    end: i32,
    fixup: i32,
}

impl Entry {
    #[cfg(all(
        not(miri),
        any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
    ))]
    /// The fixup address, if the instruction at this address is one of these.
    pub(crate) fn landing(&self, at: usize) -> Option<usize> {
        let address = |field: &i32| {
            let here = std::ptr::from_ref(field).addr();
            here.wrapping_add_signed(*field as isize)
        };
        (address(&self.start)..address(&self.end))
            .contains(&at)
            .then(|| address(&self.fixup))
    }
}

// The entry of the routines that are functions; and the linker's names for the bounds of the section, of which each library
// has its own.
#[cfg(all(
    not(miri),
    any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
))]
core::arch::global_asm!(
    ".pushsection vipl_guard, \"aR\", @progbits",
    ".balign 4",
    ".long vipl_guard_first - ., vipl_guard_last - ., vipl_guard_last - .",
    ".popsection",
    ".hidden __start_vipl_guard",
    ".hidden __stop_vipl_guard",
);

/// The table of this library or plug-in, for [`register`](crate::register). Empty if the routines are
/// ordinary copies.
pub fn table() -> &'static [Entry] {
    #[cfg(all(
        not(miri),
        any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
    ))]
    {
        unsafe extern "C" {
            static __start_vipl_guard: [Entry; 0];
            static __stop_vipl_guard: [Entry; 0];
        }
        let (first, end) = (&raw const __start_vipl_guard, &raw const __stop_vipl_guard);
        let count = (end.addr() - first.addr()) / size_of::<Entry>();
        // SAFETY: the linker's bounds of the section; its entries are complete and never written.
        unsafe { std::slice::from_raw_parts(first.cast(), count) }
    }
    #[cfg(any(
        miri,
        not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64"))
    ))]
    &[]
}
