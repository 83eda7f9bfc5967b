//! The Virtual Interface Provider Library (VIPL) for Rust programs: user-level communication between processes of one
//! host or of several, with messages, RDMA and completion queues.
//!
//! ```
//! use std::time::Duration;
//! use vipl_client::{Buffer, Code, Descriptor, Library, Nic, Ptag, Reliability, Request, Vi, ViOptions};
//!
//! const WAIT: Option<Duration> = Some(Duration::from_secs(10));
//!
//! /// An idle VI with one receive of 64 bytes posted.
//! fn vi(nic: &Nic) -> Result<(Vi<vipl_client::Idle>, Ptag), vipl_client::Error> {
//!     let ptag = Ptag::new(nic)?;
//!     let vi = Vi::new(&ptag, ViOptions::new(Reliability::DELIVERY, 4096), None, None)?;
//!     let mut receive = Descriptor::new(&ptag, 1)?;
//!     receive.attach(Buffer::new(&ptag, 64)?);
//!     receive.set_receive();
//!     vi.post_receive(receive)?;
//!     Ok((vi, ptag))
//! }
//!
//! fn server(nic: &Nic) -> Result<String, vipl_client::Error> {
//!     let (vi, _) = vi(nic)?;
//!     let request = Request::wait(nic, &nic.address(b"hello"), WAIT)?.expect("a client within 10 s");
//!     let vi = request.accept(vi)?;
//!     let receive = vi.receive_wait(WAIT)?.expect("a message within 10 s");
//!     Ok(String::from_utf8_lossy(receive.received()).into_owned())
//! }
//!
//! fn client(nic: &Nic) -> Result<Vi<vipl_client::Connected>, vipl_client::Error> {
//!     let (mut idle, ptag) = vi(nic)?;
//!     let connected = loop {
//!         match idle.connect(&nic.address(b"client"), &nic.address(b"hello"), WAIT) {
//!             Ok(connected) => break connected,
//!             // No server waits there, yet.
//!             Err(refused) if refused.error.code() == Some(Code::NoMatch) => idle = refused.value,
//!             Err(refused) => return Err(refused.into()),
//!         }
//!     };
//!     let mut send = Descriptor::new(&ptag, 1)?;
//!     send.attach(Buffer::new(&ptag, 64)?);
//!     send.data_mut(0)[..6].copy_from_slice(b"hello!");
//!     send.set_send(6);
//!     connected.post_send(send)?;
//!     connected.send_wait(WAIT)?.expect("complete within 10 s");
//!     Ok(connected)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let built = vipl_ctest::library_dir().join("libvipl.so.1");
//! # // SAFETY: no other thread yet.
//! # unsafe { std::env::set_var("VIPL_LIBRARY", built) };
//! let library = Library::open()?;
//! let nic = Nic::open(library, "via_lo")?;
//! // As well two processes, or two hosts with `tulip:eth0` and the server's `nic.attributes().address`.
//! let received = std::thread::scope(|scope| {
//!     let server = scope.spawn(|| server(&nic));
//!     let client = client(&nic)?; // Dropping it would end the connection.
//!     let received = server.join().expect("no panic");
//!     drop(client);
//!     received
//! })?;
//! assert_eq!(received, "hello!");
//! # Ok(())
//! # }
//! ```
//!
//! # Objects
//!
//! ```text
//!   Library ── Nic ── Ptag ── Buffer, Region     memory
//!               │      ├───── Descriptor         what is to be transferred, with its buffers; later its result
//!               │      └───── Vi                 two queues of descriptors, and a connection
//!               └─ Cq, Request, on_error         completions of many VIs; clients; asynchronous errors
//! ```
//!
//! Each holds what it was made from, and undoes itself when it is dropped: a VI is disconnected, emptied and destroyed,
//! memory is deregistered, and the NIC is closed last. A [`Library`] is opened once, and never closed.
//!
//! The states of a VI are types. A send can only be posted on a `Vi<Connected>`, which [`Vi::connect`] or
//! [`Request::accept`] make of a `Vi<Idle>`, and of which [`Vi::disconnect`] makes a `Vi<Idle>` again. The peer may end a
//! connection at any time; that is an error of the next completion, and no state of its own.
//!
//! # Memory
//!
//! Nothing safe can touch memory while the library may write to it:
//!
//! - A [`Buffer`] has one owner. Attached to a [`Descriptor`], it goes with it; posted, both belong to the library until
//!   [`Vi::send_done`], [`Vi::receive_done`] or their like return them, also with an error. Peers have no RDMA to a buffer.
//! - A [`Region`] is open to RDMA of peers, as its [`Access`] says. It is only copied from and to, by one thread, and is
//!   never the memory of a descriptor.
//! - [`Region::scoped`] registers borrowed memory while a closure runs. There is no registration with a lifetime: a value
//!   can be leaked (`mem::forget`), and a peer would write to memory after the borrow.
//! - A VI, a region or a descriptor that is leaked leaves its memory mapped and registered until the process ends. So
//!   does one that the library refuses to let go, as in the child of a fork.
//!
//! # Threads
//!
//! All objects are `Send`; all but [`Region`] are `Sync`. The handles behind them are plain values, every function of the
//! library may be called in every thread at the same time (`ThreadSafe` of VipQueryNic, which [`Nic::open`] checks), and
//! what a descriptor is for has one owner. Two threads that take descriptors off one queue get different ones. Handlers run
//! in a thread of the library, one at a time for each NIC.
//!
//! # What is unsafe
//!
//! - [`Region::from_raw`]: registers memory that the program answers for.
//! - [`Nic::open_unsynchronized`]: another VIPL, which permits one thread only.
//! - [`RawVi::post_send`] and [`RawVi::post_receive`], and the table of [`raw`] functions.
//!
//! Opening a library runs its code, as always; `VIPL_LIBRARY` and the places that [`Search`] names are trusted. A peer is
//! not: what it writes by RDMA are bytes in a region, and a [`Remote`] that it sends is checked by its own library.
//!
//! # Errors
//!
//! [`Error`] names the function and its code; its source is the [`Code`] with its meaning. The library's log (standard
//! error, or `VIPL_LOG`) has the reason in detail: what is wrong with an argument, or what a limit is. Calls that use up a
//! value give it back with the error: [`Returned`].
//!
//! # Not here
//!
//! Handlers for the next completion of one queue (VipSendNotify, VipRecvNotify; completion queues have [`Cq::notify`]),
//! changing attributes of VIs and memory, and sends of borrowed memory.
//!
//! # Linking
//!
//! [`Library::open`] loads the library at run time. With the feature `link` the program is linked with `-lvipl`, and
//! `Library::linked` gives that one.

#![expect(
    clippy::result_large_err,
    reason = "an error returns what the call was given, which is no larger than the success"
)]

mod address;
mod connection;
mod cq;
mod descriptor;
mod entry;
mod error;
mod events;
mod handle;
mod library;
mod memory;
mod nic;
mod options;
pub mod raw;
mod status;
mod vi;

pub use address::{Address, host_socket, host_text, parse_host};
pub use connection::{NotAccepted, Request};
pub use cq::Cq;
pub use descriptor::Descriptor;
pub use entry::{Entry, ViId};
pub use error::{AsyncCode, Code, Error, Result, Returned};
pub use events::AsyncError;
pub use handle::{RawVi, ViState, ViStatus};
pub use library::{Library, Search};
pub use memory::{Access, Buffer, Ptag, Region, Remote};
pub use nic::{Attributes, Nic};
pub use options::{Reliability, ViOptions};
pub use status::{Fault, Status};
pub use vi::{Connected, Idle, Pending, Taken, Vi};
