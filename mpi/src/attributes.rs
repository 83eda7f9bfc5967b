//! What the provider offers, and whether that suits the hints of a program.

use std::ffi::{CStr, CString, c_char};

use crate::address::{Address, SOCKADDR};
use crate::device::Limits;
use crate::fi::*;
use crate::iov::IOV;
use crate::libfabric::{NAME, VERSION};
use crate::packet::LONGEST_HEADER;
use crate::settings::Settings;

/// Longest message that is copied before it is sent; also what may be injected.
pub(crate) const INJECT: usize = 1000;
/// Receives that the program may post.
pub(crate) const RECEIVES: usize = 1024;
/// Longest message and longest RDMA: the provider cuts them into pieces, and has no limit of its own.
const LONGEST: usize = usize::MAX;
/// Operations that an endpoint accepts, unless the program requests another number.
const SENDS: usize = 128;
/// Operations that it takes at most. What finds no room at the peer waits here, so that a program that sends without
/// waiting goes on; only a program that never stops is refused.
pub(crate) const WAITING: usize = 4096;
/// Bytes of data for a peer's completion.
pub(crate) const CQ_DATA: usize = 8;
/// Number of the protocol: of the range for providers, "VI".
const PROTOCOL: u32 = 0x8000_5649;
/// The same for messages with tags.
pub(crate) const TAGGED_PROTOCOL: u32 = 0x8000_5654;
const PROTOCOL_VERSION: u32 = 1;
/// The fabric's name.
const FABRIC: &CStr = c"vipl";

const SEND_CAPS: u64 = FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE;
const RECEIVE_CAPS: u64 = FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
pub(crate) const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const CAPS: u64 = SEND_CAPS | RECEIVE_CAPS | DOMAIN_CAPS;
const MR_MODE: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Whatever comes after a read may overtake it; everything else keeps its order.
const ORDER: u64 =
    (FI_ORDER_STRICT & !(FI_ORDER_WAR | FI_ORDER_SAR)) | (FI_ORDER_RMA & !FI_ORDER_RMA_WAR);
/// Interface from which on `mr_mode` is a mask.
const MR_MASK_SINCE: u32 = 1 << 16 | 5;

/// What one call of `fi_getinfo` answers.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    device: CString,
    endpoints: usize,
    regions: usize,
    mr_mode: i32,
    mode: u64,
    data_progress: i32,
    op_flags: u64,
    send_op_flags: u64,
    receive_op_flags: u64,
    send_size: usize,
    receive_size: usize,
    /// The interface version of the program.
    api_version: u32,
}

/// Whether a list of providers, as FI_PROVIDER and `prov_name` have it, names this one.
pub(crate) fn names_us(list: &str) -> bool {
    let list = list.trim();
    !list.starts_with('^') && list.split([',', ';']).any(|name| name.trim() == "vipl")
}

/// # Safety
/// `text` is null or a NUL-terminated string.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// The provider that a program's hints name.
///
/// # Safety
/// `hints` is null or a valid `fi_info`.
pub(crate) unsafe fn provider_of(hints: *const fi_info) -> Option<String> {
    // SAFETY: the caller's promise; the members are null or valid.
    unsafe {
        let fabric = hints.as_ref()?.fabric_attr.as_ref()?;
        Some(string(fabric.prov_name)?.to_string_lossy().into_owned())
    }
}

