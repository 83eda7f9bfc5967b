//! Objects of libfabric for the tests, and calls that must succeed.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::fi::*;
use crate::provider::fi_prov_ini;

/// Milliseconds in which everything here happens.
const PATIENCE: c_int = 30_000;

/// Starts an agent and names the library; once, before the first call of the provider.
fn prepare() {
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| {
        let library = vipl_ctest::library_dir().join("libvipl.so.1");
        let dir = tempfile::tempdir().expect("a folder");
        let agent = vipl_ctest::Agent::start_in(dir.path()).expect("an agent");
        // SAFETY: the standard library's lock keeps other tests, which are Rust, from reading meanwhile.
        unsafe {
            std::env::set_var("FI_VIPL_LIBRARY", library);
            std::env::set_var("VIPL_AGENT", agent.socket());
            std::env::set_var("FI_VIPL_CONNECT_TIMEOUT", "500");
            if std::env::var_os("FI_VIPL_DEVICE").is_none() {
                std::env::set_var("FI_VIPL_DEVICE", "via_lo");
            }
        }
        vipl_ctest::until_exit((agent, dir));
    });
}

pub(super) fn ok(code: c_int) {
    assert_eq!(code, 0);
}

/// One fabric with a listener and the queues that the endpoints share.
pub(super) struct World {
    pub(super) info: *mut fi_info,
    pub(super) fabric: *mut fid_fabric,
    pub(super) domain: *mut fid_domain,
    pub(super) eq: *mut fid_eq,
    pub(super) pep: *mut fid_pep,
    pub(super) address: [u8; 28],
}

/// An endpoint and its completion queue.
pub(super) struct End {
    pub(super) ep: *mut fid_ep,
    pub(super) cq: *mut fid_cq,
}

/// Registered memory.
pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    pub(super) mr: *mut fid_mr,
}

pub(super) fn close<T>(object: *mut T) {
    let object = object.cast::<fid>();
    // SAFETY: an open object, closed once.
    ok(unsafe { ((*(*object).ops).close)(object) });
}

impl World {
    pub(super) fn new() -> World {
        prepare();
        let mut world = World {
            info: null_mut(),
            fabric: null_mut(),
            domain: null_mut(),
            eq: null_mut(),
            pep: null_mut(),
            address: [0; 28],
        };
        // SAFETY: calls as libfabric's programs make them, with objects that are open and room for results.
        unsafe {
            let provider = &*fi_prov_ini().cast::<fi_provider>();
            ok((provider.getinfo)(
                1 << 16 | 17,
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                &raw mut world.info,
            ));
            ok((provider.fabric)(
                (*world.info).fabric_attr,
                &raw mut world.fabric,
                null_mut(),
            ));
            let fabric = &*(*world.fabric).ops;
            let mut attributes: fi_eq_attr = std::mem::zeroed();
            attributes.wait_obj = FI_WAIT_FD;
            ok((fabric.eq_open)(
                world.fabric,
                &raw mut attributes,
                &raw mut world.eq,
                null_mut(),
            ));
            ok((fabric.domain)(
                world.fabric,
                world.info,
                &raw mut world.domain,
                null_mut(),
            ));
            ok((fabric.passive_ep)(
                world.fabric,
                world.info,
                &raw mut world.pep,
                null_mut(),
            ));
            let pep = world.pep.cast::<fid>();
            ok(((*(*pep).ops).bind)(pep, world.eq.cast(), 0));
            ok(((*(*world.pep).cm).listen)(world.pep));
            let mut length = world.address.len();
            ok(((*(*world.pep).cm).getname)(
                pep,
                world.address.as_mut_ptr().cast(),
                &raw mut length,
            ));
            assert_eq!(length, 28);
        }
        world
    }

    pub(super) fn end(&self, info: *mut fi_info) -> End {
        let mut end = End {
            ep: null_mut(),
            cq: null_mut(),
        };
        // SAFETY: see `new`.
        unsafe {
            let domain = &*(*self.domain).ops;
            let mut attributes: fi_cq_attr = std::mem::zeroed();
            attributes.format = FI_CQ_FORMAT_DATA;
            attributes.wait_obj = FI_WAIT_FD;
            ok((domain.cq_open)(
                self.domain,
                &raw mut attributes,
                &raw mut end.cq,
                null_mut(),
            ));
            ok((domain.endpoint)(
                self.domain,
                info,
                &raw mut end.ep,
                null_mut(),
            ));
            let ep = end.ep.cast::<fid>();
            let ops = &*(*ep).ops;
            assert_eq!((ops.control)(ep, FI_ENABLE, null_mut()), -FI_ENOEQ);
            ok((ops.bind)(ep, self.eq.cast(), 0));
            assert_eq!((ops.control)(ep, FI_ENABLE, null_mut()), -FI_ENOCQ);
            ok((ops.bind)(ep, end.cq.cast(), FI_TRANSMIT | FI_RECV));
            ok((ops.control)(ep, FI_ENABLE, null_mut()));
        }
        end
    }

