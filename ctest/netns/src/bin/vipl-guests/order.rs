//! What is said between the guests, over the second cable.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Where guest 1 takes orders.
pub(crate) const ADDRESS: &str = "10.8.0.2:4009";
/// How long guest 1 may take to boot, and to answer.
const PATIENCE: Duration = Duration::from_secs(600);

/// The first text of an order.
pub(crate) mod kind {
    /// The side 1 of a program: run, number of arguments, program and arguments, settings.
    pub(crate) const SIDE: &str = "side";
    /// A command of the shell. Its answer is the status, and what it has printed.
    pub(crate) const SHELL: &str = "shell";
    /// The end.
    pub(crate) const END: &str = "end";
}

/// What comes back from a side.
pub(crate) mod tag {
    /// For the other side.
    pub(crate) const LINK: u8 = b'L';
    /// Of its standard output.
    pub(crate) const OUTPUT: u8 = b'O';
    /// Of its standard error.
    pub(crate) const ERROR: u8 = b'E';
    /// It has ended, with this status of one byte.
    pub(crate) const END: u8 = b'X';
}

/// Connects with guest 1, which may not have booted yet.
pub(crate) fn connect() -> io::Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(ADDRESS) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend(bytes);
}

fn get_number(from: &mut impl Read) -> io::Result<usize> {
    let mut number = [0; 4];
    from.read_exact(&mut number)?;
    Ok(u32::from_le_bytes(number) as usize)
}

fn get_bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; get_number(from)?];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Sends texts.
pub(crate) fn put(mut to: impl Write, texts: &[String]) -> io::Result<()> {
    let mut bytes = (texts.len() as u32).to_le_bytes().to_vec();
    for text in texts {
        put_bytes(&mut bytes, text.as_bytes());
    }
    to.write_all(&bytes)
}

/// Receives texts.
pub(crate) fn get(mut from: impl Read) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for _ in 0..get_number(&mut from)? {
        let bytes = get_bytes(&mut from)?;
        texts.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(texts)
}

/// Sends something of a side.
pub(crate) fn put_piece(mut to: impl Write, tag: u8, bytes: &[u8]) -> io::Result<()> {
    let mut piece = vec![tag];
    put_bytes(&mut piece, bytes);
    to.write_all(&piece)
}

/// Receives it.
pub(crate) fn get_piece(mut from: impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut tag = [0];
    from.read_exact(&mut tag)?;
    Ok((tag[0], get_bytes(&mut from)?))
}
