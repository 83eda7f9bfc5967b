//! The transfer methods. Each has the sender's step, `start`, and the receiver's, `arrived`.
//!
//! | method | what | copies |
//! | --- | --- | --- |
//! | `inline` | a message of up to 40 bytes in its slot | 2 |
//! | `eager` | one of up to `eager_max` in the payload area | 2 |
//! | `fetch` | a larger one that the receiver copies out of the sender's memory | 1 |
//! | `pieces` | a larger one through the payload area; pieces of all kinds | 2, overlapping |
//! | `write` | RDMA Write, by the initiator or in pieces | 1 or 2 |
//! | `read` | RDMA Read, by the initiator or in pieces from the target | 1 or 2 |

pub(crate) mod eager;
pub(crate) mod fetch;
pub(crate) mod inline;
pub(crate) mod pieces;
pub(crate) mod read;
pub(crate) mod refusal;
pub(crate) mod write;

use vipl_guard::Segment;
use vipl_plugin_sdk::abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_sys::process_vm::Way;

use crate::copy::{self, CopyError};
use crate::peer::Call;
use crate::request::Request;
use crate::shared_copy::{Of, Offer, Shared, SharedCopy};

/// Smallest RDMA operation whose copy is offered to the target: it takes one system call more, for its last bytes. 256 KiB and
/// 1 MiB RDMA Writes gain 1.4 and 2.1 times.
const RDMA_MIN: u32 = 96 << 10;
/// Bytes at the end of RDMA that the initiator copies when all others are there: they become visible last (spec §5.4).
const TAIL: u32 = 8;

/// Copies RDMA to or from the target range, if the target permits it.
fn rdma(
    call: Call,
    shared: &mut SharedCopy,
    way: Way,
    request: &Request,
    local: &[Segment],
) -> Result<u64, CopyError> {
    let (peer, length) = (call.peer, request.length);
    if length == 0 {
        return Ok(0);
    }
    let remote = [request.range(peer)];
    let (enabled, flag) = match way {
        Way::Write => (peer.permits_write(), VIPL_REGION_RDMA_WRITE),
        Way::Read => (peer.permits_read(), VIPL_REGION_RDMA_READ),
    };
    let [
        Segment {
            handle, address, ..
        },
    ] = remote;
    let (table, tag, bytes) = (peer.table(), peer.tag(), u64::from(length));
    let permitted = || enabled && table.is_remote(handle, address, bytes, tag, flag);
    if length >= RDMA_MIN && !peer.may_map(handle) {
        let offer = Offer {
            of: Of::Rdma(length),
            way,
            local,
            remote: &remote,
            bytes: length - TAIL,
        };
        let outcome = shared
            .take_settled(length)
            .unwrap_or_else(|| shared.offer(peer, &offer, permitted));
        match outcome {
            Shared::Later => return Err(CopyError::Later),
            Shared::Done => {
                let tail = bytes - u64::from(TAIL)..bytes;
                if copy::copy_part(peer, way, local, &remote, tail, permitted).is_ok() {
                    return Ok(bytes);
                }
            }
            Shared::Alone => {}
        }
    }
    copy::copy(peer, way, local, &remote, permitted)
}
