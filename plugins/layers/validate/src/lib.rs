//! The layer `validate`: finds what the specification forbids or leaves undefined and programs get away with.
//!
//! ```text
//!   lib ─▶ validate ─▶ control  objects are made, connected, destroyed
//!                   ├▶ unlooked waits at completion queues, and messages elsewhere
//!                   └▶ data     descriptors are posted and taken       ─▶ objects ─▶ posted
//!   findings  numbers and lines     place  places in the program
//! ```
//!
//! What it keeps of the data path is cheap: sums of the descriptor and the buffer, and the place of the post.

use std::ffi::CStr;

use vipl_abi::{VIP_ERROR_CODE, VIP_RETURN};
use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Call, Host, Layer, Local, Outcome};
use vipl_plugin_sdk::settings::{self, Setting};

mod findings;
mod objects;
mod place;
mod posted;
mod validate;

use findings::Findings;
use objects::Objects;
use validate::{Validate, does};

impl Layer for Validate {
    const NAME: &'static CStr = c"validate";
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = &[settings::text(
        c"silence",
        c"findings",
        c"findings that are not reported, VAL-01,VAL-42",
    )];

    fn new(host: Host) -> Result<Validate, Status> {
        let silence = host.value(Self::NAME, c"silence").unwrap_or_default();
        let findings = Findings::new(host, &silence);
        Ok(Validate::new(findings, Objects::default()))
    }

    #[inline]
    fn before(&self, call: &Call<'_>, local: &mut Local) -> Option<VIP_RETURN> {
        match does(call.function()) {
            Some(does) => self.data_before(call, does, local),
            None => self.control_before(call, local),
        }
        None
    }

    #[inline]
    fn after(&self, call: &Call<'_>, local: &mut Local, result: Outcome) {
        match does(call.function()) {
            Some(does) => {
                self.data_after(call, does, local, result);
                if result.0 == Some(VIP_RETURN::VIP_INVALID_PARAMETER) {
                    self.refused(call);
                }
            }
            None => self.control_after(call, local, result),
        }
    }

    fn event(&self, event: &vipl_event) {
        if event.kind == VIPL_EVENT_HANDLER && !event.descriptor.is_null() {
            // A notify request takes the descriptor off its queue.
            self.notified(event);
        }
        let empty = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as i32;
        if event.kind == VIPL_EVENT_ERROR && event.code == empty {
            self.ran_dry(event);
        }
    }

    fn process_ends(&self) {
        self.at_exit();
        self.summarise();
    }
}

vipl_plugin_sdk::layer!(Validate);
