//! Carries out orders in guest 1.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::order::{self, kind, tag};

/// Serves until the order to end.
pub(crate) fn run() -> ExitCode {
    let listener = match TcpListener::bind("0.0.0.0:4009") {
        Ok(listener) => listener,
        Err(error) => {
            println!("vipl-guests: {error}");
            return ExitCode::FAILURE;
        }
    };
    for stream in listener.incoming().flatten() {
        let Ok(texts) = order::get(&stream) else {
            continue;
        };
        match texts.first().map(String::as_str) {
            Some(kind::END) => return ExitCode::SUCCESS,
            Some(kind::SHELL) => drop(thread::spawn(move || shell(&stream, &texts))),
            _ => drop(thread::spawn(move || {
                if let Err(error) = side(&stream, &texts) {
                    println!("vipl-guests: {error}");
                }
            })),
        }
    }
    ExitCode::FAILURE
}

fn shell(stream: &TcpStream, texts: &[String]) {
    let command = texts.get(1).map_or("", String::as_str);
    let (status, output) = crate::hosts::shell(command);
    let _ = order::put(stream, &[status.to_string(), output]);
}

/// Runs side 1 of a program.
fn side(stream: &TcpStream, texts: &[String]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let wrong = || io::Error::other("an order that is none");
    let [_, run, count, rest @ ..] = texts else {
        return Err(wrong());
    };
    let count: usize = count.parse().map_err(|_| wrong())?;
    let (arguments, settings) = rest.split_at_checked(count).ok_or_else(wrong)?;
    let (program, arguments) = arguments.split_first().ok_or_else(wrong)?;
    let (link, theirs) = UnixStream::pair()?;
    // Standard input carries it: the standard library passes on no other descriptors.
    let mut child = Command::new(program)
        .args(arguments)
        .envs(
            settings
                .iter()
                .filter_map(|setting| setting.split_once('=')),
        )
        .env("CTEST_SIDE", format!("0 {run}"))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let to = Arc::new(Mutex::new(stream.try_clone()?));
    let send = |tag: u8, from: Option<Box<dyn Read + Send>>| {
        let to = to.clone();
        thread::spawn(move || pass_on(from, tag, &to))
    };
    let stdout = child.stdout.take().map(|pipe| Box::new(pipe) as _);
    let stderr = child.stderr.take().map(|pipe| Box::new(pipe) as _);
    let from = link.try_clone()?;
    let senders = [
        send(tag::OUTPUT, stdout),
        send(tag::ERROR, stderr),
        send(tag::LINK, Some(Box::new(from))),
    ];
    let child = Arc::new(Mutex::new(child));
    let (mut from, of) = (stream.try_clone()?, child.clone());
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if (&link).write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // Side 0 has ended, well or not.
        let mut child = of.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = child.kill();
    });
    let status = wait(&child);
    for sender in senders {
        let _ = sender.join();
    }
    let to = to.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    order::put_piece(&*to, tag::END, &[status])
}

/// Waits for the end; its status is 255 if a signal has ended it.
fn wait(child: &Mutex<Child>) -> u8 {
    loop {
        let mut child = child
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return status.code().map_or(255, |code| code as u8),
            Err(_) => return 255,
        }
        drop(child);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sends what comes out of a pipe to side 0.
fn pass_on(from: Option<Box<dyn Read + Send>>, tag: u8, to: &Mutex<TcpStream>) {
    let Some(mut from) = from else { return };
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let to = to.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if order::put_piece(&*to, tag, &bytes[..count]).is_err() {
            break;
        }
    }
}
