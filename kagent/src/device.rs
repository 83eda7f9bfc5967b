//! Device processes: NICs in software that run outside the programs, started and owned by the agent.
//!
//! The agent knows of a device only its name. It introduces processes to it, vouching for who they are; what
//! they then say to each other is their own affair. A device serves one user, and ends with the agent, as a
//! card does with its host.
//!
//! ```text
//!   DEVICE_OPEN ──▶ Output::OpenDevice ──▶ the runtime starts it, makes a pair of sockets
//!                                            ├── Introduction + one end ──▶ the device
//!   DEVICE_OPENED + the other end ◀── handle_device_opened
//! ```

#![forbid(unsafe_code)]

use kagent_proto::{DeviceOpen, DeviceOpened, Op, Status};

use crate::agent::{Agent, Caller};
use crate::message;
use crate::output::{Message, OpenDevice, Output};

impl<F: Clone> Agent<F> {
    /// `Op::DEVICE_OPEN`: the runtime knows which devices there are.
    pub(crate) fn device_open(&mut self, caller: Caller, body: &DeviceOpen) -> Result<(), Status> {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        self.outputs.push_back(Output::OpenDevice(OpenDevice {
            client: caller.client,
            call: caller.id,
            uid: client.uid,
            pid: client.pid,
            device: body.device,
        }));
        Ok(())
    }

    /// The answer of the runtime to an [`OpenDevice`], before the next input: the device's process id and the
    /// process's end of the socket; or why there is none.
    pub fn handle_device_opened(
        &mut self,
        now: u64,
        open: &OpenDevice,
        result: Result<(u32, F), Status>,
    ) {
        self.advance(now);
        let caller = Caller {
            client: open.client,
            id: open.call,
        };
        let (pid, socket) = match result {
            Ok(made) => made,
            Err(status) => return self.done(caller, status),
        };
        if self.clients.contains_key(&open.client) {
            let body = DeviceOpened { pid, reserved: 0 };
            self.outputs.push_back(Output::Send(Message {
                client: open.client,
                bytes: message::emit(Op::DEVICE_OPENED, Status::OK, open.call, &body),
                fds: vec![socket],
            }));
        }
    }
}