/// The flags of sends and receives that are given none.
///
/// # Safety
/// The parts of `info` are null or valid.
pub(crate) unsafe fn op_flags(info: &fi_info) -> (u64, u64) {
    // SAFETY: the caller's promise.
    let (send, receive) = unsafe { (info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
    (
        send.map_or(0, |send| send.op_flags),
        receive.map_or(0, |receive| receive.op_flags),
    )
}

impl Offer {
    /// The offer to a program without hints.
    pub(crate) fn new(limits: &Limits) -> Offer {
        Offer {
            device: limits.name.clone(),
            endpoints: limits.vis,
            regions: limits.regions,
            mr_mode: MR_MODE,
            mode: 0,
            data_progress: FI_PROGRESS_MANUAL,
            op_flags: FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE,
            send_op_flags: 0,
            receive_op_flags: 0,
            send_size: SENDS,
            receive_size: RECEIVES,
            api_version: 0,
        }
    }

    /// The same for a program of this interface.
    pub(crate) fn for_version(mut self, version: u32) -> Offer {
        self.api_version = version;
        self
    }

    /// Adapts the offer to the hints of a program; the reason, if that is impossible.
    ///
    /// # Safety
    /// `hints` is null or a valid `fi_info`.
    pub(crate) unsafe fn suit(
        mut self,
        version: u32,
        hints: *const fi_info,
    ) -> Result<Offer, &'static str> {
        self.api_version = version;
        let old = version < MR_MASK_SINCE;
        if old {
            (self.mr_mode, self.mode) = (FI_MR_BASIC, FI_LOCAL_MR);
        }
        // SAFETY: the caller's promise, here and below: members of hints are null or valid.
        let Some(hints) = (unsafe { hints.as_ref() }) else {
            return Ok(self);
        };
        let check = |holds: bool, reason: &'static str| if holds { Ok(()) } else { Err(reason) };
        check(hints.caps & !CAPS == 0, "capabilities")?;
        check(
            [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN6].contains(&hints.addr_format),
            "address format",
        )?;
        check(
            !old || hints.mode & FI_LOCAL_MR != 0,
            "the program does not register its buffers",
        )?;
        // SAFETY: see above.
        if let Some(endpoint) = unsafe { hints.ep_attr.as_ref() } {
            check(
                [FI_EP_UNSPEC, FI_EP_MSG].contains(&endpoint.kind),
                "endpoint type",
            )?;
            check([0, PROTOCOL].contains(&endpoint.protocol), "protocol")?;
            let contexts = [endpoint.tx_ctx_cnt, endpoint.rx_ctx_cnt];
            check(
                contexts
                    .iter()
                    .all(|count| *count <= 1 && *count != FI_SHARED_CONTEXT),
                "contexts",
            )?;
            check(
                endpoint.max_order_war_size == 0,
                "order of writes after reads",
            )?;
        }
        // SAFETY: see above.
        if let Some(send) = unsafe { hints.tx_attr.as_ref() } {
            check(
                send.caps & !(SEND_CAPS | DOMAIN_CAPS) == 0,
                "capabilities to send",
            )?;
            check(send.op_flags & !self.op_flags == 0, "flags of sends")?;
            check(send.msg_order & !ORDER == 0, "order")?;
            check(send.inject_size <= INJECT, "inject size")?;
            check(send.size <= WAITING, "size of the send queue")?;
            check(
                send.iov_limit <= IOV && send.rma_iov_limit <= 1,
                "pieces of an operation",
            )?;
            self.send_op_flags = send.op_flags;
            if send.size > 0 {
                self.send_size = send.size;
            }
        }
        // SAFETY: see above.
        if let Some(receive) = unsafe { hints.rx_attr.as_ref() } {
            check(
                receive.caps & !(RECEIVE_CAPS | DOMAIN_CAPS) == 0,
                "capabilities to receive",
            )?;
            check(receive.op_flags & !FI_COMPLETION == 0, "flags of receives")?;
            check(receive.msg_order & !ORDER == 0, "order")?;
            check(receive.size <= RECEIVES, "size of the receive queue")?;
            check(receive.iov_limit <= IOV, "pieces of a receive")?;
            self.receive_op_flags = receive.op_flags;
            if receive.size > 0 {
                self.receive_size = receive.size;
            }
        }
        // SAFETY: see above.
        if let Some(domain) = unsafe { hints.domain_attr.as_ref() } {
            check(domain.cq_data_size <= CQ_DATA, "data in completions")?;
            check(
                domain.caps & !DOMAIN_CAPS == 0,
                "capabilities of the domain",
            )?;
            if old {
                check(domain.mr_mode != FI_MR_SCALABLE, "registration of memory")?;
            } else {
                let basic = domain.mr_mode & FI_MR_BASIC != 0;
                check(
                    basic || domain.mr_mode & MR_MODE == MR_MODE,
                    "registration of memory",
                )?;
                if basic {
                    self.mr_mode = FI_MR_BASIC;
                }
            }
            // One engine makes progress of connections and of data.
            if [domain.data_progress, domain.control_progress].contains(&FI_PROGRESS_AUTO) {
                self.data_progress = FI_PROGRESS_AUTO;
            }
            // SAFETY: see above.
            let name = unsafe { string(domain.name) };
            check(
                name.is_none_or(|name| name == self.device.as_c_str()),
                "domain",
            )?;
        }
        // SAFETY: see above.
        if let Some(fabric) = unsafe { hints.fabric_attr.as_ref() } {
            // SAFETY: see above.
            let name = unsafe { string(fabric.name) };
            check(name.is_none_or(|name| name == FABRIC), "fabric")?;
        }
        Ok(self)
    }

    /// As libfabric wants it: every part allocated by itself, which fi_freeinfo frees.
    pub(crate) fn to_info(
        &self,
        source: Option<Address>,
        destination: Option<Address>,
        named: bool,
    ) -> *mut fi_info {
        let info = zeroed::<fi_info>();
        let (send, receive) = (zeroed::<fi_tx_attr>(), zeroed::<fi_rx_attr>());
        let (endpoint, domain) = (zeroed::<fi_ep_attr>(), zeroed::<fi_domain_attr>());
        let fabric = zeroed::<fi_fabric_attr>();
        // SAFETY: new memory of each type, for which zeroes are valid.
        unsafe {
            let (i, t, r) = (&mut *info, &mut *send, &mut *receive);
            let (e, d, f) = (&mut *endpoint, &mut *domain, &mut *fabric);
            i.caps = CAPS;
            i.mode = self.mode;
            i.addr_format = FI_SOCKADDR_IN6;
            (i.src_addr, i.src_addrlen) = sockaddr(source);
            (i.dest_addr, i.dest_addrlen) = sockaddr(destination);
            (i.tx_attr, i.rx_attr, i.ep_attr) = (send, receive, endpoint);
            (i.domain_attr, i.fabric_attr) = (domain, fabric);

            t.caps = SEND_CAPS;
            t.op_flags = self.send_op_flags;
            t.msg_order = ORDER;
            t.inject_size = INJECT;
            t.size = self.send_size;
            t.iov_limit = IOV;
            t.rma_iov_limit = 1;

            r.caps = RECEIVE_CAPS;
            r.op_flags = self.receive_op_flags;
            r.msg_order = ORDER;
            r.size = self.receive_size;
            r.iov_limit = IOV;

            e.kind = FI_EP_MSG;
            e.protocol = PROTOCOL;
            e.protocol_version = PROTOCOL_VERSION;
            e.max_msg_size = LONGEST;
            e.max_order_raw_size = usize::MAX;
            e.max_order_waw_size = usize::MAX;
            e.tx_ctx_cnt = 1;
            e.rx_ctx_cnt = 1;

            d.name = duplicate(&self.device);
            d.threading = FI_THREAD_SAFE;
            d.control_progress = self.data_progress;
            d.data_progress = self.data_progress;
            d.resource_mgmt = FI_RM_ENABLED;
            d.av_type = FI_AV_UNSPEC;
            d.mr_mode = self.mr_mode;
            d.mr_key_size = size_of::<u32>();
            d.cq_data_size = CQ_DATA;
            d.cq_cnt = self.endpoints;
            d.ep_cnt = self.endpoints;
            d.tx_ctx_cnt = self.endpoints;
            d.rx_ctx_cnt = self.endpoints;
            d.max_ep_tx_ctx = 1;
            d.max_ep_rx_ctx = 1;
            d.mr_iov_limit = 1;
            d.caps = DOMAIN_CAPS;
            d.mr_cnt = self.regions;

            f.name = duplicate(FABRIC);
            f.prov_version = VERSION;
            f.api_version = self.api_version;
            // fi_getinfo fills the name in itself and refuses an answer that has one.
            if named {
                f.prov_name = duplicate(NAME);
            }
        }
        info
    }
}

impl Offer {
    /// The offer of an endpoint for messages with tags, to hints that it suits.
    ///
    /// # Safety
    /// `hints` is null or a valid `fi_info`.
    pub(crate) unsafe fn to_tagged_info(
        &self,
        source: Address,
        settings: &Settings,
        hints: *const fi_info,
    ) -> *mut fi_info {
        let info = self.to_info(Some(source), None, false);
        // SAFETY: made by `to_info`, with all its parts; hints and their parts are null or valid.
        unsafe {
            let i = &mut *info;
            let (t, r) = (&mut *i.tx_attr, &mut *i.rx_attr);
            let (e, d) = (&mut *i.ep_attr, &mut *i.domain_attr);
            let both = FI_TAGGED | FI_MSG | FI_DIRECTED_RECV;
            i.caps = both | FI_SEND | FI_RECV | DOMAIN_CAPS;
            (i.mode, d.mr_mode) = (0, 0);
            t.caps = FI_TAGGED | FI_MSG | FI_SEND;
            t.inject_size = INJECT.min(settings.chunk as usize - LONGEST_HEADER);
            r.caps = both | FI_RECV;
            (t.msg_order, r.msg_order) = (FI_ORDER_SAS, FI_ORDER_SAS);
            (t.iov_limit, t.rma_iov_limit, r.iov_limit) = (1, 0, 1);
            e.kind = FI_EP_RDM;
            e.protocol = TAGGED_PROTOCOL;
            (e.max_order_raw_size, e.max_order_waw_size) = (0, 0);
            e.mem_tag_format = u64::MAX / 3;
            d.av_type = FI_AV_TABLE;
            let Some(hints) = hints.as_ref() else {
                return info;
            };
            (t.op_flags, r.op_flags) = op_flags(hints);
            if let Some(domain) = hints.domain_attr.as_ref()
                && [domain.data_progress, domain.control_progress].contains(&FI_PROGRESS_AUTO)
            {
                (d.data_progress, d.control_progress) = (FI_PROGRESS_AUTO, FI_PROGRESS_AUTO);
            }
        }
        info
    }
}

/// Zeroed memory of C's allocator, with zeroes behind it for what later versions of libfabric append.
fn zeroed<T>() -> *mut T {
    // SAFETY: a size that is not 0.
    let memory = unsafe { libc::calloc(1, size_of::<T>() + size_of::<Slack>()) };
    assert!(!memory.is_null(), "no memory");
    memory.cast()
}

fn duplicate(text: &CStr) -> *mut c_char {
    // SAFETY: NUL-terminated.
    unsafe { libc::strdup(text.as_ptr()) }
}

fn sockaddr(address: Option<Address>) -> (*mut std::ffi::c_void, usize) {
    let Some(address) = address else {
        return (std::ptr::null_mut(), 0);
    };
    let memory = zeroed::<libc::sockaddr_in6>();
    // SAFETY: new memory of this type.
    unsafe { memory.write(address.to_sockaddr()) };
    (memory.cast(), SOCKADDR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let limits = Limits {
            name: c"via_lo".to_owned(),
            address: [0; 6],
            address_bytes: 6,
            transfer: 65536,
            vis: 1024,
            regions: 4096,
            levels: 6,
            reads: true,
            level: 2,
            tagged_level: 2,
        };
        Offer::new(&limits)
    }

    /// Hints like those of `fi_allocinfo`: everything is there and zero. Never freed, as it is small.
    fn hints() -> &'static mut fi_info {
        let info = zeroed::<fi_info>();
        // SAFETY: new and zeroed.
        let info = unsafe { &mut *info };
        info.tx_attr = zeroed();
        info.rx_attr = zeroed();
        info.ep_attr = zeroed();
        info.domain_attr = zeroed();
        info.fabric_attr = zeroed();
        // SAFETY: just made.
        unsafe { (*info.domain_attr).mr_mode = MR_MODE };
        info
    }

    const NEW: u32 = 1 << 16 | 17;

    fn suits(version: u32, change: impl FnOnce(&mut fi_info)) -> Result<Offer, &'static str> {
        let hints = hints();
        change(hints);
        // SAFETY: made above.
        unsafe { offer().suit(version, hints) }
    }

    #[test]
    fn the_name_is_found_in_lists() {
        for list in ["vipl", "tcp,vipl", "vipl;ofi_rxm", " vipl , tcp"] {
            assert!(names_us(list), "{list}");
        }
        for list in ["", "tcp", "^vipl", "vipl2;ofi_rxm", "ofi_rxm"] {
            assert!(!names_us(list), "{list}");
        }
    }

    #[test]
    fn without_hints_everything_is_offered() {
        // SAFETY: null is allowed.
        let offer = unsafe { offer().suit(NEW, std::ptr::null()) }.expect("suits");
        let info = offer.to_info(Some(Address::new([1; 6], 2, 3)), None, false);
        // SAFETY: made by `to_info`.
        unsafe {
            assert_eq!((*info).caps, CAPS);
            assert_eq!((*info).src_addrlen, SOCKADDR);
            assert!((*info).dest_addr.is_null());
            assert_eq!((*(*info).domain_attr).mr_mode, MR_MODE);
            assert!((*(*info).fabric_attr).prov_name.is_null());
            assert_eq!(string((*(*info).domain_attr).name), Some(c"via_lo"));
        }
    }

    #[test]
    fn what_the_provider_lacks_is_refused() {
        assert!(suits(NEW, |_| ()).is_ok());
        type Change = fn(&mut fi_info);
        // SAFETY: the parts of the hints were made by `hints`.
        let refused: [(&str, Change); 10] = unsafe {
            [
                ("capabilities", |h| h.caps = FI_MSG | 1 << 3),
                ("address format", |h| h.addr_format = 2),
                ("endpoint type", |h| (*h.ep_attr).kind = 3),
                ("contexts", |h| (*h.ep_attr).rx_ctx_cnt = FI_SHARED_CONTEXT),
                ("inject size", |h| (*h.tx_attr).inject_size = INJECT + 1),
                ("flags of sends", |h| {
                    (*h.tx_attr).op_flags = FI_DELIVERY_COMPLETE
                }),
                ("order", |h| (*h.tx_attr).msg_order = FI_ORDER_WAR),
                ("registration of memory", |h| {
                    (*h.domain_attr).mr_mode = FI_MR_LOCAL
                }),
                ("domain", |h| {
                    (*h.domain_attr).name = c"sim:".as_ptr().cast_mut()
                }),
                ("fabric", |h| {
                    (*h.fabric_attr).name = c"tcp".as_ptr().cast_mut()
                }),
            ]
        };
        for (reason, change) in refused {
            assert_eq!(suits(NEW, change).err(), Some(reason));
        }
    }

    #[test]
    fn old_interfaces_register_the_old_way() {
        let old = 1 << 16 | 4;
        assert!(suits(old, |_| ()).is_err());
        // SAFETY: made by `hints`, here and below.
        let scalable = suits(old, |h| unsafe {
            h.mode = FI_LOCAL_MR;
            (*h.domain_attr).mr_mode = FI_MR_SCALABLE;
        });
        assert_eq!(scalable.err(), Some("registration of memory"));
        // SAFETY: as above.
        let basic = |h: &mut fi_info| unsafe {
            h.mode = FI_LOCAL_MR;
            (*h.domain_attr).mr_mode = FI_MR_BASIC;
        };
        let offer = suits(old, basic).expect("suits");
        assert_eq!((offer.mr_mode, offer.mode), (FI_MR_BASIC, FI_LOCAL_MR));
        // SAFETY: made by `hints`.
        let offer =
            suits(NEW, |h| unsafe { (*h.domain_attr).mr_mode = FI_MR_BASIC }).expect("suits");
        assert_eq!(offer.mr_mode, FI_MR_BASIC);
    }

    #[test]
    fn progress_without_help_is_given_when_asked_for() {
        // SAFETY: made by `hints`.
        let offer = suits(NEW, |h| unsafe {
            (*h.domain_attr).data_progress = FI_PROGRESS_AUTO
        })
        .expect("suits");
        assert_eq!(offer.data_progress, FI_PROGRESS_AUTO);
        // SAFETY: made by `hints`.
        let offer = suits(NEW, |h| unsafe {
            (*h.domain_attr).control_progress = FI_PROGRESS_AUTO
        })
        .expect("suits");
        assert_eq!(offer.data_progress, FI_PROGRESS_AUTO);
    }
}