    /// The listener's port.
    pub(super) fn port(&self) -> u16 {
        u16::from_be_bytes([self.address[2], self.address[3]])
    }

    /// Replaces the listener by one on a port that the program chooses.
    pub(super) fn listen_at(&mut self, port: u16) {
        close(self.pep);
        // SAFETY: see `new`; the info's source is a whole address of ours.
        unsafe {
            let source = (*self.info).src_addr.cast::<u8>().add(2).cast::<[u8; 2]>();
            source.write(port.to_be_bytes());
            let fabric = &*(*self.fabric).ops;
            ok((fabric.passive_ep)(
                self.fabric,
                self.info,
                &raw mut self.pep,
                null_mut(),
            ));
            let pep = self.pep.cast::<fid>();
            ok(((*(*pep).ops).bind)(pep, self.eq.cast(), 0));
            ok(((*(*self.pep).cm).listen)(self.pep));
            let mut length = self.address.len();
            ok(((*(*self.pep).cm).getname)(
                pep,
                self.address.as_mut_ptr().cast(),
                &raw mut length,
            ));
            source.write([0, 0]);
        }
        assert_eq!(self.port(), port);
    }

    /// The next event: what it is, the object, the info and the data.
    pub(super) fn event(&self) -> (u32, *mut fid, *mut fi_info, Vec<u8>) {
        let (mut kind, mut buffer) = (0, [0u64; 64]);
        // SAFETY: see `new`.
        unsafe {
            let read = (*(*self.eq).ops).sread;
            let read = read(
                self.eq,
                &raw mut kind,
                buffer.as_mut_ptr().cast(),
                512,
                PATIENCE,
                0,
            );
            assert!(read >= 16, "event: {read}");
            let entry = buffer.as_ptr().cast::<fi_eq_cm_entry>();
            let data = buffer.as_ptr().cast::<u8>().add(16);
            let data = std::slice::from_raw_parts(data, read as usize - 16).to_vec();
            (kind, (*entry).fid, (*entry).info, data)
        }
    }

    /// The next event is an error: its number, the object, the data.
    pub(super) fn event_error(&self) -> (c_int, *mut fid, Vec<u8>) {
        let (mut kind, mut buffer) = (0, [0u64; 64]);
        // SAFETY: see `new`.
        unsafe {
            let ops = &*(*self.eq).ops;
            let read = (ops.sread)(
                self.eq,
                &raw mut kind,
                buffer.as_mut_ptr().cast(),
                512,
                PATIENCE,
                0,
            );
            assert_eq!(read, -(FI_EAVAIL as isize));
            let mut entry: fi_eq_err_entry = std::mem::zeroed();
            assert!((ops.readerr)(self.eq, &raw mut entry, 0) > 0);
            let data = match entry.err_data_size {
                0 => Vec::new(),
                length => std::slice::from_raw_parts(entry.err_data.cast::<u8>(), length).to_vec(),
            };
            (entry.err, entry.fid, data)
        }
    }

    pub(super) fn connect(&self, end: &End, data: &[u8]) {
        // SAFETY: see `new`.
        unsafe {
            let connect = (*(*end.ep).cm).connect;
            ok(connect(
                end.ep,
                self.address.as_ptr().cast(),
                data.as_ptr().cast(),
                data.len(),
            ));
        }
    }

    /// Two connected endpoints: the active one and the passive one.
    pub(super) fn pair(&self) -> (End, End) {
        let client = self.end(self.info);
        self.connect(&client, b"hello");
        let (kind, pep, info, data) = self.event();
        assert_eq!(
            (kind, pep, data.as_slice()),
            (FI_CONNREQ, self.pep.cast(), &b"hello"[..])
        );
        // SAFETY: the info of a request is whole. Programs of libfabric 2 refuse one without the version of their fabric.
        let version = unsafe { (*(*info).fabric_attr).api_version };
        assert_eq!(version, 1 << 16 | 17);
        let server = self.end(info);
        // SAFETY: see `new`.
        unsafe {
            ok(((*(*server.ep).cm).accept)(
                server.ep,
                b"welcome".as_ptr().cast(),
                7,
            ))
        };
        let mut connected = [self.event(), self.event()];
        connected.sort_by_key(|(_, _, _, data)| data.len());
        let [at_server, at_client] = connected;
        assert_eq!((at_server.0, at_server.1), (FI_CONNECTED, server.ep.cast()));
        assert_eq!((at_client.0, at_client.1), (FI_CONNECTED, client.ep.cast()));
        assert_eq!(at_client.3, b"welcome");
        (client, server)
    }

