//! Processes that compute beside a measurement. They end with this one, however it ends.

use std::hint::black_box;
use std::process::{Child, Command, Stdio};

use vipl_tools::pin::Pair;
use vipl_tools::{Error, Result, sys};

/// Processes that compute; killed when dropped.
#[derive(Default)]
pub(crate) struct Company(Vec<Child>);

impl Company {
    /// Starts one on each of these processors.
    ///
    /// # Errors
    /// The system has no process left.
    pub(crate) fn start(cpus: &[usize]) -> Result<Self> {
        let mut company = Self::default();
        for cpu in cpus {
            let failed = |error| Error::io("starting a process that computes", error);
            let mut command = Command::new(std::env::current_exe().map_err(failed)?);
            command.arg("--computes").stdin(Stdio::null());
            command.stdout(Stdio::null());
            sys::start_on(&mut command, Some(*cpu));
            sys::end_with_this(&mut command);
            company.0.push(command.spawn().map_err(failed)?);
        }
        Ok(company)
    }

    /// One process on each of the two processors, or on each one there is.
    pub(crate) fn processors(pins: Option<Pair>) -> Vec<usize> {
        match pins {
            Some(Pair(first, second)) if first != second => vec![first, second],
            Some(Pair(only, _)) => vec![only],
            None => sys::allowed_cpus(),
        }
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// What such a process does, until it is killed.
pub(crate) fn compute() -> ! {
    let mut state = 0u64;
    loop {
        state = black_box(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    }
}
