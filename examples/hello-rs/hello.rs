//! A server and a client, two processes, in Rust: the client sends a message and then writes to the server's memory by
//! RDMA.
//!
//! ```text
//!   server                                    client (the same program, with an argument)
//!     waits for a connection   ◀── connect ──
//!     sends where its memory is ────────────▶  receives that
//!     receives, looks at the memory ◀── RDMA Write, then a message ──
//! ```
//!
//! `hello-rs [DEVICE]`; the device is `via_lo` unless it is named.

use std::env;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

use vipl_client::{
    Access, Buffer, Code, Connected, Descriptor, Idle, Library, Nic, Ptag, Region, Reliability,
    Remote, Request, Vi, ViOptions,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
/// Bytes of the largest message.
const LARGEST: u32 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let device = arguments.first().map_or("via_lo", String::as_str);
    let nic = Nic::open(Library::open()?, device)?;
    match arguments.get(1) {
        Some(server) => client(&nic, server.parse()?),
        None => server(&nic, device),
    }
}

fn server(nic: &Nic, device: &str) -> Result<(), Box<dyn Error>> {
    let own = std::process::id();
    let mut other = Command::new(env::current_exe()?)
        .args([device, &own.to_string()])
        .spawn()?;
    let ptag = Ptag::new(nic)?;
    // Memory that peers may write; it is only ever copied from.
    let window = Region::new(&ptag, 4096, Access::WRITE)?;
    let idle = endpoint(&ptag)?;

    let request = Request::wait(nic, &nic.address(&own.to_ne_bytes()), PATIENCE)?;
    let vi = request.ok_or("no client came")?.accept(idle)?;
    send(&vi, &ptag, &window.remote(0, 64).to_message())?;
    // It arrives after the RDMA Write that came before it.
    let message = vi.receive_wait(PATIENCE)?.ok_or("no message came")?;
    let text = message.received();
    let mut written = [0; 12];
    window.read(0, &mut written);
    println!(
        "{} bytes: {}; by RDMA: {}",
        text.len(),
        String::from_utf8_lossy(text),
        String::from_utf8_lossy(&written)
    );
    match other.wait()?.success() {
        true => Ok(()),
        false => Err("the client failed".into()),
    }
}

fn client(nic: &Nic, server: u32) -> Result<(), Box<dyn Error>> {
    let ptag = Ptag::new(nic)?;
    let mut idle = endpoint(&ptag)?;
    let vi = loop {
        let there = nic.address(&server.to_ne_bytes());
        match idle.connect(&nic.address(b"client"), &there, PATIENCE) {
            Ok(connected) => break connected,
            // The server does not wait, yet. The error returns the VI.
            Err(refused) if refused.error.code() == Some(Code::NoMatch) => idle = refused.value,
            Err(refused) => return Err(refused.error.into()),
        }
    };
    let invitation = vi.receive_wait(PATIENCE)?.ok_or("no address came")?;
    let window = Remote::from_message(invitation.received().try_into()?);

    let mut write = descriptor(&ptag)?;
    write.data_mut(0)[..12].copy_from_slice(b"RDMA Write !");
    write.set_write(12, window);
    vi.post_send(write)?;
    vi.send_wait(PATIENCE)?.ok_or("the write takes too long")?;
    send(&vi, &ptag, b"hello from another process")?;
    // Dropping the VI ends the connection; what is complete still arrives.
    Ok(())
}

/// A VI with one receive posted. It may wait there before there is a connection, and must: the peer sends at once.
fn endpoint(ptag: &Ptag) -> Result<Vi<Idle>, vipl_client::Error> {
    let options = ViOptions {
        rdma_write: true,
        ..ViOptions::new(Reliability::DELIVERY, u64::from(LARGEST))
    };
    let vi = Vi::new(ptag, options, None, None)?;
    let mut receive = descriptor(ptag)?;
    receive.set_receive();
    vi.post_receive(receive)?;
    Ok(vi)
}

/// A descriptor with a buffer, and room for two segments: RDMA takes one for the peer's memory.
fn descriptor(ptag: &Ptag) -> Result<Descriptor, vipl_client::Error> {
    let mut descriptor = Descriptor::new(ptag, 2)?;
    descriptor.attach(Buffer::new(ptag, LARGEST)?);
    Ok(descriptor)
}

/// Sends a message and waits until its buffer is free.
fn send(vi: &Vi<Connected>, ptag: &Ptag, text: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut message = descriptor(ptag)?;
    message.data_mut(0)[..text.len()].copy_from_slice(text);
    message.set_send(text.len() as u32);
    vi.post_send(message)?;
    vi.send_wait(PATIENCE)?.ok_or("a send takes too long")?;
    Ok(())
}