    pub(super) fn memory(&self, bytes: Vec<u8>) -> Memory {
        let mut memory = Memory {
            bytes,
            mr: null_mut(),
        };
        let access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        // SAFETY: see `new`.
        unsafe {
            let (address, length) = (memory.bytes.as_ptr().cast(), memory.bytes.len());
            let reg = (*(*self.domain).mr).reg;
            ok(reg(
                self.domain.cast(),
                address,
                length,
                access,
                0,
                0,
                0,
                &raw mut memory.mr,
                null_mut(),
            ));
        }
        memory
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            close(self.pep);
            close(self.domain);
            close(self.eq);
            close(self.fabric);
        }
    }
}

impl Memory {
    pub(super) fn desc(&self) -> *mut c_void {
        // SAFETY: open.
        unsafe { (*self.mr).mem_desc }
    }

    pub(super) fn key(&self) -> u64 {
        // SAFETY: open.
        unsafe { (*self.mr).key }
    }

    pub(super) fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            close(self.mr);
        }
    }
}

pub(super) const fn context(number: usize) -> *mut c_void {
    number as *mut c_void
}

impl End {
    /// The next completion; sleeps on the queue's descriptor.
    pub(super) fn completion(&self) -> fi_cq_data_entry {
        // SAFETY: see `World::new`.
        unsafe {
            let mut entry: fi_cq_data_entry = std::mem::zeroed();
            let read = ((*(*self.cq).ops).sread)(
                self.cq,
                (&raw mut entry).cast(),
                1,
                null_mut(),
                PATIENCE,
            );
            assert_eq!(read, 1, "completion");
            entry
        }
    }

    /// The next completion is an error.
    pub(super) fn failure(&self) -> fi_cq_err_entry {
        // SAFETY: see `World::new`.
        unsafe {
            let mut entry: fi_cq_data_entry = std::mem::zeroed();
            let ops = &*(*self.cq).ops;
            let read = (ops.sread)(self.cq, (&raw mut entry).cast(), 1, null_mut(), PATIENCE);
            assert_eq!(read, -(FI_EAVAIL as isize), "failure");
            let mut entry: fi_cq_err_entry = std::mem::zeroed();
            assert_eq!((ops.readerr)(self.cq, &raw mut entry, 0), 1);
            entry
        }
    }

    /// What the queue has at once: an entry, an error, or nothing.
    pub(super) fn next(&self) -> Option<Result<fi_cq_data_entry, fi_cq_err_entry>> {
        // SAFETY: see `World::new`.
        unsafe {
            let ops = &*(*self.cq).ops;
            let mut entry: fi_cq_data_entry = std::mem::zeroed();
            let read = (ops.sread)(self.cq, (&raw mut entry).cast(), 1, null_mut(), 0);
            if read == 1 {
                return Some(Ok(entry));
            }
            if read != -(FI_EAVAIL as isize) {
                assert_eq!(read, -(libc::EAGAIN as isize));
                return None;
            }
            let mut entry: fi_cq_err_entry = std::mem::zeroed();
            assert_eq!((ops.readerr)(self.cq, &raw mut entry, 0), 1);
            Some(Err(entry))
        }
    }

    /// There is no completion.
    pub(super) fn nothing(&self) {
        // SAFETY: see `World::new`.
        unsafe {
            let mut entry: fi_cq_data_entry = std::mem::zeroed();
            let read = ((*(*self.cq).ops).read)(self.cq, (&raw mut entry).cast(), 1);
            assert_eq!(read, -(libc::EAGAIN as isize));
        }
    }

    pub(super) fn msg(&self) -> &fi_ops_msg {
        // SAFETY: open.
        unsafe { &*(*self.ep).msg }
    }

    pub(super) fn rma(&self) -> &fi_ops_rma {
        // SAFETY: open.
        unsafe { &*(*self.ep).rma }
    }

    pub(super) fn send(&self, memory: &Memory, length: usize, number: usize) -> isize {
        let (from, desc) = (memory.bytes.as_ptr().cast(), memory.desc());
        // SAFETY: registered memory that lives until the test ends.
        unsafe { (self.msg().send)(self.ep, from, length, desc, 0, context(number)) }
    }

    pub(super) fn receive(&self, memory: &mut Memory, length: usize, number: usize) -> isize {
        let (to, desc) = (memory.bytes.as_mut_ptr().cast(), memory.desc());
        // SAFETY: as above.
        unsafe { (self.msg().recv)(self.ep, to, length, desc, 0, context(number)) }
    }

    pub(super) fn close(self) {
        close(self.ep);
        close(self.cq);
    }
}
